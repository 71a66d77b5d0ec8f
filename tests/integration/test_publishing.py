"""Publishing is durable when it returns, from any kind of caller, within one deadline."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio
from processes import until
from servers import PrivatePostgres

from integration.conftest import HANG, POSTGRES, Place, in_child, in_threads, working
from umbel import Handle, State, Umbel, Unique
from umbel.app.client import Client
from umbel.backends import Published, Roles
from umbel.errors import (
    BadArguments,
    BadMessage,
    ConfigurationError,
    DuplicateJob,
    MessageTooLarge,
    NotEncodable,
    PublishTimeout,
    Unavailable,
)
from umbel.messages import Envelope, fresh_id
from umbel.messages.wire import write as write_event

AWKWARD_QUEUES = {
    "quotes": 'it\'s "quoted" `here`',
    "semicolons": "a'; drop table job; --",
    "unicode": "Vögel/鳥/🐦\u202e",
    "blank": " \t\n ",
    "percent": "100%s %(x)s {y} $1 :z ?",
    "comma": 'a,b:{c}\\"d',
    "long": "長" * 255,
}


def adder(app: Umbel) -> Any:
    """Declare the task that most tests publish."""

    @app.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    return add


def ids(handles: list[Any]) -> list[str]:
    assert all(isinstance(handle, Handle) for handle in handles), handles
    return sorted(handle.id for handle in handles)


# --- durable when it returns ------------------------------------------------------------------


def test_a_job_is_seen_by_another_process_when_delay_has_returned(place: Place) -> None:
    handle = adder(place.app()).delay(1, 2)
    assert place.script("print(app.handle(sys.argv[3]).state)", handle.id).strip() == "queued"


def test_a_job_survives_the_death_of_its_publisher_right_after_delay(place: Place) -> None:
    died = "h = add.delay(1, 2); print(h.id, flush=True); os.kill(os.getpid(), 9)"
    with pytest.raises(AssertionError) as told:
        place.script(died)
    job = str(told.value).split()[0]
    assert place.ids() == [job]


def test_delay_from_sixteen_threads_publishes_every_call_once(place: Place) -> None:
    add = adder(place.app())
    batches = in_threads(lambda n: [add.delay(n, i).id for i in range(20)])
    published = sorted(job for batch in batches for job in batch)
    assert len(set(published)) == 320
    assert place.ids() == published


def test_sixteen_threads_that_are_the_first_to_publish_leave_no_connection_behind(
    postgres: Place,
) -> None:
    name = f"umbel-{postgres.namespace[-12:]}"
    app = Umbel(f"{postgres.url}&application_name={name}", namespace=postgres.namespace)
    add = adder(app)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns as often as they can
    try:
        for _ in range(5):
            ids(in_threads(lambda n: add.delay(n, n)))
            app.close()
    finally:
        sys.setswitchinterval(interval)
    with psycopg.connect(POSTGRES, autocommit=True) as connection:
        count = "select count(*) from pg_stat_activity where application_name = %s"

        def gone() -> bool:
            row = connection.execute(count, [name]).fetchone()
            return row is not None and row[0] == 0

        until(gone, "all connections to be closed", seconds=10)


# --- group commit -----------------------------------------------------------------------------


class CountingBackend:
    """A backend whose broker records how many calls each transaction had."""

    def __init__(self, app: Umbel) -> None:
        self._backend = app.backend
        self.batches: list[int] = []

    def open(self, *, is_loop_dedicated: bool = False) -> Roles:
        roles = self._backend.open(is_loop_dedicated=is_loop_dedicated)
        publish = roles.broker.publish_blocking

        def count(envelopes: list[Envelope], timeout: float) -> list[Published]:
            published = publish(envelopes, timeout)
            self.batches.append(len(envelopes))
            return published

        roles.broker.publish_blocking = count  # type: ignore[method-assign]
        return roles

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def count_batches(app: Umbel, task: Any) -> CountingBackend:
    """Publish the task's calls through a backend that counts batches, and return it."""
    backend = CountingBackend(app)
    client = Client(backend, app.settings, app.codec, app.clock)  # type: ignore[arg-type]
    task.bind(client)
    return backend


@contextmanager
def busy(place: Place) -> Iterator[None]:
    """Lock the store against writes until the block ends."""
    with closing(place.connect()) as connection:
        if place.kind == "sqlite":
            connection.execute("begin immediate")
        else:
            connection.execute(f'lock table "{place.schema}".job in exclusive mode')
        yield
        connection.rollback()


def while_busy(place: Place, calls: list[Callable[[], Any]]) -> list[Any]:
    """Return the results of calls that are made while nothing can be written, so share a batch."""
    answers: list[Any] = [None] * len(calls)

    def one(number: int) -> None:
        called.release()
        try:
            answers[number] = calls[number]()
        except Exception as error:
            answers[number] = error

    called = threading.Semaphore(0)
    threads = [threading.Thread(target=one, args=(n,), daemon=True) for n in range(len(calls))]
    with busy(place):
        for thread in threads:
            thread.start()
        for _ in threads:
            assert called.acquire(timeout=HANG)
    for thread in threads:
        thread.join(HANG)
        assert not thread.is_alive(), "a publishing thread hangs"
    return answers


def test_calls_of_many_threads_share_transactions(place: Place) -> None:
    app = place.app()
    add = adder(app)
    backend = count_batches(app, add)
    published = while_busy(place, [lambda n=n: add.delay(n, n) for n in range(16)])
    assert place.ids() == ids(published)
    assert sum(backend.batches) == 16
    assert len(backend.batches) < 16, "every call had a transaction of its own"


def test_postgresql_itself_sees_fewer_transactions_than_calls(postgres: Place) -> None:
    add = adder(postgres.app())
    while_busy(postgres, [lambda n=n: add.delay(n, n) for n in range(16)])
    with closing(postgres.connect()) as connection:
        count = f'select count(*), count(distinct xmin::text) from "{postgres.schema}".job'
        jobs, transactions = connection.execute(
            f"{count} where namespace = %s", [postgres.namespace]
        ).fetchone()
    assert jobs == 16
    assert transactions < 16


def test_a_duplicate_does_not_fail_other_calls_of_the_same_group_commit(place: Place) -> None:
    app = place.app()
    add = adder(app)
    first = add.options(unique="k").delay(0, 0)
    plain = [lambda n=n: add.delay(n, n) for n in range(14)]
    twice = [lambda: add.options(unique="k").delay(9, 9)] * 2
    answers = while_busy(place, [*plain[:7], *twice, *plain[7:]])
    refused = [answer for answer in answers if isinstance(answer, DuplicateJob)]
    assert [error.existing for error in refused] == [first.id, first.id]
    assert len(place.jobs()) == 15
    assert ids([a for a in answers if not isinstance(a, DuplicateJob)]) == sorted(
        set(place.ids()) - {first.id}
    )


@pytest.mark.parametrize(
    "options",
    [
        {"delay": 1e300},
        {"expires": 1e300},
        {"not_before": datetime(9999, 12, 31, 23, 59, 59)},
        {"not_before": datetime(1, 1, 1)},
        {"queue": "lone \ud800 surrogate"},
        {"unique": "lone \ud800 surrogate"},
    ],
    ids=["delay", "expires", "far future", "far past", "queue", "unique"],
)
def test_a_call_that_cannot_be_stored_does_not_fail_other_calls_of_the_same_group_commit(
    place: Place, options: dict[str, Any]
) -> None:
    app = place.app()
    add = adder(app)
    calls: list[Callable[[], Any]] = [lambda n=n: add.delay(n, n) for n in range(8)]
    calls.insert(4, lambda: add.options(**options).delay(0, 0))
    answers = while_busy(place, calls)
    odd = answers.pop(4)
    ids(answers)
    if isinstance(odd, Handle):
        assert odd.state in (State.QUEUED, State.SCHEDULED)
    else:  # refused with a word on what to write instead, not with an error of the database
        assert isinstance(odd, ConfigurationError), repr(odd)


# --- from async code --------------------------------------------------------------------------


def test_delay_works_inside_a_running_event_loop(place: Place) -> None:
    add = adder(place.app())

    async def main() -> str:
        return str(add.delay(1, 2).id)

    published = [asyncio.run(main())]
    assert place.ids() == published


def test_adelay_works_in_one_event_loop_after_another(place: Place) -> None:
    add = adder(place.app())

    async def main() -> list[str]:
        handles = await asyncio.gather(*(add.adelay(n, n) for n in range(20)))
        assert await handles[0].arecord()
        return [handle.id for handle in handles]

    published = asyncio.run(main()) + asyncio.run(main())
    assert place.ids() == sorted(published)


def test_adelay_works_under_trio(place: Place) -> None:
    add = adder(place.app())
    published: list[str] = []

    async def one(number: int) -> None:
        published.append((await add.adelay(number, number)).id)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(one, number)

    trio.run(main)
    assert place.ids() == sorted(published)


def test_asyncio_trio_and_threads_publish_through_one_application_at_once(place: Place) -> None:
    app = place.app()
    add = adder(app)

    async def several() -> list[str]:
        return [(await add.adelay(1, 1)).id for _ in range(10)]

    def publish(number: int) -> list[str]:
        if number % 3 == 0:
            return asyncio.run(several())
        if number % 3 == 1:
            found: list[str] = trio.run(several)
            return found
        return [add.delay(1, 1).id for _ in range(10)]

    published = [job for batch in in_threads(publish, 6) for job in batch]
    assert place.ids() == sorted(published)


def test_the_callers_event_loop_goes_on_while_adelay_waits(place: Place) -> None:
    add = adder(place.app())

    async def main() -> None:
        with busy(place):
            publishing = asyncio.ensure_future(add.adelay(1, 2))
            for _ in range(20):  # each turn is one of this very loop
                await asyncio.sleep(0.01)
            assert not publishing.done()
        await asyncio.wait_for(publishing, HANG)

    asyncio.run(main())
    assert len(place.jobs()) == 1


def test_a_cancelled_adelay_does_not_disturb_the_next_one(place: Place) -> None:
    add = adder(place.app())

    async def main() -> str:
        with busy(place):
            publishing = asyncio.ensure_future(add.adelay(1, 2))
            await asyncio.sleep(0.05)
            publishing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await publishing
        return str((await asyncio.wait_for(add.adelay(3, 4), HANG)).id)

    assert asyncio.run(main()) in place.ids()


# --- after a fork -----------------------------------------------------------------------------


def test_parent_and_forked_child_both_go_on_publishing(place: Place) -> None:
    add = adder(place.app())
    published = [add.delay(0, 0).id]
    answer = in_child(lambda: ",".join(add.delay(n, n).id for n in range(20)))
    assert answer[0] == "+", answer
    published += answer[1:].split(",")
    published += [add.delay(1, 1).id for _ in range(20)]
    assert place.ids() == sorted(published)


def test_a_child_of_a_child_publishes(place: Place) -> None:
    add = adder(place.app())
    published = [add.delay(0, 0).id]

    def child() -> str:
        mine = add.delay(1, 1).id
        theirs = in_child(lambda: add.delay(2, 2).id)
        assert theirs[0] == "+", theirs
        return f"{mine},{theirs[1:]}"

    answer = in_child(child)
    assert answer[0] == "+", answer
    assert place.ids() == sorted(published + answer[1:].split(","))


def test_a_child_forked_while_other_threads_publish_does_not_hang(place: Place) -> None:
    add = adder(place.app(deadline=10))
    over = threading.Event()
    published: list[str] = []

    def publish() -> None:
        while not over.is_set():
            published.append(add.delay(0, 0).id)

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: len(published) > 10, "the threads to publish")
        for _ in range(10):
            answer = in_child(lambda: add.delay(1, 1).id, seconds=30)
            assert answer[0] == "+", answer
            published.append(answer[1:])
    finally:
        over.set()
        for thread in threads:
            thread.join(HANG)
    assert place.ids() == sorted(published)


FORK_AND_OUTLIVE = """
mine = [add.delay(0, 0).id]
to_child, tell_child = os.pipe()
to_parent, tell_parent = os.pipe()
if os.fork() == 0:
    mine = [add.delay(1, n).id for n in range(5)]
    os.write(tell_parent, b"x")
    os.read(to_child, 1)              # until the parent has closed its side
    mine += [add.delay(2, n).id for n in range(5)]
    print(*mine, flush=True)
    os.kill(os.getpid(), 9)           # what delay() has confirmed survives a kill
os.read(to_parent, 1)
app.close()
print(*mine, flush=True)
os.write(tell_child, b"x")
os.wait()
"""


def test_what_a_child_publishes_stays_when_its_parent_closes_first(place: Place) -> None:
    published = place.script(FORK_AND_OUTLIVE).split()
    assert len(published) == 11
    assert place.ids() == sorted(published)


FORK_AND_LEAVE = """
mine = [add.delay(0, 0).id]
child = os.fork()
if child == 0:
    mine = [add.delay(1, n).id for n in range(5)]
    print(*mine, flush=True)
    sys.exit()                        # the interpreter cleans up what it inherited
os.waitpid(child, 0)
mine += [add.delay(2, n).id for n in range(5)]
print(*mine, app.handle(mine[0]).state, flush=True)
"""


def test_a_child_that_exits_in_order_leaves_the_parents_connection_alone(place: Place) -> None:
    *published, state = place.script(FORK_AND_LEAVE).split()
    assert state == "queued"
    assert place.ids() == sorted(published)


def test_a_child_waits_for_results_of_its_own(place: Place) -> None:
    add = adder(place.app(deadline=10))
    with working(place_worker(place)):
        assert add.delay(1, 1).get(HANG) == 2
        assert in_child(lambda: add.delay(2, 3).get(HANG)) == "+5"
        assert add.delay(3, 3).get(HANG) == 6


def place_worker(place: Place) -> Umbel:
    """Return another application on this store with the same task, for a worker."""
    app = place.app()
    adder(app)
    return app


# --- many at once, ids, unique keys -----------------------------------------------------------


def test_publish_many_gives_a_handle_for_each_call_in_order(place: Place) -> None:
    app = place.app()
    add = adder(app)
    handles = app.publish_many([add.s(n, n) for n in range(3000)])
    assert len(handles) == 3000
    stored = {job.id: app.codec.decode(job.body)["args"] for job in place.jobs()}
    assert [stored[handle.id] for handle in handles] == [[n, n] for n in range(3000)]


def test_publish_many_is_one_transaction(place: Place) -> None:
    app = place.app()
    add = adder(app)
    backend = count_batches(app, add)
    add.sender.send([add.s(n, n) for n in range(500)])
    assert backend.batches == [500]


def test_apublish_many_publishes_from_async_code(place: Place) -> None:
    app = place.app()
    add = adder(app)
    handles = asyncio.run(app.apublish_many([add.s(n, n) for n in range(100)]))
    assert place.ids() == ids(handles)


def test_publish_many_of_nothing_is_nothing(place: Place) -> None:
    app = place.app()
    assert app.publish_many([]) == []
    assert asyncio.run(app.apublish_many([])) == []
    assert place.jobs() == []


def test_publish_many_publishes_none_when_one_is_a_duplicate(place: Place) -> None:
    app = place.app()
    add = adder(app)
    held = add.options(unique="k").delay(0, 0)
    calls = [add.s(1, 1), add.options(unique="k").s(2, 2), add.s(3, 3)]
    with pytest.raises(DuplicateJob) as refused:
        app.publish_many(calls)
    assert refused.value.existing == held.id
    assert place.ids() == [held.id]


def test_publish_many_publishes_none_when_two_of_it_share_a_unique_key(place: Place) -> None:
    app = place.app()
    add = adder(app)
    with pytest.raises(DuplicateJob):
        app.publish_many([add.s(1, 1), *[add.options(unique="k").s(2, 2)] * 2])
    assert place.jobs() == []


def test_publish_many_publishes_none_when_one_cannot_be_encoded(place: Place) -> None:
    app = place.app()

    @app.task
    def take(thing: Any) -> None: ...

    with pytest.raises(NotEncodable):
        app.publish_many([take.s(1), take.s(object()), take.s(3)])
    assert place.jobs() == []


def test_the_same_id_publishes_once(place: Place) -> None:
    app = place.app()
    add = adder(app)
    job = fresh_id()
    same = add.options(id=job)
    assert same.delay(1, 1).id == job
    assert same.delay(2, 2).id == job
    assert [handle.id for handle in app.publish_many([same.s(3, 3), same.s(4, 4)])] == [job, job]
    (stored,) = place.jobs()
    assert app.codec.decode(stored.body)["args"] == [1, 1]


def test_the_same_id_publishes_once_also_after_the_job_has_finished(place: Place) -> None:
    app = place.app()
    add = adder(app)
    job = fresh_id()
    with working(place_worker(place)):
        assert add.options(id=job).delay(1, 1).get(HANG) == 2
        assert add.options(id=job).delay(5, 5).get(HANG) == 2
    assert place.ids() == [job]


def test_the_same_id_in_two_namespaces_is_two_jobs(place: Place) -> None:
    job, names = fresh_id(), (place.namespace, f"{place.namespace}2")
    adders = [adder(place.app(namespace=name)) for name in names]
    handles = [add.options(id=job).delay(n, n) for n, add in enumerate(adders, 1)]
    assert [handle.id for handle in handles] == [job, job]
    assert [handle.record().namespace for handle in handles] == [*names]
    with working(place_worker(place)):
        assert handles[0].get(HANG) == 2
    assert handles[1].record().state is State.QUEUED


def test_the_same_id_from_sixteen_threads_publishes_once(place: Place) -> None:
    add = adder(place.app()).options(id=fresh_id())
    published = in_threads(lambda n: add.delay(n, n))
    assert place.ids() == sorted(set(ids(published)))


def test_an_id_that_is_no_uuid_is_refused(place: Place) -> None:
    add = adder(place.app())
    with pytest.raises(ConfigurationError, match=r"id='nonsense'.*UUID"):
        add.options(id="nonsense").delay(1, 1)
    written = fresh_id()
    assert add.options(id=written.upper().replace("-", "")).delay(1, 1).id == written


def test_a_unique_key_that_is_held_raises_and_names_the_holder(place: Place) -> None:
    add = adder(place.app())
    first = add.options(unique="k").delay(1, 1)
    with pytest.raises(DuplicateJob, match=first.id) as refused:
        add.options(unique="k").delay(2, 2)
    assert (refused.value.key, refused.value.existing) == ("k", first.id)
    add.options(unique="other").delay(3, 3)
    assert len(place.jobs()) == 2


def test_a_unique_key_that_is_held_may_give_the_handle_of_its_holder(place: Place) -> None:
    add = adder(place.app())
    first = add.options(unique="k").delay(1, 1)
    again = add.options(unique=Unique("k", on_conflict="return")).delay(2, 2)
    assert again.id == first.id
    assert len(place.jobs()) == 1


def test_a_unique_key_that_is_held_may_replace_its_holder(place: Place) -> None:
    add = adder(place.app())
    first = add.options(unique="k").delay(1, 1)
    second = add.options(unique=Unique("k", on_conflict="replace")).delay(2, 2)
    assert second.id != first.id
    assert first.state is State.CANCELLED
    assert second.id in first.record().reason
    assert second.state is State.QUEUED


def test_a_running_job_is_not_replaced(place: Place) -> None:
    app = place.app()
    started, go_on = threading.Event(), threading.Event()

    @app.task(unique=True)
    def hold() -> None:
        started.set()
        go_on.wait(HANG)

    with working(app):
        running = hold.delay()
        assert started.wait(HANG)
        with pytest.raises(DuplicateJob) as refused:
            hold.options(unique=Unique(hold.name, on_conflict="replace")).delay()
        assert refused.value.existing == running.id
        go_on.set()
        running.get(HANG)


def test_a_unique_key_is_free_again_when_its_job_is_over(place: Place) -> None:
    app = place.app()
    add = adder(app).options(unique="k")
    with working(place_worker(place)):
        assert [add.delay(n, n).get(HANG) for n in range(3)] == [0, 2, 4]
    cancelled = add.delay(1, 1)
    assert cancelled.cancel()
    assert add.delay(2, 2).state is State.QUEUED


def test_a_task_may_be_unique_by_its_arguments(place: Place) -> None:
    app = place.app()

    @app.task(unique=lambda user, force=False: f"sync:{user}")
    def sync(user: int, force: bool = False) -> None: ...

    sync.delay(1)
    sync.delay(2)
    with pytest.raises(DuplicateJob, match="sync:1"):
        sync.delay(1, force=True)


def test_of_sixteen_publishers_of_one_unique_key_exactly_one_wins(place: Place) -> None:
    apps = [place.app() for _ in range(4)]
    adds = [adder(app).options(unique="k") for app in apps]
    answers = in_threads(lambda n: adds[n % 4].delay(n, n))
    winners = [answer for answer in answers if isinstance(answer, Handle)]
    losers = [answer for answer in answers if isinstance(answer, DuplicateJob)]
    assert len(winners) == 1, answers
    assert [loser.existing for loser in losers] == [winners[0].id] * 15
    assert place.ids() == ids(winners)


def test_sixteen_publishers_of_one_unique_key_may_all_get_the_same_job(place: Place) -> None:
    apps = [place.app() for _ in range(4)]
    adds = [adder(app).options(unique=Unique("k", on_conflict="return")) for app in apps]
    answers = in_threads(lambda n: adds[n % 4].delay(n, n))
    assert len(set(ids(answers))) == 1
    assert place.ids() == sorted(set(ids(answers)))


def test_of_sixteen_publishers_that_replace_each_other_exactly_one_job_is_left(
    place: Place,
) -> None:
    apps = [place.app() for _ in range(4)]
    adds = [adder(app).options(unique=Unique("k", on_conflict="replace")) for app in apps]
    answers = in_threads(lambda n: adds[n % 4].delay(n, n))
    assert place.ids() == ids(answers)
    states = sorted(job.state for job in place.jobs())
    assert states == [State.CANCELLED] * 15 + [State.QUEUED]


# --- when and in which order ------------------------------------------------------------------


def test_higher_priority_runs_first(place: Place) -> None:
    app = place.app()
    ran: list[str] = []
    done = threading.Event()

    @app.task(priority=1)
    def note(name: str) -> None:
        ran.append(name)
        if len(ran) == 4:
            done.set()

    note.delay("declared")
    note.options(priority=-5).delay("low")
    note.options(priority=9).delay("high")
    note.delay("declared, later")
    with working(app, cpu=1, io=0):
        assert done.wait(HANG)
    assert ran == ["high", "declared", "declared, later", "low"]


def test_a_delayed_job_is_scheduled_and_runs_when_its_time_has_come(place: Place) -> None:
    app = place.app()
    add = adder(app)
    later, soon = add.options(delay=3600).delay(1, 1), add.options(delay=0.2).delay(2, 2)
    assert later.state is State.SCHEDULED
    with working(place_worker(place)):
        assert soon.get(HANG) == 4
        assert later.state is State.SCHEDULED
    record = soon.record()
    assert record.started is not None
    assert record.not_before is not None
    assert record.started >= record.not_before


def test_not_before_without_a_time_zone_is_utc(place: Place) -> None:
    add = adder(place.app())
    moment = datetime(2090, 6, 1, 12, 0, 0)
    naive = add.options(not_before=moment).delay(1, 1).record()
    aware = add.options(not_before=moment.replace(tzinfo=UTC)).delay(1, 1).record()
    east = timezone(timedelta(hours=2))
    other = add.options(not_before=datetime(2090, 6, 1, 14, tzinfo=east)).delay(1, 1).record()
    assert naive.not_before == aware.not_before == other.not_before
    assert naive.not_before == moment.replace(tzinfo=UTC).timestamp()
    assert naive.state is State.SCHEDULED


def test_not_before_in_the_past_means_now(place: Place) -> None:
    handle = adder(place.app()).options(not_before=datetime(2000, 1, 1)).delay(1, 1)
    assert handle.state is State.QUEUED


def test_a_job_whose_expiry_has_passed_does_not_run(place: Place) -> None:
    app = place.app()
    ran = []

    @app.task
    def note() -> None:
        ran.append(1)

    past = datetime.now(UTC) - timedelta(seconds=1)
    late = note.options(expires=past.replace(tzinfo=None)).delay()  # naive: UTC
    early = note.options(expires=3600).delay()
    with working(app):
        early.get(HANG)
        until(lambda: late.state is State.EXPIRED, "the job to expire")
    assert len(ran) == 1


# --- bad input --------------------------------------------------------------------------------


def test_an_argument_of_ten_megabytes_is_refused_and_says_what_to_do(place: Place) -> None:
    app = place.app()

    @app.task
    def take(data: str) -> None: ...

    with pytest.raises(MessageTooLarge) as refused:
        take.delay("x" * 10_000_000)
    assert "1,048,576" in str(refused.value)
    assert "reference" in str(refused.value)
    assert "max_message" in str(refused.value)
    assert take.name in str(refused.value)
    assert place.jobs() == []


@pytest.mark.parametrize("latest", [datetime.max, datetime.max.replace(tzinfo=UTC)])
@pytest.mark.parametrize("field", ["expires", "not_before"])
def test_a_moment_that_no_message_can_carry_is_refused_whatever_way_it_would_go(
    place: Place, field: str, latest: datetime
) -> None:
    app = place.app()

    @app.task
    def take() -> None: ...

    def call(**options: Any) -> Any:
        return take.options(**{field: latest}, **options)

    with closing(place.connect()) as connection:
        ways: list[Callable[[], object]] = [
            lambda: call().delay(),
            lambda: call(unique="key").delay(),
            lambda: asyncio.run(call().adelay()),
            lambda: app.publish_many([call().s()]),
            lambda: call(connection=connection).delay(),
        ]
        for way in ways:
            with pytest.raises(ConfigurationError, match=f"^{field}=.*leave {field} out"):
                way()
    assert place.jobs() == []


def test_the_limit_can_be_raised(place: Place) -> None:
    app = place.app(max_message=20_000_000)

    @app.task
    def measure(data: str) -> int:
        return len(data)

    handle = measure.delay("x" * 10_000_000)
    with working(app):
        assert handle.get(HANG) == 10_000_000


def test_an_argument_without_a_wire_form_is_refused_and_names_its_type(place: Place) -> None:
    app = place.app()

    @app.task
    def take(thing: Any) -> None: ...

    with pytest.raises(NotEncodable, match=r"_thread\.lock"):
        take.delay({"deep": [threading.Lock()]})
    with pytest.raises(NotEncodable):
        take.delay("lone \ud800 surrogate")
    assert place.jobs() == []


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda add: add.delay(1), "b"),
        (lambda add: add.delay(1, 2, 3), "too many"),
        (lambda add: add.delay(1, b=2, c=3), "'c'"),
        (lambda add: add.delay(1, b="two"), "b must be int, not str"),
        (lambda add: add.s("one", 2), "a must be int, not str"),
        (lambda add: add.si(None, 2), "a must be int, not NoneType"),
        (lambda add: asyncio.run(add.adelay(1, [])), "b must be int, not list"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_where_they_are_given(
    place: Place, call: Callable[[Any], Any], names: str
) -> None:
    add = adder(place.app())
    with pytest.raises(BadArguments, match=names) as refused:
        call(add)
    assert "add(a: 'int', b: 'int')" in str(refused.value).replace("a: int", "a: 'int'").replace(
        "b: int", "b: 'int'"
    )
    assert place.jobs() == []


@pytest.mark.parametrize("name", AWKWARD_QUEUES.values(), ids=AWKWARD_QUEUES)
def test_a_queue_of_any_name_works_end_to_end(place: Place, name: str) -> None:
    app = place.app()

    @app.task(name="add", queue=name)
    def add(a: int, b: int) -> int:
        return a + b

    waiting = add.delay(1, 2)
    assert [queue.name for queue in place.ask(lambda o: o.queues())] == [name]
    with working(app, queues=(name,)):
        assert waiting.get(HANG) == 3
        assert add.delay(2, 3).get(HANG) == 5  # woken by name
        assert add.options(delay=0.05).delay(3, 4).get(HANG) == 7
    assert waiting.record().queue == name
    assert len(place.jobs()) == 3


def test_a_queue_name_that_cannot_be_is_refused() -> None:
    add = adder(Umbel("sqlite:///never-made.db"))
    for name in ("", "x" * 256, "nul\x00", "lone \ud800 surrogate"):
        with pytest.raises(ConfigurationError, match="queue"):
            add.options(queue=name)


# --- events written elsewhere -----------------------------------------------------------------


def foreign_event(**attributes: Any) -> bytes:
    """Return a CloudEvent that the CNCF's library has written."""
    from cloudevents.core.formats.json import JSONFormat
    from cloudevents.core.v1.event import CloudEvent

    given = {
        "id": fresh_id(),
        "source": "/elsewhere",
        "type": "umbel.command",
        "specversion": "1.0",
        "subject": "add",
        "datacontenttype": "application/json",
        "time": datetime.now(UTC),
        **attributes,
    }
    data = {"args": [20], "kwargs": {"b": 22}}
    attributes = {name: value for name, value in given.items() if value is not None}
    written: bytes = JSONFormat().write(CloudEvent(attributes=attributes, data=data))
    return written


def test_an_event_written_by_the_cloudevents_library_is_a_job(place: Place) -> None:
    app = place.app()
    adder(app)
    job = fresh_id()
    handle = app.publish_event(
        foreign_event(id=job, priority=3, uniquekey="k", traceparent=f"00-{'a' * 32}-{'b' * 16}-01")
    )
    assert handle.id == job
    assert app.publish_event(foreign_event(id=job)).id == job, "the same event again is one job"
    record = handle.record()
    assert (record.priority, record.unique, record.kind) == (3, "k", "cpu")
    assert record.traceparent == f"00-{'a' * 32}-{'b' * 16}-01"
    with working(app):
        assert handle.get(HANG) == 42


def test_a_job_of_ours_is_read_by_the_cloudevents_library(sqlite: Place) -> None:
    from cloudevents.core.formats.json import JSONFormat

    app = sqlite.app()
    record = adder(app).options(priority=7).delay(1, 2).record()
    envelope = Envelope(
        id=record.id,
        subject=record.task,
        body=record.body,
        queue=record.queue,
        priority=record.priority,
        created=record.created,
        traceparent=record.traceparent,
    )
    event = JSONFormat().read(None, write_event(envelope))
    assert event.get_id() == record.id
    assert event.get_type() == "umbel.command"
    assert event.get_subject() == "add"
    assert event.get_data() == {"args": [1, 2], "kwargs": {}}
    assert event.get_extension("priority") == 7


def test_an_event_without_a_time_was_created_when_it_was_published(place: Place) -> None:
    app = place.app()
    before = time.time()
    record = app.publish_event(foreign_event(time=None)).record()
    assert record.created >= before - 60, "it looks as if it had waited since 1970"


@pytest.mark.parametrize(
    ("attributes", "field"),
    [
        ({"type": "com.example.other"}, "type"),
        ({"id": "not-a-uuid"}, "id"),
        ({"priority": 99999}, "priority"),
        ({"notbefore": "tomorrow"}, "notbefore"),
        ({"onconflict": "explode"}, "onconflict"),
    ],
)
def test_an_event_that_is_no_job_is_refused_and_the_field_named(
    sqlite: Place, attributes: dict[str, Any], field: str
) -> None:
    with pytest.raises(BadMessage) as refused:
        sqlite.app().publish_event(foreign_event(**attributes))
    assert refused.value.field == field
    assert sqlite.jobs() == []


@pytest.mark.parametrize("garbage", [b"", b"\xff\x00", b"[]", b"{}", b'{"specversion": "0.3"}'])
def test_bytes_that_are_no_event_are_refused(sqlite: Place, garbage: bytes) -> None:
    with pytest.raises(BadMessage):
        sqlite.app().publish_event(garbage)
    assert sqlite.jobs() == []


def test_an_event_over_the_limit_is_refused_like_a_call(place: Place) -> None:
    event = foreign_event().replace(b'"args"', b'"args": ["' + b"x" * 2_000_000 + b'"], "more"')
    with pytest.raises((MessageTooLarge, BadMessage)):
        place.app().publish_event(event)
    assert place.jobs() == []


# --- the deadline -----------------------------------------------------------------------------

BOUND = 10.0
"""Seconds: a generous multiple of the deadline of a second or two that these tests set."""


def unavailable(publish: Callable[[], Any]) -> str:
    """Return the text of the error, which must be raised within a bounded time."""
    begun = time.monotonic()
    with pytest.raises(Unavailable) as refused:
        publish()
    assert time.monotonic() - begun < BOUND
    return str(refused.value)


@pytest.fixture
def private(server: PrivatePostgres) -> Iterator[Place]:
    place = Place("postgres", server.url)
    yield place
    place.close()


@pytest.mark.slow
def test_publishing_to_a_stopped_server_fails_within_the_deadline_and_works_when_it_is_back(
    server: PrivatePostgres, private: Place
) -> None:
    app = private.app(deadline=2)
    add = adder(app)
    published = [add.delay(0, 0).id]
    server.stop()
    text = unavailable(lambda: add.delay(1, 1))
    assert "within 2 s" in text
    assert "PostgreSQL" in text
    unavailable(lambda: asyncio.run(add.adelay(1, 1)))
    unavailable(lambda: trio.run(add.adelay, 1, 1))
    unavailable(lambda: app.publish_many([add.s(1, 1)] * 10))
    begun = time.monotonic()
    answer = in_child(lambda: add.delay(1, 1), seconds=BOUND * 2)
    assert answer.startswith("-PublishTimeout"), answer
    assert time.monotonic() - begun < BOUND
    begun = time.monotonic()
    answers = in_threads(lambda n: add.delay(n, n))
    assert {type(a) for a in answers} == {PublishTimeout}
    assert time.monotonic() - begun < BOUND, "callers wait for one another"
    server.start()
    published.append(add.delay(2, 2).id)
    published.append(asyncio.run(add.adelay(3, 3)).id)
    answer = in_child(lambda: add.delay(4, 4).id)
    assert answer[0] == "+", answer
    published.append(answer[1:])
    assert set(published) <= set(private.ids())


@pytest.mark.slow
def test_the_first_call_ever_to_a_stopped_server_fails_within_the_deadline_too(
    server: PrivatePostgres, private: Place
) -> None:
    server.stop()
    app = private.app(deadline=1)
    add = adder(app)
    unavailable(lambda: add.delay(1, 1))
    unavailable(lambda: app.handle(fresh_id()).state)
    unavailable(lambda: app.handle(fresh_id()).get(timeout=1))
    server.start()
    published = add.delay(2, 2).id
    assert private.ids() == [published]


@pytest.mark.slow
def test_a_server_that_restarts_within_the_deadline_is_not_noticed(
    server: PrivatePostgres, private: Place
) -> None:
    add = adder(private.app(deadline=30))
    published = [add.delay(0, 0).id]
    server.stop()
    thread = threading.Thread(target=lambda: published.append(add.delay(1, 1).id))
    thread.start()
    server.start()
    thread.join(HANG)
    assert not thread.is_alive()
    assert private.ids() == sorted(published)
    assert len(published) == 2


class Proxy:
    """Forwards bytes between a client and PostgreSQL, until it is frozen."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.requests = self.answers = True
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze(self, *, requests: bool = False) -> None:
        """Drop all answers. Requests may still arrive at the server."""
        self.answers, self.requests = False, requests

    def thaw(self) -> None:
        """Forward again. Earlier connections are closed."""
        old, self._sockets = self._sockets, []
        self.answers = self.requests = True
        for one in old:
            one.close()

    def close(self) -> None:
        self.thaw()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            there = socket.create_connection(self._target)
            self._sockets += [here, there]
            for source, sink, name in ((here, there, "requests"), (there, here, "answers")):
                threading.Thread(target=self._pump, args=(source, sink, name), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, name: str) -> None:
        try:
            while data := source.recv(65536):
                if getattr(self, name):
                    sink.sendall(data)
            if getattr(self, name):
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


@pytest.fixture
def proxy(postgres: Place) -> Iterator[Proxy]:
    info = psycopg.conninfo.conninfo_to_dict(POSTGRES)
    proxy = Proxy((str(info["host"]), int(str(info.get("port") or 5432))))
    yield proxy
    proxy.close()


@pytest.fixture
def distant(postgres: Place, proxy: Proxy) -> Iterator[Place]:
    """PostgreSQL behind a proxy that can freeze."""
    info = psycopg.conninfo.conninfo_to_dict(POSTGRES)
    where = f"postgresql://{info['user']}@127.0.0.1:{proxy.port}/{info['dbname']}"
    place = Place("postgres", f"{where}?schema={postgres.schema}", postgres.namespace)
    yield place
    proxy.thaw()
    place.close()


def test_a_half_open_connection_does_not_hang_the_caller(
    postgres: Place, distant: Place, proxy: Proxy
) -> None:
    app = distant.app(deadline=1)
    add = adder(app)
    published = [add.delay(0, 0).id]
    proxy.freeze()
    unavailable(lambda: add.delay(1, 1))
    unavailable(lambda: asyncio.run(add.adelay(1, 1)))
    answer = in_child(lambda: add.delay(1, 1), seconds=BOUND)
    assert answer.startswith("-PublishTimeout"), answer
    proxy.thaw()
    published.append(add.delay(2, 2).id)
    assert postgres.ids() == sorted(published)


def test_a_call_whose_confirmation_was_lost_can_be_repeated_with_its_id(
    postgres: Place, distant: Place, proxy: Proxy
) -> None:
    add = adder(distant.app(deadline=1))
    job = fresh_id()
    add.delay(0, 0)
    proxy.freeze(requests=True)
    unavailable(lambda: add.options(id=job).delay(1, 1))
    until(lambda: job in postgres.ids(), "the message to arrive all the same")
    proxy.thaw()
    assert add.options(id=job).delay(1, 1).id == job
    assert len(postgres.jobs()) == 2


def test_closing_an_application_whose_server_is_silent_does_not_hang(
    distant: Place, proxy: Proxy
) -> None:
    app = distant.app(deadline=1)
    add = adder(app)
    handle = add.delay(0, 0)
    assert handle.state is State.QUEUED
    proxy.freeze()
    begun = time.monotonic()
    app.close()
    assert time.monotonic() - begun < BOUND
    proxy.thaw()
    assert add.delay(1, 1).state is State.QUEUED


def test_a_locked_file_is_unavailable_within_the_deadline_and_works_after(sqlite: Place) -> None:
    app = sqlite.app(deadline=1)
    add = adder(app)
    published = [add.delay(0, 0).id]
    with busy(sqlite):
        assert "locked" in unavailable(lambda: add.delay(1, 1))
        unavailable(lambda: asyncio.run(add.adelay(1, 1)))
        answer = in_child(lambda: add.delay(1, 1), seconds=BOUND)
        assert answer.startswith("-PublishTimeout"), answer
        assert app.handle(published[0]).state is State.QUEUED, "reading goes on"
    published.append(add.delay(2, 2).id)
    assert sqlite.ids() == sorted(published)


def test_callers_that_meet_a_locked_file_do_not_wait_for_one_another(sqlite: Place) -> None:
    add = adder(sqlite.app(deadline=1))

    async def together() -> list[Any]:
        calls = [add.options(unique=f"{n}").adelay(n, n) for n in range(16)]
        return await asyncio.gather(*calls, return_exceptions=True)

    with busy(sqlite):
        begun = time.monotonic()
        answers = in_threads(lambda n: add.options(unique=f"{n}").delay(n, n))
        assert all(isinstance(a, Unavailable) for a in answers), answers
        assert all(isinstance(a, Unavailable) for a in asyncio.run(together()))
        assert time.monotonic() - begun < 2 * BOUND
    assert add.delay(1, 1).state is State.QUEUED


FULL = """
def fill(size):
    kept = []
    from umbel.errors import Unavailable
    @app.task(name="take")
    def take(data: str) -> None: ...
    try:
        for _ in range(1000):
            kept.append(take.delay("x" * size).id)
    except Unavailable as error:
        return kept, str(error)
    raise SystemExit("it never got full")
"""
LIMITED = """
import resource
app = Umbel(sys.argv[1], namespace=sys.argv[2], deadline=0.5, backlog="none")
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, hard))
kept, text = fill(50_000)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
kept.append(app.registry.find("take").delay("after").id)
print(text, *kept, sep="\\n")
"""


def test_a_file_that_may_not_grow_says_so_and_loses_nothing(sqlite: Place) -> None:
    text, *kept = sqlite.script(FULL + LIMITED).splitlines()
    assert sqlite.path in text
    assert "not published within" in text
    assert len(kept) > 2
    assert sqlite.ids() == sorted(kept), "everything confirmed is there, nothing else"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "umbel-test", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, check=False).returncode:
        pytest.skip("not run: a full disk; mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_says_so_loses_nothing_and_works_again_when_there_is_room(
    small_disk: Path,
) -> None:
    path = f"{small_disk}/umbel.db"
    place = Place("sqlite", f"sqlite:///{path}", path=path)
    app = place.app(deadline=0.5)

    @app.task
    def take(data: str) -> None: ...

    kept = [take.delay("first").id]
    ballast = small_disk / "ballast"
    free = shutil.disk_usage(small_disk).free
    ballast.write_bytes(b"x" * (free - 200_000))
    told = ""
    for _ in range(100):
        try:
            kept.append(take.delay("x" * 50_000).id)
        except Unavailable as error:
            told = str(error)
            break
    assert "the disk is full; free some space" in told
    assert app.handle(kept[0]).state is State.QUEUED
    ballast.unlink()
    kept.append(take.delay("x" * 50_000).id)
    assert place.ids() == sorted(kept)
    place.close()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    add = adder(Umbel(f"sqlite:///{tmp_path}/nowhere/umbel.db", deadline=1))
    with pytest.raises(ConfigurationError, match="nowhere does not exist"):
        add.delay(1, 1)


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database " * 1000)
    text = unavailable(lambda: adder(Umbel(f"sqlite:///{path}", deadline=1)).delay(1, 1))
    assert str(path) in text
    assert "not a database" in text


def test_a_database_without_a_schema_says_what_to_run(postgres: Place) -> None:
    from umbel.errors import SchemaError

    url = postgres.url.replace(postgres.schema, "never_migrated")
    app = Umbel(url, deadline=1)
    with pytest.raises(SchemaError, match="umbel db migrate"):
        adder(app).delay(1, 1)
    app.close()


def test_publishing_works_again_after_close(place: Place) -> None:
    app = place.app()
    add = adder(app)
    published = [add.delay(0, 0).id]
    app.close()
    app.close()
    published.append(add.delay(1, 1).id)
    assert place.ids() == sorted(published)


def test_a_database_in_memory_serves_one_process_completely() -> None:
    app = Umbel("sqlite:///:memory:")
    add = adder(app)
    with working(app):
        assert [h.get(HANG) for h in app.publish_many([add.s(n, n) for n in range(5)])] == [
            0,
            2,
            4,
            6,
            8,
        ]
    app.close()


def test_a_sqlite_file_is_shared_by_processes_that_publish_at_once(sqlite: Place) -> None:
    code = "print(*(add.delay(1, n).id for n in range(100)))"
    answers = in_threads(lambda n: sqlite.script(code).split(), 3)
    published = [job for batch in answers for job in batch]  # type: ignore[union-attr]
    assert sqlite.ids() == sorted(published)
    with closing(sqlite3.connect(sqlite.path)) as connection:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
