"""SQL that returns how a job ended: the function of PostgreSQL and the view of SQLite."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import jsonschema
import pytest
from local_servers import POSTGRES_URL, needs
from sqlite_adapters import open_sqlite

from umbel.backends.sqlite.database import SqliteFile
from umbel.messages import (
    MESSAGEPACK,
    Body,
    Cancelled,
    Expired,
    Failed,
    Outcome,
    Rejected,
    Retry,
    Succeeded,
    fresh_id,
    wire,
)
from umbel.messages.documents import add_correlation, document_from_record, find_reply_request
from umbel.testing import Adapters, FakeClock, wrong_clocks
from umbel.testing.actions import FAILURE, RESULT, publish, publish_and_settle


class Ask(Protocol):
    """Returns the document of a job as text; None while there is none."""

    def __call__(self, job: str, namespace: str = "umbel") -> str | None: ...


Scenario = Callable[[Adapters, Ask], Awaitable[None]]


class Unknown(Exception):
    """There is no such job."""


def run_on_sqlite(scenario: Scenario, folder: Path) -> None:
    path = str(folder / "umbel.db")

    def ask(job: str, namespace: str = "umbel") -> str | None:
        with closing(sqlite3.connect(path)) as connection:
            query = "select event from document where id = ? and namespace = ?"
            rows: list[tuple[str | None]] = connection.execute(query, (job, namespace)).fetchall()
        assert len(rows) <= 1
        if not rows:
            raise Unknown(f"there is no job {job}")
        return rows[0][0]

    async def main() -> None:
        async with open_sqlite(lambda: SqliteFile(path), FakeClock()) as backend:
            await scenario(backend, ask)

    asyncio.run(main())


def run_on_postgres(scenario: Scenario) -> None:
    needs("postgres")
    import psycopg
    from postgres_adapters import open_postgres

    from umbel.backends.postgres.address import PostgresAddress
    from umbel.backends.postgres.schema import migrate

    schema = f"umbel_documents_{fresh_id()[-6:]}"

    def ask(job: str, namespace: str = "umbel") -> str | None:
        with psycopg.connect(POSTGRES_URL) as connection:
            # The namespace may be left out when it is the usual one.
            asked = (job,) if namespace == "umbel" else (job, namespace)
            query = f"select {schema}.document({', '.join(['%s'] * len(asked))})::text"
            try:
                row: Any = connection.execute(query, asked).fetchone()
            except psycopg.errors.NoDataFound as error:
                raise Unknown(str(error)) from None
            found: str | None = row[0]
            return found

    async def main() -> None:
        await migrate(PostgresAddress(f"{POSTGRES_URL}?schema={schema}"))
        async with open_postgres(
            f"{POSTGRES_URL}?schema={schema}", "umbel", wrong_clocks("documents")
        ) as backend:
            await scenario(backend, ask)

    try:
        asyncio.run(main())
    finally:
        with psycopg.connect(POSTGRES_URL, autocommit=True) as connection:
            connection.execute(f"drop schema if exists {schema} cascade")


@pytest.fixture(params=["sqlite", "postgres"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Scenario], None]:
    if request.param == "sqlite":
        return lambda scenario: run_on_sqlite(scenario, tmp_path)
    return run_on_postgres


ENDS: list[Outcome] = [
    Succeeded(RESULT),
    Succeeded(Body("application/json", '{"ä":[1.5,null,"\\"\\n"],"n":12345678901}'.encode())),
    Succeeded(None),
    Failed(FAILURE),
    Rejected('data: "x" does not fit'),
    Cancelled("not wanted"),
    Cancelled(),
    Expired(),
]


@pytest.mark.parametrize("outcome", ENDS, ids=repr)
def test_the_document_is_the_one_that_askers_are_sent(
    run: Callable[[Scenario], None], outcome: Outcome
) -> None:
    async def scenario(b: Adapters, ask: Ask) -> None:
        job = await publish_and_settle(
            b, outcome, headers={"replyto": "x", "correlationid": "question 7"}
        )
        record = await b.records.find(job)
        asked = find_reply_request(job, record.headers)
        assert asked is not None
        wanted = add_correlation(document_from_record(record), asked)
        text = ask(job)
        assert text is not None
        jsonschema.validate(json.loads(text), wire.schema())
        found = wire.read(text.encode())
        assert (found.id, found.type, found.subject) == (job, wanted.type, wanted.subject)
        assert (found.namespace, found.headers) == (wanted.namespace, wanted.headers)
        assert found.created == pytest.approx(wanted.created, abs=0.001)
        assert json.loads(found.body.data) == json.loads(wanted.body.data)

    run(scenario)


def test_an_unfinished_job_has_no_result_and_differs_from_an_unknown_id(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(b: Adapters, ask: Ask) -> None:
        queued = await publish(b)
        assert ask(queued.id) is None
        await b.broker.purge("default")
        again = await publish_and_settle(b, Retry(FAILURE, 3600.0))
        assert ask(again) is None
        nobody = fresh_id()
        with pytest.raises(Unknown, match=f"there is no job {nobody}"):
            ask(nobody)

    run(scenario)


def test_jobs_of_one_id_in_two_namespaces_have_each_their_document(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(b: Adapters, ask: Ask) -> None:
        async with b.another("elsewhere") as other:
            job = await publish_and_settle(b, Succeeded(RESULT))
            with pytest.raises(Unknown, match=f"there is no job {job}"):
                ask(job, "elsewhere")
            await publish_and_settle(other, Succeeded(Body("application/json", b"[7]")), id=job)
            for namespace, result in (("umbel", [42]), ("elsewhere", [7])):
                text = ask(job, namespace)
                assert text is not None
                assert json.loads(text)["data"] == result

    run(scenario)


def test_a_result_that_is_no_json_is_reported(run: Callable[[Scenario], None]) -> None:
    async def scenario(b: Adapters, ask: Ask) -> None:
        data = bytes(range(256))
        text = ask(await publish_and_settle(b, Succeeded(Body(MESSAGEPACK, data))))
        assert text is not None
        event = json.loads(text)
        assert event["state"] == "succeeded"
        if "data_base64" in event:
            assert base64.b64decode(event["data_base64"]) == data
            assert wire.read(text.encode()).body == Body(MESSAGEPACK, data)
        else:  # SQLite has no base64
            assert event["data"] is None
            assert event["reason"] == "data: application/msgpack, see the record"

    run(scenario)


def test_a_result_with_a_nul_is_reported(run: Callable[[Scenario], None]) -> None:
    async def scenario(b: Adapters, ask: Ask) -> None:
        text = ask(await publish_and_settle(b, Succeeded(Body("application/json", b'"a\\u0000b"'))))
        assert text is not None
        assert json.loads(wire.read(text.encode()).body.data) == "a\0b"

    run(scenario)
