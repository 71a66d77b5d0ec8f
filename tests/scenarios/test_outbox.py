"""Jobs published in the caller's own transaction, with RabbitMQ as broker: the store relays them.

Workers relay committed jobs and are killed meanwhile. Rolled-back jobs never run; committed
jobs run and are recorded once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
import tasks_under_test as tasks
from processes import Workers, until
from rabbitmq_transports import virtual_host
from scenario_client import Client
from servers import PrivatePostgres

from umbel.testing.history import Tracer, check

ROUNDS = int(os.environ.get("UMBEL_OUTBOX_ROUNDS", "60"))
AT_ONCE = 25


@pytest.fixture
def vhost() -> Iterator[str]:
    with virtual_host("outbox") as name:
        yield name


@pytest.fixture
def url(
    vhost: str,
    server: PrivatePostgres,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    monkeypatch.setenv("UMBEL_STORE", server.url)
    return f"amqp://guest:guest@127.0.0.1:5672/{quote(vhost, safe='')}"


@pytest.fixture
def workers(url: str, tmp_path: Path) -> Iterator[Workers]:
    workers = Workers(url, tmp_path, "--lease", "2", "--io", "50", "--log-format", "json")
    yield workers
    workers.end()


@pytest.mark.slow
def test_committed_jobs_run_once_and_rolled_back_jobs_never_run(
    client: Client,
    workers: Workers,
    server: PrivatePostgres,
    capsys: pytest.CaptureFixture[str],
) -> None:
    committed: list[str] = []
    rolled_back: list[str] = []
    workers.start(0)
    kills = 0
    with psycopg.connect(server.url) as connection:
        for turn in range(ROUNDS):
            work = tasks.work.options(connection=connection)
            calls = [work.s(0.001) for _ in range(AT_ONCE)]
            ids = [handle.id for handle in client.app.publish_many(calls)]
            if turn % 3 == 2:
                connection.rollback()
                rolled_back += ids
            else:
                connection.commit()
                committed += ids
            if turn % 10 == 9:  # with the last batches on their way
                workers.kill(0)
                workers.start(0)
                kills += 1
    until(lambda: client.live() == 0, "all jobs to finish", seconds=240, every=0.2)

    history = check(committed, client.records(), Tracer(workers.traces).read())
    with capsys.disabled():
        print(f"\n  {len(rolled_back)} rolled back, relay killed {kills} times: {history}")
    assert not history.violations, history.violations[:10]
    assert history.succeeded == len(committed)
    assert not {record.id for record in client.records()} & set(rolled_back)
