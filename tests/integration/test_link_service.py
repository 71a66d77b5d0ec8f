"""Processes that serve links: routers, publisher daemons, workers; TLS, and foreign clients."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("proton", reason="not run: links; Qpid Proton is not installed")
from integration.conftest import HANG, Place
from integration.link_peers import Certificates, command_attributes, task_named, with_tasks
from integration.running import Proxy, until
from umbel import Retry, Umbel, step
from umbel.app.link_service import LinkService
from umbel.backends.amqp.address import AmqpAddress
from umbel.backends.amqp.connections import Connection, connect
from umbel.backends.amqp.engine import SendingLink
from umbel.backends.amqp.message_codec import AmqpMessage, decode, encode
from umbel.errors import (
    ConfigurationError,
    DuplicateJob,
    MessageTooLarge,
    NotAllowed,
    PublishTimeout,
    Unavailable,
    UnknownJob,
)
from umbel.messages import State, fresh_id
from umbel.messages.wire import MEDIA_TYPE
from umbel.telemetry import events

HERE = "umbel+tcp://127.0.0.1:0"


class Served:
    """A service in another thread, as if in another process."""

    def __init__(self, app: Umbel, listen: str = HERE, *, kind: str = "router", **how: Any) -> None:
        self.app = app
        self._make = lambda: getattr(app, kind)(listen, **how)
        self._loop = asyncio.new_event_loop()
        self._service: LinkService | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self.address = ""
        self.heard: list[events.Event] = []
        app.telemetry.subscribe(self.heard.append)
        self._thread.start()
        assert self._started.wait(30)

    def url(self, scheme: str = "umbel+tcp", query: str = "") -> str:
        where = f"/{self.address}" if scheme == "umbel+unix" else self.address
        return f"{scheme}://{where}{query}"

    def client(self, **settings: Any) -> Umbel:
        return with_tasks(Umbel(self.url(), deadline=15.0, backlog="none", **settings))

    def stop(self) -> None:
        if self._service is not None:
            self._loop.call_soon_threadsafe(self._service.stop)
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        async def main() -> None:
            self._service = self._make()
            running = asyncio.create_task(self._service.run())
            self.address = await self._service.address
            self._started.set()
            await running

        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(main())


@pytest.fixture
def served(sqlite: Place) -> Iterator[Served]:
    served = Served(sqlite.app())
    yield served
    served.stop()


@asynccontextmanager
async def working(app: Umbel) -> AsyncIterator[None]:
    worker = app.worker()
    running = asyncio.create_task(worker.run())
    started = asyncio.create_task(worker.started.wait())
    await asyncio.wait([running, started], return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        started.cancel()
        running.result()
    try:
        yield
    finally:
        worker.stop()
        await running


# --- what a router serves ------------------------------------------------------------------


def test_a_worker_and_a_publisher_without_credentials_work_through_a_router(
    served: Served,
) -> None:
    app = served.client()

    async def main() -> list[int]:
        async with working(app):
            handles = await app.apublish_many([task_named(app, "add").s(i, i) for i in range(50)])
            return [await handle for handle in handles]

    assert asyncio.run(main()) == [2 * i for i in range(50)]
    app.close()


def test_a_router_schedules_for_the_workers_behind_it(sqlite: Place) -> None:
    def with_schedule(app: Umbel) -> Umbel:
        app.schedule("often", task_named(app, "add").s(1, 2), every=1, overlap="allow")
        return app

    served = Served(with_schedule(with_tasks(sqlite.app())))
    app = with_schedule(served.client())

    async def main() -> list[State | None]:
        operations = served.app.operations()
        ended: list[State | None] = []
        async with working(app), asyncio.timeout(60):
            while State.SUCCEEDED not in ended:
                await asyncio.sleep(0.05)
                known = {one.name for one in await operations.schedules.all()}
                lines = await operations.schedules.history("often") if "often" in known else []
                ended = [line.state for line in lines]
        await operations.close()
        return ended

    assert State.SUCCEEDED in asyncio.run(main())
    elected = [one for one in served.heard if isinstance(one, events.SchedulerElected)]
    assert [one.scheduler.partition(" ")[0] for one in elected] == ["router"]
    app.close()
    served.stop()


def test_steps_are_stored_over_a_link_and_held_calls_published(
    served: Served, sqlite: Place
) -> None:
    app, calls = served.client(), []

    def fetch(n: int) -> int:
        calls.append(n)
        return n

    @app.task(name="stepwise", retry=Retry(2, first=0.01), interruptible=True, publishing="held")
    def stepwise() -> list[Any]:
        found: list[Any] = [
            step(fetch, 1),
            step(fetch, 2),
            task_named(app, "echo").delay("later").id,
        ]
        if len(calls) < 3:
            calls.append(0)
            raise ValueError
        return found

    async def main() -> list[Any]:
        async with working(app):
            *found, later = await (await stepwise.adelay())
            return [*found, await app.handle(later)]

    assert asyncio.run(main()) == [1, 2, "later"]
    assert calls == [1, 2, 0]
    [job] = [one for one in sqlite.jobs() if one.task == "stepwise"]
    assert len(sqlite.ask(lambda operations: operations.steps(job.id))) == 2
    app.close()


def test_a_transaction_of_a_step_needs_the_databases_own_url(served: Served) -> None:
    app = served.client()

    @app.task(name="transactional", retry=0)
    def transactional(own: bool) -> None:
        if own:
            step.using("a connection").transaction(str)
        step.transaction(str)

    async def main(own: bool) -> None:
        async with working(app):
            await (await transactional.adelay(own))

    for own in (False, True):
        with pytest.raises(ConfigurationError, match=r"over a link .* database's own URL.*step\("):
            asyncio.run(main(own))
    app.close()


def test_errors_of_the_other_side_arrive_as_what_they_are(served: Served) -> None:
    from umbel import Unique

    with closing(served.client()) as app:
        add = task_named(app, "add")
        first = add.options(unique="one").delay(1, 2)
        with pytest.raises(DuplicateJob) as caught:
            add.options(unique="one").delay(1, 2)
        assert (caught.value.key, caught.value.existing) == ("one", first.id)
        again = add.options(unique=Unique("one", on_conflict="return")).delay(1, 2)
        assert again.id == first.id
        with pytest.raises(UnknownJob):
            app.handle(fresh_id()).state  # noqa: B018 - asking is the point
        assert first.cancel()


def test_the_other_sides_limit_holds(sqlite: Place) -> None:
    served = Served(sqlite.app(max_message=2000))
    try:
        with closing(served.client()) as app, pytest.raises(MessageTooLarge, match="2,000"):
            task_named(app, "echo").delay("x" * 5000)
    finally:
        served.stop()


def test_the_namespace_is_the_routers_own(served: Served, sqlite: Place) -> None:
    with closing(served.client(namespace="somebody-elses")) as app:
        job = task_named(app, "add").delay(1, 2)
    assert [record.id for record in sqlite.jobs()] == [job.id]


def test_operators_are_refused_unless_the_router_lets_them(sqlite: Place) -> None:
    async def depths(app: Umbel) -> Any:
        operations = app.operations()
        try:
            return await operations.queues()
        finally:
            await operations.close()

    for operate in (False, True):
        served = Served(sqlite.app(), operate=operate)
        try:
            with closing(served.client()) as app:
                if operate:
                    assert asyncio.run(depths(app)) == []
                else:
                    with pytest.raises(NotAllowed, match="--operate"):
                        asyncio.run(depths(app))
        finally:
            served.stop()


def test_a_publisher_serves_no_workers(sqlite: Place) -> None:
    served = Served(sqlite.app(), kind="publisher")
    try:
        with closing(served.client()) as app:
            job = task_named(app, "add").delay(1, 2)
            assert [record.id for record in sqlite.jobs()] == [job.id]

            async def work() -> None:
                async with working(app):
                    pass

            with pytest.raises(Unavailable, match="nothing at this address"):
                asyncio.run(work())
    finally:
        served.stop()


def test_a_transaction_of_the_callers_own_is_refused_with_the_remedy(
    served: Served, sqlite: Place
) -> None:
    with (
        closing(served.client()) as app,
        closing(sqlite.connect()) as connection,
        pytest.raises(ConfigurationError, match="database's own URL"),
    ):
        task_named(app, "add").options(connection=connection).delay(1, 2)


def test_a_server_that_goes_away_is_an_error_in_time_and_its_return_is_noticed(
    sqlite: Place, tmp_path: Path
) -> None:
    listen = f"umbel+unix://{tmp_path}/s"
    served = Served(sqlite.app(), listen)
    app = with_tasks(Umbel(listen, deadline=0.5, backlog="none"))
    with closing(app):
        task_named(app, "add").delay(1, 2)
        served.stop()
        with pytest.raises(PublishTimeout, match="cannot be reached"):
            task_named(app, "add").delay(3, 4)
        again = Served(sqlite.app(), listen)
        try:
            task_named(app, "add").delay(5, 6)
        finally:
            again.stop()
    assert len(sqlite.jobs()) == 2


def test_a_link_works_in_a_forked_child(served: Served, sqlite: Place) -> None:
    with closing(served.client()) as app:
        task_named(app, "add").delay(1, 2)
        child = os.fork()
        if not child:
            try:
                task_named(app, "add").delay(3, 4)
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        task_named(app, "add").delay(5, 6)
    assert len(sqlite.jobs()) == 3


# --- actors --------------------------------------------------------------------------------


def test_a_worker_is_called_directly_as_an_actor_with_no_broker() -> None:
    async def main() -> tuple[int, str]:
        actor = with_tasks(Umbel("sqlite:///:memory:"))
        service = actor.publisher(HERE)
        serving = asyncio.create_task(service.run())
        caller = with_tasks(Umbel(f"umbel+tcp://{await service.address}", backlog="none"))
        async with working(actor):
            result = await (await task_named(caller, "add").adelay(20, 22))
            try:
                await (await task_named(caller, "fail").adelay())
            except ValueError as error:
                failure = str(error)
        service.stop()
        await serving
        await asyncio.to_thread(caller.close)
        actor.close()
        return result, failure

    assert asyncio.run(main()) == (42, "no luck")


# --- strangers -----------------------------------------------------------------------------


async def deliver(connection: Connection, link: SendingLink, messages: list[bytes]) -> list[str]:
    """Send messages; return the outcome of each: empty if it was accepted, else the reason."""
    outcomes: list[str] = []
    for message in messages:
        link.send(message, outcomes.append)
    assert await connection.wait_until(lambda: len(outcomes) == len(messages), HANG)
    return outcomes


async def ask(url: str, *posts: AmqpMessage) -> list[str]:
    """Return the answers of the node for commands to these messages."""
    connection = await connect(AmqpAddress(url))
    try:
        return await deliver(
            connection, connection.open_sender("commands"), [encode(post) for post in posts]
        )
    finally:
        await connection.close()


def test_a_foreign_client_publishes_in_binary_and_in_structured_mode(
    served: Served, sqlite: Place
) -> None:
    import msgspec

    binary = AmqpMessage(
        body=b'{"args": [1, 2]}', content_type="application/json", attributes=command_attributes()
    )
    event = command_attributes() | {"data": {"args": [3, 4]}}
    structured = AmqpMessage(body=msgspec.json.encode(event), content_type=MEDIA_TYPE)
    assert asyncio.run(ask(served.url(), binary, structured)) == ["", ""]
    assert len(sqlite.jobs()) == 2


@pytest.mark.parametrize(
    ("post", "field"),
    [
        (AmqpMessage(body=b"no JSON"), "body"),
        (AmqpMessage(body=b"{}", attributes={"specversion": "1.0"}), "source"),
        (AmqpMessage(body=b"{}", attributes=command_attributes(id="7")), "id"),
        (AmqpMessage(body=b"{}", attributes=command_attributes(type="umbel.document")), "type"),
        (AmqpMessage(body=b"x" * 2_000_000, attributes=command_attributes()), "2,000,000"),
    ],
)
def test_a_message_that_is_no_command_is_rejected_with_the_field(
    served: Served, sqlite: Place, post: AmqpMessage, field: str
) -> None:
    (reason,) = asyncio.run(ask(served.url(), post))
    assert field in reason
    assert sqlite.jobs() == []


def test_a_foreign_client_gets_the_outcome_of_its_job(sqlite: Place) -> None:
    app = with_tasks(sqlite.app())

    async def main() -> list[AmqpMessage]:
        service = app.publisher(HERE)
        serving = asyncio.create_task(service.run())
        connection = await connect(AmqpAddress(f"umbel+tcp://{await service.address}"))
        heard: asyncio.Queue[AmqpMessage] = asyncio.Queue()

        def received(link: Any, token: Any, data: bytes) -> None:
            link.settle(token)
            heard.put_nowait(decode(data))

        inbox = await connection.open_reply_receiver(received, 10, 1_000_000)
        sender = connection.open_sender("commands")
        asked = [("add", b'{"args": [20, 22]}'), ("fail", b"{}")]
        async with working(app):
            for task, body in asked:
                post = AmqpMessage(
                    body=body,
                    attributes=command_attributes(task),
                    reply_to=inbox.address,
                    correlation=task,
                )
                assert await deliver(connection, sender, [encode(post)]) == [""]
            found = [await asyncio.wait_for(heard.get(), 30) for _ in asked]
        await connection.close()
        service.stop()
        await serving
        return sorted(found, key=lambda post: post.correlation)

    succeeded, failed = asyncio.run(main())
    assert (succeeded.body, succeeded.attributes["state"]) == (b"42", "succeeded")
    assert succeeded.attributes["type"] == "umbel.document"
    assert failed.attributes["state"] == "buried"
    assert b"no luck" in failed.body


def test_a_foreign_client_gets_the_outcome_of_a_job_from_the_backlog(
    distant: Place, proxy: Proxy, tmp_path: Path
) -> None:
    app = with_tasks(distant.app(backlog=f"sqlite:///{tmp_path}/backlog.db", deadline=1.0))

    async def main() -> AmqpMessage:
        service = app.publisher(HERE)
        serving = asyncio.create_task(service.run())
        connection = await connect(AmqpAddress(f"umbel+tcp://{await service.address}"))
        heard: asyncio.Queue[AmqpMessage] = asyncio.Queue()
        inbox = await connection.open_reply_receiver(
            lambda _, __, data: heard.put_nowait(decode(data)), 10, 9999
        )
        await asyncio.to_thread(proxy.cut)
        asked = AmqpMessage(
            body=b'{"args": [20, 22]}', attributes=command_attributes(), reply_to=inbox.address
        )
        (reason,) = await deliver(connection, connection.open_sender("commands"), [encode(asked)])
        assert reason == "", "it is durable in the backlog"
        await asyncio.to_thread(proxy.mend)
        async with working(app):
            found = await asyncio.wait_for(heard.get(), 30)
        await connection.close()
        service.stop()
        await serving
        return found

    assert asyncio.run(main()).body == b"42"


@pytest.mark.parametrize("kind", ["publisher", "router"])
def test_a_process_that_serves_links_publishes_the_backlog_of_an_earlier_one_as_soon_as_it_starts(
    distant: Place, proxy: Proxy, tmp_path: Path, kind: str
) -> None:
    settings: dict[str, Any] = {"backlog": f"sqlite:///{tmp_path}/backlog.db", "deadline": 1.0}
    before = with_tasks(distant.app(**settings))
    proxy.cut()
    kept = task_named(before, "add").delay(20, 22)
    before.close()
    proxy.mend()
    served = Served(with_tasks(distant.app(**settings)), kind=kind)
    try:
        until(lambda: kept.id in distant.ids(), "what was kept")
    finally:
        served.stop()


def test_garbage_on_the_socket_is_refused_and_reported_once(served: Served, sqlite: Place) -> None:
    host, port = served.address.split(":")
    with closing(served.client()) as app:
        task_named(app, "add").delay(1, 2)
        for junk in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x00" * 100,
            b"AMQP\x00\x01\x00\x00" + b"\xff" * 64,
        ):
            with closing(socket.create_connection((host, int(port)), 10)) as stranger:
                stranger.settimeout(10)
                stranger.sendall(junk)
                while stranger.recv(4096):
                    pass
        task_named(app, "add").delay(3, 4)
    assert len(sqlite.jobs()) == 2
    assert len(_refused(served)) == 3


def test_an_address_that_is_taken_is_an_error_that_says_so(served: Served, sqlite: Place) -> None:
    async def main() -> None:
        await sqlite.app().router(served.url()).run()

    with pytest.raises(Unavailable, match="cannot listen at"):
        asyncio.run(main())


# --- who is there --------------------------------------------------------------------------


def test_with_tls_both_ends_prove_who_they_are(sqlite: Place, tmp_path: Path) -> None:
    ours, theirs = Certificates(tmp_path / "ours"), Certificates(tmp_path / "theirs")
    served = Served(sqlite.app(), f"umbel://127.0.0.1:0{ours.query('router')}")
    try:
        good = with_tasks(Umbel(served.url("umbel", ours.query("worker")), backlog="none"))
        with closing(good):
            task_named(good, "add").delay(1, 2)
        # One that does not trust the router, and one that the router does not trust.
        for query in (ours.query("worker", theirs), theirs.query("worker", ours)):
            stranger = with_tasks(Umbel(served.url("umbel", query), deadline=2.0, backlog="none"))
            with closing(stranger), pytest.raises(PublishTimeout):
                task_named(stranger, "add").delay(3, 4)
        with pytest.raises(PublishTimeout):  # one that speaks no TLS at all
            task_named(with_tasks(Umbel(served.url(), deadline=1.0, backlog="none")), "add").delay(
                1, 2
            )
    finally:
        served.stop()
    assert len(sqlite.jobs()) == 1


@pytest.mark.parametrize(
    ("fault", "remedy"),
    [
        ("no certificate", "give the peer a certificate of the authority in this server's cafile"),
        ("foreign certificate", "give the peer a certificate of the authority in this server's"),
        ("foreign authority", "give the peer the authority of this server's certificate"),
        ("no TLS", "connect with the scheme umbel://"),
    ],
)
def test_an_untrusted_peer_is_refused_and_reported_once_with_its_address_and_the_remedy(
    sqlite: Place, tmp_path: Path, fault: str, remedy: str
) -> None:
    ours, theirs = Certificates(tmp_path / "ours"), Certificates(tmp_path / "theirs")
    served = Served(sqlite.app(), f"umbel://127.0.0.1:0{ours.query('router')}")
    host, port = served.address.split(":")
    trusted = theirs if fault == "foreign authority" else ours
    context = None if fault == "no TLS" else trusted.client_context()
    if fault == "foreign certificate":
        assert context is not None
        theirs.present("worker", context)
    try:
        with socket.create_connection((host, int(port)), 10) as plain:
            address = f"127.0.0.1:{plain.getsockname()[1]}"
            assert _answer(context, plain) == b"", "it was let in"
        until(lambda: _refused(served), "the report")
    finally:
        served.stop()
    (event,) = _refused(served)
    assert event.peer == address
    assert event.remedy.startswith(remedy)
    assert event.error


def _refused(served: Served) -> list[events.PeerRefused]:
    return [event for event in served.heard if isinstance(event, events.PeerRefused)]


def _answer(context: ssl.SSLContext | None, plain: socket.socket) -> bytes:
    """Return a server's answer to the first bytes of the protocol; empty if it disconnects."""
    try:
        secured = context.wrap_socket(plain, server_hostname="127.0.0.1") if context else plain
        with secured:
            secured.sendall(b"AMQP\x00\x01\x00\x00")
            return secured.recv(100)
    except (ssl.SSLError, ConnectionError):
        return b""


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("umbel+tcp://10.0.0.1:5680", "umbel://"),
        ("umbel://host:5680", "certfile"),
        ("umbel+unix://x", "three slashes"),
        ("umbel+tcp://127.0.0.1:99999", "port"),
        ("umbel+tcp://127.0.0.1:1?colour=red", "colour"),
        ("umbel+tcp://127.0.0.1:1?cafile=x", "TLS"),
    ],
)
def test_a_wrong_address_is_an_error_that_names_the_part(url: str, names: str) -> None:
    with pytest.raises(ConfigurationError, match=names):
        Umbel(url)


def test_a_link_server_cannot_use_a_link_as_its_broker(served: Served) -> None:
    async def main() -> None:
        served.client().router(HERE)

    with pytest.raises(ConfigurationError, match="broker itself"):
        asyncio.run(main())


def test_a_worker_on_a_link_leaves_jobs_of_a_task_that_it_does_not_have(served: Served) -> None:
    old = Umbel(served.url(), deadline=15.0, backlog="none")
    missing: list[events.Event] = []
    old.telemetry.subscribe(missing.append)

    @old.task(name="other")
    async def other() -> None: ...

    async def main() -> list[int]:
        with closing(old), closing(served.client()) as new:
            async with working(old):
                handles = [await task_named(new, "add").adelay(n, 1) for n in range(5)]
                while not any(isinstance(event, events.TaskMissing) for event in missing):
                    await asyncio.sleep(0.01)
                async with working(new):
                    return [await handle for handle in handles]

    assert asyncio.run(main()) == [1, 2, 3, 4, 5]
