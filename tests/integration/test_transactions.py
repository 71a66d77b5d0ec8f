"""Publishing in the caller's transaction: it takes effect with the commit and never ends it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from servers import PrivatePostgres
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from integration.conftest import HANG, PATIENCE, POSTGRES, Place, working
from umbel import Retry, State, Umbel, Unique, current, step
from umbel.backends.sqlite.log_watch import LogWatch, touch
from umbel.errors import ConfigurationError, DuplicateJob, SchemaError, UmbelError, UnknownJob
from umbel.messages import fresh_id


def adder(app: Umbel) -> Any:
    @app.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    return add


# --- every kind of connection -----------------------------------------------------------------


@contextmanager
def of_the_driver(place: Place) -> Iterator[Any]:
    with closing(place.connect()) as connection:
        yield connection


@contextmanager
def engine_of(place: Place) -> Iterator[sa.Engine]:
    engine = sa.create_engine(place.sqlalchemy_url, poolclass=NullPool)
    yield engine
    engine.dispose()


@contextmanager
def of_sqlalchemy(place: Place) -> Iterator[Any]:
    with engine_of(place) as engine, engine.connect() as connection:
        yield connection


@contextmanager
def session_of_sqlalchemy(place: Place) -> Iterator[Any]:
    with engine_of(place) as engine, Session(engine) as session:
        yield session


class OurSession(Session):
    """A subclass of a session, as applications and SQLModel have."""


@contextmanager
def own_session_of_sqlalchemy(place: Place) -> Iterator[Any]:
    with engine_of(place) as engine, OurSession(engine) as session:
        yield session


@contextmanager
def scoped_session_of_sqlalchemy(place: Place) -> Iterator[Any]:
    with engine_of(place) as engine:
        session = scoped_session(sessionmaker(engine))
        yield session
        session.remove()


@contextmanager
def of_django(place: Place) -> Iterator[Any]:
    django = pytest.importorskip("django", reason="not run: Django is not installed")
    from django.conf import settings
    from django.db.utils import ConnectionHandler

    if not settings.configured:
        settings.configure(USE_TZ=True, LOGGING_CONFIG=None)
        django.setup()
    connection = ConnectionHandler({"default": django_settings(place)})["default"]
    connection.set_autocommit(False)
    try:
        yield connection
    finally:
        connection.rollback()
        connection.close()


def django_settings(place: Place) -> dict[str, Any]:
    where: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": place.path}
    if place.kind == "postgres":
        info = psycopg.conninfo.conninfo_to_dict(place.url.partition("?")[0])
        where = {"ENGINE": "django.db.backends.postgresql", "NAME": info["dbname"]}
        where |= {"USER": info["user"], "HOST": info["host"], "PORT": info.get("port", "")}
    return where


@contextmanager
def of_psycopg2(place: Place) -> Iterator[Any]:
    library = _psycopg2(place)
    with closing(library.connect(place.url.partition("?")[0])) as connection:
        yield connection


@contextmanager
def session_on_psycopg2(place: Place) -> Iterator[Any]:
    _psycopg2(place)
    url = place.sqlalchemy_url.replace("+psycopg:", "+psycopg2:")
    engine = sa.create_engine(url, poolclass=NullPool)
    with Session(engine) as session:
        yield session
    engine.dispose()


def _psycopg2(place: Place) -> Any:
    if place.kind == "sqlite":
        pytest.skip("psycopg2 is for PostgreSQL")
    return pytest.importorskip("psycopg2", reason="not run: psycopg2 is not installed")


SYNC: dict[str, Callable[[Place], Any]] = {
    "django": of_django,
    "psycopg2": of_psycopg2,
    "session on psycopg2": session_on_psycopg2,
    "driver": of_the_driver,
    "sqlalchemy connection": of_sqlalchemy,
    "sqlalchemy session": session_of_sqlalchemy,
    "own session class": own_session_of_sqlalchemy,
    "scoped session": scoped_session_of_sqlalchemy,
}


@asynccontextmanager
async def of_async_psycopg(place: Place) -> AsyncIterator[Any]:
    connection = await psycopg.AsyncConnection.connect(place.url.partition("?")[0])
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def async_engine_of(place: Place) -> AsyncIterator[Any]:
    pytest.importorskip("greenlet", reason="not run: SQLAlchemy's asyncio needs greenlet")
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(place.sqlalchemy_url, poolclass=NullPool)
    yield engine
    await engine.dispose()


@asynccontextmanager
async def of_async_sqlalchemy(place: Place) -> AsyncIterator[Any]:
    async with async_engine_of(place) as engine, engine.connect() as connection:
        yield connection


@asynccontextmanager
async def session_of_async_sqlalchemy(place: Place) -> AsyncIterator[Any]:
    async with async_engine_of(place) as engine:
        from sqlalchemy.ext.asyncio import AsyncSession

        async with AsyncSession(engine) as session:
            yield session


@asynccontextmanager
async def own_session_of_async_sqlalchemy(place: Place) -> AsyncIterator[Any]:
    async with async_engine_of(place) as engine:
        from sqlalchemy.ext.asyncio import AsyncSession

        class OurAsyncSession(AsyncSession):
            """A subclass of a session, as applications and SQLModel have."""

        async with OurAsyncSession(engine) as session:
            yield session


@asynccontextmanager
async def of_asyncpg(place: Place) -> AsyncIterator[Any]:
    library = pytest.importorskip("asyncpg", reason="not run: asyncpg is not installed")
    url = place.url.partition("?")[0]
    connection = await library.connect(url, connection_class=_by_hand(library))
    await connection.execute("begin")
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def of_a_pool_of_asyncpg(place: Place) -> AsyncIterator[Any]:
    library = pytest.importorskip("asyncpg", reason="not run: asyncpg is not installed")
    url = place.url.partition("?")[0]
    async with (
        library.create_pool(url, connection_class=_by_hand(library), min_size=1) as pool,
        pool.acquire() as connection,
    ):
        await connection.execute("begin")
        yield connection


def _by_hand(library: Any) -> Any:
    class ByHand(library.Connection):  # type: ignore[misc]
        """A connection of asyncpg with ``commit`` and ``rollback``, as other drivers have."""

        async def commit(self) -> None:
            await self.execute("commit")
            await self.execute("begin")

        async def rollback(self) -> None:
            await self.execute("rollback")
            await self.execute("begin")

    return ByHand


@asynccontextmanager
async def session_on_asyncpg(place: Place) -> AsyncIterator[Any]:
    pytest.importorskip("greenlet", reason="not run: SQLAlchemy's asyncio needs greenlet")
    pytest.importorskip("asyncpg", reason="not run: asyncpg is not installed")
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    url = place.sqlalchemy_url.replace("+psycopg:", "+asyncpg:")
    engine = create_async_engine(url, poolclass=NullPool)
    async with AsyncSession(engine) as session:
        yield session
    await engine.dispose()


ASYNC: dict[str, Callable[[Place], Any]] = {
    "asyncpg": of_asyncpg,
    "pool of asyncpg": of_a_pool_of_asyncpg,
    "session on asyncpg": session_on_asyncpg,
    "psycopg": of_async_psycopg,
    "sqlalchemy connection": of_async_sqlalchemy,
    "sqlalchemy session": session_of_async_sqlalchemy,
    "own session class": own_session_of_async_sqlalchemy,
}


@pytest.fixture(params=SYNC.values(), ids=SYNC)
def opened(request: pytest.FixtureRequest, place: Place) -> Iterator[Any]:
    """Open a new connection of the caller, of each kind, on each store."""
    with request.param(place) as connection:
        yield connection


@pytest.fixture(params=ASYNC.values(), ids=ASYNC)
def aopened(request: pytest.FixtureRequest, postgres: Place) -> Any:
    return lambda: request.param(postgres)


def own_write(connection: Any, text: str) -> None:
    """Run SQL of the caller in the same transaction."""
    if not hasattr(connection, "execute"):  # of psycopg2 or Django
        with connection.cursor() as cursor:
            cursor.execute(text)
        return
    is_driver = isinstance(connection, sqlite3.Connection | psycopg.Connection)
    connection.execute(text if is_driver else sa.text(text))


# --- its fate is the transaction's ------------------------------------------------------------


def test_rollback_publishes_nothing(place: Place, opened: Any) -> None:
    handle = adder(place.app()).options(connection=opened).delay(1, 2)
    opened.rollback()
    assert place.jobs() == []
    with pytest.raises(UnknownJob, match=handle.id):
        _ = handle.state
    with pytest.raises(UnknownJob):
        handle.get(timeout=1)


def test_commit_publishes_once_and_the_id_was_known_before(place: Place, opened: Any) -> None:
    handle = adder(place.app()).options(connection=opened).delay(1, 2)
    assert place.jobs() == [], "seen before the commit"
    opened.commit()
    assert place.ids() == [handle.id]
    assert handle.state is State.QUEUED


def test_nothing_is_committed_for_the_caller(place: Place, opened: Any) -> None:
    add = adder(place.app())
    name = f"theirs_{fresh_id()[-12:]}"
    own_write(opened, f"create table {name} (x integer)")
    opened.commit()
    own_write(opened, f"insert into {name} values (1)")
    for number in range(3):
        add.options(connection=opened).delay(number, number)
    with closing(place.connect()) as other:
        assert other.execute(f"select count(*) from {name}").fetchone() == (0,)
    opened.rollback()
    with closing(place.connect()) as other:
        assert other.execute(f"select count(*) from {name}").fetchone() == (0,)
    assert place.jobs() == []
    own_write(opened, f"drop table {name}")
    opened.commit()


def test_the_callers_own_writes_and_the_job_are_committed_together(
    place: Place, opened: Any
) -> None:
    add = adder(place.app())
    name = f"theirs_{fresh_id()[-12:]}"
    own_write(opened, f"create table {name} (x integer)")
    own_write(opened, f"insert into {name} values (1)")
    handle = add.options(connection=opened).delay(1, 1)
    own_write(opened, f"insert into {name} values (2)")
    opened.commit()
    with closing(place.connect()) as other:
        assert other.execute(f"select count(*) from {name}").fetchone() == (2,)
    assert place.ids() == [handle.id]
    own_write(opened, f"drop table {name}")
    opened.commit()


def test_a_transaction_that_ends_in_an_error_publishes_nothing(place: Place) -> None:
    add = adder(place.app())

    def act() -> None:
        with engine_of(place) as engine, Session(engine) as session, session.begin():
            add.options(connection=session).delay(1, 1)
            raise LookupError("the caller's own trouble")

    with pytest.raises(LookupError):
        act()
    assert place.jobs() == []


def test_publish_many_joins_the_transaction(place: Place, opened: Any) -> None:
    app = place.app()
    add = adder(app).options(connection=opened)
    app.publish_many([add.s(n, n) for n in range(50)])
    opened.rollback()
    assert place.jobs() == []
    handles = app.publish_many([add.s(n, n) for n in range(50)])
    opened.commit()
    assert place.ids() == sorted(handle.id for handle in handles)


def test_several_calls_and_a_second_transaction_on_one_connection(
    place: Place, opened: Any
) -> None:
    add = adder(place.app()).options(connection=opened)
    first = [add.delay(n, n).id for n in range(3)]
    opened.commit()
    add.delay(0, 0)
    opened.rollback()
    second = [add.delay(n, n).id for n in range(3)]
    opened.commit()
    assert place.ids() == sorted(first + second)


def test_calls_on_two_connections_cannot_be_published_together(place: Place) -> None:
    app = place.app()
    add = adder(app)
    with of_the_driver(place) as one, of_the_driver(place) as other:
        calls = [add.options(connection=one).s(1, 1), add.options(connection=other).s(2, 2)]
        with pytest.raises(ConfigurationError, match="share one connection"):
            app.publish_many(calls)
        with pytest.raises(ConfigurationError, match="share one connection"):
            app.publish_many([add.s(1, 1), calls[0]])
    assert place.jobs() == []


def test_a_duplicate_leaves_the_callers_transaction_usable(place: Place, opened: Any) -> None:
    app = place.app()
    add = adder(app)
    held = add.options(unique="k").delay(0, 0)
    within = add.options(connection=opened)
    before = within.delay(1, 1)
    with pytest.raises(DuplicateJob) as refused:
        within.options(unique="k").delay(2, 2)
    assert refused.value.existing == held.id
    same = within.options(unique=Unique("k", on_conflict="return")).delay(3, 3)
    assert same.id == held.id
    after = within.delay(4, 4)
    opened.commit()
    assert place.ids() == sorted([held.id, before.id, after.id])


def test_publish_many_within_a_transaction_is_all_or_none_too(place: Place, opened: Any) -> None:
    app = place.app()
    add = adder(app)
    held = add.options(unique="k").delay(0, 0)
    within = add.options(connection=opened)
    before = within.delay(1, 1)
    with pytest.raises(DuplicateJob):
        app.publish_many([within.s(2, 2), within.options(unique="k").s(3, 3), within.s(4, 4)])
    opened.commit()  # the caller handled it, and goes on
    assert place.ids() == sorted([held.id, before.id])


def test_a_replacement_happens_with_the_transaction(place: Place, opened: Any) -> None:
    add = adder(place.app())
    held = add.options(unique="k").delay(0, 0)
    replacing = add.options(connection=opened, unique=Unique("k", on_conflict="replace"))
    replacing.delay(1, 1)
    opened.rollback()
    assert held.state is State.QUEUED
    second = replacing.delay(2, 2)
    opened.commit()
    assert held.state is State.CANCELLED
    assert second.state is State.QUEUED


def test_the_same_id_is_published_once_within_and_without(place: Place, opened: Any) -> None:
    add = adder(place.app()).options(id=fresh_id())
    first = add.options(connection=opened).delay(1, 1)
    assert add.options(connection=opened).delay(2, 2).id == first.id
    opened.commit()
    assert add.delay(3, 3).id == first.id
    assert place.ids() == [first.id]


def test_a_savepoint_that_is_rolled_back_takes_its_jobs_with_it(place: Place) -> None:
    add = adder(place.app())
    with session_of_sqlalchemy(place) as session:
        if place.kind == "sqlite":  # sqlite3 begins late: see SQLAlchemy's notes on savepoints
            session.execute(sa.text("begin"))
        kept = add.options(connection=session).delay(1, 1)
        nested = session.begin_nested()
        add.options(connection=session).delay(2, 2)
        nested.rollback()
        session.commit()
    assert place.ids() == [kept.id]


# --- async code -------------------------------------------------------------------------------


def test_async_rollback_publishes_nothing(postgres: Place, aopened: Any) -> None:
    add = adder(postgres.app())

    async def main() -> None:
        async with aopened() as connection:
            handle = await add.options(connection=connection).adelay(1, 2)
            await connection.rollback()
            with pytest.raises(UnknownJob):
                await handle.aget(timeout=1)

    asyncio.run(main())
    assert postgres.jobs() == []


def test_async_commit_publishes_once_and_the_id_was_known_before(
    postgres: Place, aopened: Any
) -> None:
    app = postgres.app()
    add = adder(app)

    async def main() -> list[str]:
        async with aopened() as connection:
            within = add.options(connection=connection)
            handle = await within.adelay(1, 2)
            with pytest.raises(UnknownJob):
                await handle.arecord()
            more = await app.apublish_many([within.s(n, n) for n in range(10)])
            await connection.commit()
            assert (await handle.arecord()).state is State.QUEUED
            return [handle.id, *(one.id for one in more)]

    published = asyncio.run(main())
    assert postgres.ids() == sorted(published)


def test_async_duplicates_leave_the_transaction_usable(postgres: Place, aopened: Any) -> None:
    app = postgres.app()
    add = adder(app)
    held = add.options(unique="k").delay(0, 0)

    async def main() -> list[str]:
        async with aopened() as connection:
            within = add.options(connection=connection)
            before = await within.adelay(1, 1)
            with pytest.raises(DuplicateJob):
                await within.options(unique="k").adelay(2, 2)
            with pytest.raises(DuplicateJob):
                await app.apublish_many([within.s(3, 3), within.options(unique="k").s(4, 4)])
            after = await within.adelay(5, 5)
            await connection.commit()
            return [before.id, after.id]

    published = asyncio.run(main())
    assert postgres.ids() == sorted([held.id, *published])


def test_async_code_may_use_a_blocking_connection(place: Place) -> None:
    add = adder(place.app())

    async def main() -> None:
        with of_the_driver(place) as connection:
            await add.options(connection=connection).adelay(1, 1)
            connection.rollback()
            await add.options(connection=connection).adelay(2, 2)
            connection.commit()

    asyncio.run(main())
    assert len(place.jobs()) == 1


# --- the shape of the caller's connection does not matter -------------------------------------


def test_a_connection_with_rows_of_another_shape_works(place: Place) -> None:
    add = adder(place.app())
    held = add.options(unique="k").delay(0, 0)
    with of_the_driver(place) as connection:
        connection.row_factory = sqlite3.Row if place.kind == "sqlite" else dict_row
        within = add.options(connection=connection)
        within.delay(1, 1)
        assert within.options(unique=Unique("k", on_conflict="return")).delay(2, 2).id == held.id
        connection.commit()
    assert len(place.jobs()) == 2


def test_a_connection_in_autocommit_publishes_at_once(place: Place) -> None:
    app = place.app()
    add = adder(app)
    held = add.options(unique="k").delay(0, 0)
    with of_the_driver(place) as connection:
        if place.kind == "sqlite":
            connection.isolation_level = None
        else:
            connection.autocommit = True
        within = add.options(connection=connection)
        one = within.delay(1, 1)
        assert one.state is State.QUEUED
        many = app.publish_many([within.s(n, n) for n in range(3)])
        with pytest.raises(DuplicateJob):
            app.publish_many([within.s(5, 5), within.options(unique="k").s(6, 6)])
    assert place.ids() == sorted([held.id, one.id, *(handle.id for handle in many)])


def test_a_block_of_psycopgs_own_transaction_decides(postgres: Place) -> None:
    add = adder(postgres.app())
    with psycopg.connect(POSTGRES, autocommit=True) as connection:
        with connection.transaction():
            kept = add.options(connection=connection).delay(1, 1)
            with pytest.raises(ZeroDivisionError), connection.transaction():
                raise ZeroDivisionError(add.options(connection=connection).delay(2, 2))
        with connection.transaction(force_rollback=True):
            add.options(connection=connection).delay(3, 3)
    assert postgres.ids() == [kept.id]


DJANGO = """
import asyncio, json
import django
from django.conf import settings
settings.configure(USE_TZ=True, LOGGING_CONFIG=None, DATABASES={"default": json.loads(sys.argv[3])})
django.setup()
from django.db import connection, transaction
from umbel.errors import ConfigurationError, DuplicateJob
within = add.options(connection=connection)
print(within.delay(0, 0).state)  # no transaction: at once
with transaction.atomic():
    kept = within.options(unique="k").delay(1, 1)
    try:
        within.options(unique="k").delay(2, 2)
    except DuplicateJob:
        print("refused")
    try:
        with transaction.atomic():
            within.delay(3, 3)
            raise LookupError
    except LookupError:
        pass
    with connection.cursor() as cursor:
        cursor.execute("select 1")
print(kept.state)
try:
    with transaction.atomic():
        within.delay(4, 4)
        raise LookupError
except LookupError:
    pass
try:
    asyncio.run(within.adelay(5, 5))
except ConfigurationError as error:
    print(error)
"""


def test_djangos_own_connection_and_atomic_blocks_decide(place: Place) -> None:
    pytest.importorskip("django", reason="not run: Django is not installed")
    printed = place.script(DJANGO, json.dumps(django_settings(place))).splitlines()
    assert printed[:3] == ["queued", "refused", "queued"]
    assert "sync_to_async" in printed[3]
    assert len(place.jobs()) == 2


def test_a_transaction_of_asyncpg_decides(postgres: Place) -> None:
    library = pytest.importorskip("asyncpg", reason="not run: asyncpg is not installed")
    app = postgres.app()
    add = adder(app)

    async def main() -> list[str]:
        connection = await library.connect(POSTGRES)
        within = add.options(connection=connection)
        at_once = await within.adelay(0, 0)
        assert (await at_once.arecord()).state is State.QUEUED
        async with connection.transaction():
            kept = await app.apublish_many([within.s(n, n) for n in range(3)])
            with suppress(ZeroDivisionError):
                async with connection.transaction():
                    await within.adelay(1, 1)
                    raise ZeroDivisionError
        with suppress(ZeroDivisionError):
            async with connection.transaction():
                await within.adelay(2, 2)
                raise ZeroDivisionError
        with pytest.raises(ConfigurationError, match="adelay"):
            within.delay(3, 3)
        await connection.close()
        with pytest.raises(UmbelError, match="closed"):
            await within.adelay(4, 4)
        return [at_once.id, *(one.id for one in kept)]

    published = asyncio.run(main())
    assert postgres.ids() == sorted(published)


@pytest.mark.parametrize("library", ["psycopg2", "asyncpg"])
def test_any_text_travels_through_other_libraries_as_it_is(postgres: Place, library: str) -> None:
    made = pytest.importorskip(library, reason=f"not run: {library} is not installed")
    text = "é '\"\\ %s %(id)s %% $1 {} \n"
    app = postgres.app()
    echo = app.task(name=f"echo {text}")(lambda value: value)
    said: Any = {"queue": f"q {text}", "unique": f"k {text}", "priority": -3, "delay": 60.5}

    async def by_asyncpg() -> list[str]:
        connection = await made.connect(POSTGRES)
        async with connection.transaction():
            within = echo.options(connection=connection, **said)
            one = await within.adelay(text)
            more = await app.apublish_many([within.options(unique=f"{n}").s(text) for n in "ab"])
        await connection.close()
        return [one.id, *(handle.id for handle in more)]

    if library == "asyncpg":
        ids = asyncio.run(by_asyncpg())
    else:
        with closing(made.connect(POSTGRES)) as connection:
            within = echo.options(connection=connection, **said)
            ids = [within.delay(text).id]
            many = app.publish_many([within.options(unique=f"{n}").s(text) for n in "ab"])
            ids += [handle.id for handle in many]
            connection.commit()
    records = [app.handle(one).record() for one in ids]
    for record in records:
        assert app.codec.decode(record.body) == {"args": [text], "kwargs": {}}
        assert (record.task, record.queue, record.priority) == (echo.name, said["queue"], -3)
    assert [record.unique for record in records] == [said["unique"], "a", "b"]


@pytest.mark.parametrize("library", ["psycopg2", "asyncpg"])
def test_a_step_in_a_transaction_of_another_library_shares_its_fate(
    postgres: Place, library: str
) -> None:
    made = pytest.importorskip(library, reason=f"not run: {library} is not installed")
    app, runs = postgres.app(), []

    async def acount(connection: Any) -> int:
        runs.append(1)
        return int(await connection.fetchval("select 7"))

    def count(connection: Any) -> int:
        runs.append(1)
        with connection.cursor() as cursor:
            cursor.execute("select 7")
            return int(cursor.fetchone()[0])

    @app.task(retry=Retry(3, first=0))
    async def awork() -> int:
        connection = await made.connect(POSTGRES)
        try:
            async with connection.transaction():
                found = await step.using(connection).transaction(acount)
                if len(runs) == 1:
                    raise LookupError("rolled back")
        finally:
            await connection.close()
        if current.job.attempt == 2:
            raise LookupError("after the commit")
        return found

    @app.task(retry=Retry(3, first=0))
    def work() -> int:
        with closing(made.connect(POSTGRES)) as connection:
            found: int = step.using(connection).transaction(count)
            if len(runs) == 1:
                raise LookupError("rolled back")
            connection.commit()
        if current.job.attempt == 2:
            raise LookupError("after the commit")
        return found

    with working(app):
        task: Any = awork if library == "asyncpg" else work
        assert task.delay().get(HANG) == 7
    assert len(runs) == 2


def test_a_file_that_umbel_never_opened_says_what_to_do(tmp_path: Path) -> None:
    add = adder(Umbel(f"sqlite:///{tmp_path}/umbel.db"))
    with closing(sqlite3.connect(tmp_path / "umbel.db")) as connection:
        with pytest.raises(SchemaError, match="open it once with the app's URL"):
            add.options(connection=connection).delay(1, 1)
        connection.execute("create table theirs (x)")  # still usable


# --- whoever waits is woken -------------------------------------------------------------------


def test_a_waiting_worker_is_woken_by_the_callers_commit(place: Place, opened: Any) -> None:
    app = place.patient_app()
    add = adder(app)
    with working(app):
        assert add.delay(0, 0).get(HANG) == 0
        for number in range(3):  # from the first on, the worker waits and would not look
            handle = add.options(connection=opened).delay(number, 1)
            opened.commit()
            assert handle.get(HANG) == number + 1


def test_a_waiting_worker_is_woken_by_the_commit_of_async_code(
    postgres: Place, aopened: Any
) -> None:
    app = postgres.patient_app()
    add = adder(app)

    async def main() -> None:
        async with aopened() as connection:
            for number in range(3):
                handle = await add.options(connection=connection).adelay(number, 1)
                await connection.commit()
                assert await handle.aget(HANG) == number + 1

    with working(app):
        asyncio.run(main())


WAIT = """
import asyncio, functools
from umbel.backends import Demand, WorkerEntry
from umbel.backends.postgres import backend as postgres
from umbel.backends.sqlite import backend as sqlite
def poll_every(seconds, broker):
    return functools.partial(broker, safety_poll=seconds)
postgres.PostgresBroker = poll_every(float(sys.argv[3]), postgres.PostgresBroker)
sqlite.SqliteBroker = poll_every(float(sys.argv[3]), sqlite.SqliteBroker)
async def main():
    backend = app.backend.open()
    await backend.registry.register(WorkerEntry(
        incarnation="00000000-0000-7000-8000-000000000001", name="w", host="h", pid=1,
        queues=("default",), capacity={"io": 1, "cpu": 9}, lease=3600.0, tasks=()))
    print("ready", flush=True)
    for _ in range(3):
        found = []
        while not found:
            found = await backend.broker.fetch(
                ["default"], Demand.of(cpu=9), "00000000-0000-7000-8000-000000000001", 3600)
        print(found[0].id, flush=True)
    await backend.close()
asyncio.run(main())
"""


def test_a_process_that_waits_is_woken_by_the_callers_commit(place: Place) -> None:
    from integration.conftest import PROLOGUE

    add = adder(place.app())
    command = [sys.executable, "-c", PROLOGUE + WAIT, place.url, place.namespace, f"{PATIENCE}"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting,
        of_the_driver(place) as connection,
    ):
        try:
            assert waiting.stdout is not None
            assert waiting.stdout.readline().strip() == "ready"
            for number in range(3):
                handle = add.options(connection=connection).delay(number, number)
                connection.commit()
                assert _line(waiting) == handle.id
            assert waiting.wait(HANG) == 0
        finally:
            waiting.kill()


def _line(process: subprocess.Popen[str]) -> str:
    import select

    assert process.stdout is not None
    heard, _, _ = select.select([process.stdout], [], [], HANG)
    assert heard, "the process was not woken"
    return process.stdout.readline().strip()


def watched(tmp_path: Path, act: Callable[[LogWatch, Path], Awaitable[int]]) -> None:
    """Fail unless the watch calls back more often than the number that ``act`` returns."""

    async def main() -> None:
        log = tmp_path / "umbel.db-wal"
        log.touch()
        calls: list[None] = []
        called = asyncio.Event()

        def note() -> None:
            calls.append(None)
            called.set()

        watch = LogWatch(str(log), note)
        watch.attach()
        enough = await act(watch, log)
        try:
            async with asyncio.timeout(HANG / 4):
                while len(calls) <= enough:
                    called.clear()
                    await called.wait()
        except TimeoutError:
            pytest.fail("a commit that became visible a moment later would never be looked for")
        finally:
            watch.detach()
            watch.close()

    asyncio.run(main())


def write(log: Path) -> None:
    with log.open("ab") as file:
        file.write(b"a frame")


def test_a_write_noticed_together_with_another_commit_is_checked_again(
    tmp_path: Path,
) -> None:
    """A touch reports that a commit is complete, which may be another than the one in progress."""

    async def act(watch: LogWatch, log: Path) -> int:
        touch(str(log))  # of a worker's own commit, heard of ...
        write(log)  # ... together with a caller's, which is not visible yet
        return 1  # the look for the first may come too early for the second

    watched(tmp_path, act)


def test_a_write_noticed_by_a_fetch_that_ends_is_checked_by_the_next(tmp_path: Path) -> None:
    async def act(watch: LogWatch, log: Path) -> int:
        write(log)
        for _ in range(2):  # in the first round the loop sees the write, in the second the watch
            await asyncio.sleep(0)
        watch.detach()  # the fetch returned with another job ...
        watch.attach()  # ... and the next one finds the commit not visible yet
        return 0

    watched(tmp_path, act)


# --- what cannot be published with ------------------------------------------------------------


def wrong_for_sqlite(place: Place) -> Iterator[Any]:
    with psycopg.connect(POSTGRES) as connection:
        yield connection


def wrong_for_postgres(place: Place) -> Iterator[Any]:
    with closing(sqlite3.connect(":memory:")) as connection:
        yield connection


def test_a_connection_of_another_database_is_refused_with_a_remedy(
    place: Place, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("postgres")
    other = wrong_for_sqlite if place.kind == "sqlite" else wrong_for_postgres
    wanted = "sqlite3" if place.kind == "sqlite" else "psycopg"
    add = adder(place.app())
    for connection in other(place):
        with pytest.raises(ConfigurationError, match=f"(?s)connection.*{wanted}"):
            add.options(connection=connection).delay(1, 1)
        with pytest.raises(ConfigurationError, match=f"(?s)connection.*{wanted}"):
            asyncio.run(add.options(connection=connection).adelay(1, 1))
    assert place.jobs() == []


@pytest.mark.parametrize("thing", ["dsn=x", 42, object(), ["c"]], ids=lambda t: type(t).__name__)
def test_what_is_no_connection_is_refused_with_a_remedy(place: Place, thing: Any) -> None:
    add = adder(place.app()).options(connection=thing)
    with pytest.raises(ConfigurationError, match="connection"):
        add.delay(1, 1)
    with pytest.raises(ConfigurationError, match="connection"):
        asyncio.run(add.adelay(1, 1))


def test_an_engine_is_refused_with_a_remedy(place: Place) -> None:
    with engine_of(place) as engine:
        add = adder(place.app()).options(connection=engine)
        with pytest.raises(ConfigurationError, match=r"connection.*(connect|session)"):
            add.delay(1, 1)


def test_a_session_of_another_database_is_refused_with_a_remedy(
    sqlite: Place, postgres: Place
) -> None:
    with session_of_sqlalchemy(sqlite) as session:
        add = adder(postgres.app()).options(connection=session)
        with pytest.raises(ConfigurationError, match="connection"):
            add.delay(1, 1)
    with session_of_sqlalchemy(postgres) as session:
        add = adder(sqlite.app()).options(connection=session)
        with pytest.raises(ConfigurationError, match="connection"):
            add.delay(1, 1)


def test_an_async_connection_in_sync_code_is_pointed_to_adelay(
    postgres: Place, aopened: Any
) -> None:
    add = adder(postgres.app())

    async def main() -> None:
        async with aopened() as connection:
            with pytest.raises(ConfigurationError, match="adelay"):
                add.options(connection=connection).delay(1, 1)

    asyncio.run(main())
    assert postgres.jobs() == []


def test_a_closed_connection_is_refused_and_nothing_published(place: Place) -> None:
    connection = place.connect()
    connection.close()
    with pytest.raises(UmbelError, match="closed"):
        adder(place.app()).options(connection=connection).delay(1, 1)
    assert place.jobs() == []


# --- a connection to the wrong place ----------------------------------------------------------


@contextmanager
def another_database(migrated_for: Place | None = None) -> Iterator[str]:
    """Yield the URL of a new database on the same server, optionally with Umbel's schema."""
    name = f"umbel_other_{fresh_id()[-12:]}"
    with psycopg.connect(POSTGRES, autocommit=True) as connection:
        connection.execute(f'create database "{name}"')
        base, _, _ = POSTGRES.rpartition("/")
        try:
            if migrated_for is not None:
                url = f"{base}/{name}?schema={migrated_for.schema}"
                asyncio.run(Umbel(url).backend.migrate())
            yield f"{base}/{name}"
        finally:
            connection.execute(f'drop database if exists "{name}" with (force)')


def with_password(url: str) -> str:
    return url.replace("@", ":s3cret@", 1)


@pytest.mark.parametrize("migrated", [False, True], ids=["without our tables", "with our tables"])
def test_a_connection_to_another_database_is_refused_and_stays_usable(
    postgres: Place, migrated: bool
) -> None:
    add = adder(postgres.app())
    with (
        another_database(postgres if migrated else None) as other,
        psycopg.connect(with_password(other)) as connection,
    ):
        name = other.rpartition("/")[2]
        connection.execute("create table theirs (x integer)")
        for _ in range(2):  # refused each time, not only when it is looked at first
            with pytest.raises(ConfigurationError) as refused:
                add.options(connection=connection).delay(1, 1)
            told = str(refused.value)
            assert told.startswith("connection: ")
            assert name in told
            assert "database test" in told
            assert "migrate" not in told
            assert "s3cret" not in told
        with pytest.raises(ConfigurationError, match=f"connection.*{name}"):
            asyncio.run(add.options(connection=connection).adelay(1, 1))
        connection.execute("insert into theirs values (1)")
        connection.commit()
        assert connection.execute("select count(*) from theirs").fetchone() == (1,)
    assert postgres.jobs() == []


def test_an_async_connection_to_another_database_is_refused_and_stays_usable(
    postgres: Place,
) -> None:
    add = adder(postgres.app())

    async def main(other: str) -> None:
        async with await psycopg.AsyncConnection.connect(other) as connection:
            await connection.execute("create table theirs (x integer)")
            name = other.rpartition("/")[2]
            with pytest.raises(ConfigurationError, match=f"connection.*{name}"):
                await add.options(connection=connection).adelay(1, 1)
            await connection.execute("insert into theirs values (1)")

    with another_database(postgres) as other:
        asyncio.run(main(other))
    assert postgres.jobs() == []


def test_a_connection_to_another_server_with_the_same_names_is_refused(
    server: PrivatePostgres, postgres: Place
) -> None:
    base, _, query = server.url.partition("?")
    url = f"{base}?{query + '&' if query else ''}schema={postgres.schema}"
    asyncio.run(Umbel(url).backend.migrate())
    app = Umbel(url, namespace=postgres.namespace)
    add = adder(app)
    with psycopg.connect(POSTGRES) as connection:
        with pytest.raises(ConfigurationError, match=r"connection: .*5432"):
            add.options(connection=connection).delay(1, 1)
        assert connection.execute("select 'usable'").fetchone() == ("usable",)
    app.close()
    assert postgres.jobs() == []


@pytest.mark.parametrize("library", ["psycopg2", "asyncpg"])
def test_another_database_is_refused_for_other_libraries_too(postgres: Place, library: str) -> None:
    made = pytest.importorskip(library, reason=f"not run: {library} is not installed")
    add = adder(postgres.app())

    async def by_asyncpg(other: str) -> None:
        connection = await made.connect(other)
        async with connection.transaction():
            with pytest.raises(ConfigurationError, match="connection: it leads to database"):
                await add.options(connection=connection).adelay(1, 1)
            assert await connection.fetchval("select 'usable'") == "usable"
        await connection.close()

    with another_database(postgres) as other:
        if library == "asyncpg":
            asyncio.run(by_asyncpg(other))
            return
        with closing(made.connect(other)) as connection, connection.cursor() as cursor:
            with pytest.raises(ConfigurationError, match="connection: it leads to database"):
                add.options(connection=connection).delay(1, 1)
            cursor.execute("select 'usable'")
            assert cursor.fetchone() == ("usable",)
    assert postgres.jobs() == []


def test_a_session_on_another_database_is_refused_and_stays_usable(postgres: Place) -> None:
    add = adder(postgres.app())
    with another_database(postgres) as other:
        engine = sa.create_engine(other.replace("postgresql://", "postgresql+psycopg://"))
        with Session(engine) as session:
            session.execute(sa.text("create table theirs (x integer)"))
            with pytest.raises(ConfigurationError, match="connection: it leads to database"):
                add.options(connection=session).delay(1, 1)
            session.execute(sa.text("insert into theirs values (1)"))
            session.commit()
        engine.dispose()
    assert postgres.jobs() == []


def test_missing_tables_of_the_application_itself_are_reported_as_such() -> None:
    app = Umbel(f"{POSTGRES}?schema=umbel_missing_{fresh_id()[-12:]}")
    add = adder(app)
    with psycopg.connect(POSTGRES) as connection:
        connection.execute("create temporary table theirs (x integer)")
        with pytest.raises(SchemaError, match="umbel db migrate"):
            add.options(connection=connection).delay(1, 1)
        connection.execute("insert into theirs values (1)")  # still usable
    app.close()


def test_a_role_that_may_not_write_our_tables_is_named_and_the_transaction_stays_usable(
    postgres: Place,
) -> None:
    add = adder(postgres.app())
    role = f"umbel_role_{fresh_id()[-12:]}"
    with psycopg.connect(POSTGRES, autocommit=True) as owner:
        owner.execute(f'create role "{role}" login')
        try:
            with psycopg.connect(POSTGRES, user=role) as connection:
                with pytest.raises(ConfigurationError, match=f"connection: .*{role}.*grant"):
                    add.options(connection=connection).delay(1, 1)
                assert connection.execute("select 'usable'").fetchone() == ("usable",)
                connection.rollback()
                owner.execute(f'grant usage on schema "{postgres.schema}" to "{role}"')
                tables = f'all tables in schema "{postgres.schema}"'
                owner.execute(f'grant select, insert, update, delete on {tables} to "{role}"')
                handle = add.options(connection=connection).delay(1, 1)
                connection.commit()
            assert postgres.ids() == [handle.id]
        finally:
            owner.execute(f'drop owned by "{role}"')
            owner.execute(f'drop role "{role}"')


def other_files(folder: Path) -> dict[str, Callable[[], sqlite3.Connection]]:
    def of_umbel() -> sqlite3.Connection:
        asyncio.run(Umbel(f"sqlite:///{folder}/other.db").backend.migrate())
        return sqlite3.connect(folder / "other.db")

    def attached() -> sqlite3.Connection:
        connection = sqlite3.connect(folder / "main.db")
        connection.execute("attach ? as umbel", (str(folder / "umbel.db"),))
        return connection

    return {
        "other.db": of_umbel,
        "plain.db": lambda: sqlite3.connect(folder / "plain.db"),
        "main.db": attached,
        "memory": lambda: sqlite3.connect(":memory:"),
    }


@pytest.mark.parametrize("which", ["other.db", "plain.db", "main.db", "memory"])
def test_a_connection_to_another_file_is_refused_and_stays_usable(
    sqlite: Place, which: str
) -> None:
    add = adder(sqlite.app())
    with closing(other_files(Path(sqlite.path).parent)[which]()) as connection:
        connection.execute("create table theirs (x)")
        for publish in (
            lambda: add.options(connection=connection).delay(1, 1),
            lambda: asyncio.run(add.options(connection=connection).adelay(1, 1)),
        ):
            with pytest.raises(ConfigurationError) as refused:
                publish()
            told = str(refused.value)
            assert told.startswith("connection: ")
            assert which in told
            assert sqlite.path in told
        connection.execute("insert into theirs values (1)")
        connection.commit()
        assert connection.execute("select count(*) from theirs").fetchone() == (1,)
    assert sqlite.jobs() == []


def test_the_same_file_by_another_name_is_accepted(
    sqlite: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = adder(sqlite.app())
    folder = Path(sqlite.path).parent
    (folder / "link").symlink_to(folder, target_is_directory=True)
    monkeypatch.chdir(folder)
    for name in ("umbel.db", f"{folder}/link/umbel.db", f"file:{sqlite.path}?mode=rw"):
        with closing(sqlite3.connect(name, uri=name.startswith("file:"))) as connection:
            add.options(connection=connection).delay(1, 1)
            connection.commit()
    assert len(sqlite.jobs()) == 3


def test_a_database_in_memory_takes_no_connection_of_a_caller() -> None:
    app = Umbel("sqlite:///:memory:")
    with (
        closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(ConfigurationError, match=r"connection: .*memory"),
    ):
        adder(app).options(connection=connection).delay(1, 1)
    app.close()


def test_a_step_on_a_connection_to_another_place_is_refused_before_anything_happens(
    place: Place, tmp_path: Path
) -> None:
    app, calls = place.app(), []

    @app.task(retry=0)
    def work() -> None:
        with other() as connection:
            step.using(connection).transaction(lambda _: calls.append(1))

    @app.task(retry=0)
    async def awork() -> None:
        with other() as connection:
            await step.using(connection).transaction(lambda _: calls.append(1))

    with ExitStack() as stack:
        if place.kind == "sqlite":
            url = str(tmp_path / "another.db")

            def other() -> Any:
                return closing(sqlite3.connect(url))
        else:
            url = stack.enter_context(another_database(place))

            def other() -> Any:
                return psycopg.connect(url)

        with working(app):
            for task in (work, awork):
                with pytest.raises(ConfigurationError, match="connection: it leads to"):
                    task.delay().get(HANG)  # type: ignore[attr-defined]
    assert calls == []
