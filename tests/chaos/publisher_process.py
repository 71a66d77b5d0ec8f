"""A publisher: a process that publishes jobs of every kind until it is stopped or killed.

It logs each call before and after it. So after a kill at any time, each job is known to be
published, known not to be published, or unknown.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import sqlite3
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import release

from chaos import work
from chaos.event_log import EventLog
from umbel import Signature, Unique
from umbel.errors import DuplicateJob, UmbelError, Unavailable

STORE = os.environ.get("UMBEL_STORE") or os.environ["UMBEL_URL"]
TRANSACTIONAL = not STORE.startswith("redis")
event_log = EventLog(Path(os.environ["CHAOS_EVENT_LOG"]), "publisher-")

Draw = tuple[str, Signature[Any]]


class Stop(BaseException):
    """SIGTERM."""


def draw(pick: random.Random, job: str, poison: bool) -> Draw:
    """Return one call, of a kind chosen by weight, with an id that is known in advance."""
    if poison:
        return "poison", work.poison.options(id=job).s()
    kind, make, _ = pick.choices(KINDS, [weight for _, _, weight in KINDS])[0]
    return kind, make(pick, job)


def _short(pick: random.Random) -> float:
    return pick.uniform(0.01, 0.3)


def _alone(pick: random.Random, job: str) -> Signature[Any]:
    conflict: Any = pick.choice(["raise", "return", "replace"])
    unique = Unique(f"key-{pick.randrange(4)}", on_conflict=conflict)
    return work.alone.options(id=job, unique=unique).s(pick.uniform(0.1, 1.0))


Make = Callable[[random.Random, str], Signature[Any]]
KINDS: list[tuple[str, Make, float]] = [
    ("coroutine", lambda p, i: work.coroutine.options(id=i).s(_short(p)), 24),
    ("thread", lambda p, i: work.thread.options(id=i).s(_short(p)), 14),
    ("long", lambda p, i: work.coroutine.options(id=i).s(p.uniform(3, 6)), 6),
    ("long thread", lambda p, i: work.thread.options(id=i).s(p.uniform(3, 6)), 2),
    ("urgent", lambda p, i: work.coroutine.options(id=i, priority=9).s(_short(p)), 5),
    ("delayed", lambda p, i: work.coroutine.options(id=i, delay=p.uniform(0.3, 4)).s(0.02), 9),
    ("other queue", lambda p, i: work.thread.options(id=i, queue="other").s(_short(p)), 6),
    ("unique", _alone, 10),
    ("fails twice", lambda p, i: work.fails_twice.options(id=i).s(), 6),
    ("fails", lambda p, i: work.fails.options(id=i).s(), 3),
    ("snoozes", lambda p, i: work.snoozes.options(id=i).s(), 4),
    ("expires", lambda p, i: work.coroutine.options(id=i, expires=p.uniform(0.2, 3)).s(0.05), 8),
    ("interruptible", lambda p, i: work.interruptible.options(id=i).s(p.uniform(0.5, 3)), 4),
    ("forgotten", lambda p, i: work.forgotten.options(id=i).s(_short(p)), 4),
    ("fragile", lambda p, i: work.fragile.options(id=i).s(_short(p)), 3),
    ("changed", lambda p, i: release.changed.options(id=i).s(p.randrange(9), "blue"), 3),
    ("unchanged", lambda p, i: release.changed.options(id=i).s(p.randrange(9)), 3),
    ("only new", lambda p, i: release.only_new.options(id=i).s(), 3),
]


def publish(pick: random.Random, *, poison: bool = False) -> None:
    job = str(uuid.UUID(int=pick.getrandbits(128), version=4))
    kind, call = draw(pick, job, poison)
    within = pick.random() < 0.25 and TRANSACTIONAL
    began = time.time()
    expires, delay = call.call_options.expires, call.call_options.delay
    event_log.write(
        "meant",
        job=job,
        kind=kind,
        note="in a transaction" if within else "",
        until=None if expires is None else began + float(expires),  # type: ignore[arg-type]
        due=None if delay is None else began + delay,
    )
    try:
        if within:
            what = publish_within(pick, job, call)
        else:
            what = "published" if call.delay().id == job else "not published"
    except DuplicateJob:
        what = "not published"
    except Unavailable:
        what = _again(pick, job, call) if not within and kind != "unique" else "unsure"
    except (sqlite3.Error, psycopg.Error):
        what = "unsure"
    event_log.write(what, job=job, kind=kind)


def _again(pick: random.Random, job: str, call: Signature[Any]) -> str:
    """Sometimes publish a job again whose state is unknown. With the same id it stays one job."""
    if pick.random() < 0.5:
        return "unsure"
    try:
        call.delay()
    except Unavailable:
        return "unsure"
    return "published"


def publish_within(pick: random.Random, job: str, call: Signature[Any]) -> str:
    """Publish in one transaction with a row of the caller, then commit or roll back."""
    commits = pick.random() < 0.6
    with closing(_connect()) as connection:
        mark = "?" if isinstance(connection, sqlite3.Connection) else "%s"
        table = "business" if mark == "?" else "chaos.business"
        connection.execute(f"insert into {table} (id) values ({mark})", (job,))
        changed = call.task.options(**_chosen(call), connection=connection)
        mine = changed.s(*call.args, **call.kwargs).delay().id == job
        time.sleep(pick.uniform(0, 0.05))
        if not mine or not commits:
            connection.rollback()
            return "rolled back"
        connection.commit()
        return "committed"


def _chosen(call: Signature[Any]) -> dict[str, Any]:
    names = ("id", "queue", "priority", "delay", "expires", "unique")
    chosen = {name: getattr(call.call_options, name) for name in names}
    return {name: value for name, value in chosen.items() if value is not None}


def _connect() -> Any:
    if STORE.startswith("sqlite"):
        return sqlite3.connect(STORE.removeprefix("sqlite:///"), timeout=5)
    return psycopg.connect(
        STORE, connect_timeout=3, options="-c idle_in_transaction_session_timeout=5s"
    )


def _stop(*_: object) -> None:
    raise Stop


def _publish_in_handler(pick: random.Random) -> Callable[..., None]:
    """Return a signal handler that publishes, whatever its thread is doing."""

    def handle(*_: object) -> None:
        job = str(uuid.UUID(int=pick.getrandbits(128), version=4))
        event_log.write("meant", job=job, kind="coroutine", note="in a signal handler")
        try:
            call = work.coroutine.options(id=job).s(0.01)
            what = "published" if call.delay().id == job else "not published"
        except Unavailable:
            what = "unsure"
        except UmbelError as error:
            event_log.write("odd", note=repr(error))
            what = "unsure"
        event_log.write(what, job=job, kind="coroutine")

    return handle


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", required=True)
    parser.add_argument(
        "--poison", type=int, default=0, help="the number of the job that is poison"
    )
    options = parser.parse_args()
    pick = random.Random(options.seed)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGALRM, _publish_in_handler(random.Random(f"{options.seed}-handler")))
    try:
        for number in itertools.count(1):
            if pick.random() < 0.3:
                signal.setitimer(signal.ITIMER_REAL, pick.uniform(0.0001, 0.01))
            try:
                publish(pick, poison=number == options.poison)
            except UmbelError as error:
                event_log.write("odd", note=repr(error))
            time.sleep(pick.uniform(0.01, 0.09))
    except Stop:
        pass
    finally:
        for number in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        release.app.close()


if __name__ == "__main__":
    main()
