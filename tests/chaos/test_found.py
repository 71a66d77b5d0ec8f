"""What chaos has found stays mended."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from processes import until

from chaos.carriers import NatsStreams, RabbitQueues
from chaos.crew import Crew, Member
from chaos.diary import Diary, read
from umbel import Umbel, WorkerOptions
from umbel.backends import Lane, Transport
from umbel.backends.transport import OnLaneMissing
from umbel.errors import Unavailable
from umbel.messages import JSON, Body, Envelope, fresh_id


def test_a_worker_that_cannot_say_goodbye_stops_all_the_same(tmp_path: Path) -> None:
    app = Umbel(f"sqlite:///{tmp_path}/umbel.db")

    async def stop_while_the_file_is_locked() -> None:
        worker = app.worker(WorkerOptions(name="w"))
        running = asyncio.create_task(worker.run())
        await worker.started.wait()
        with closing(sqlite3.connect(f"{tmp_path}/umbel.db", isolation_level=None)) as other:
            other.execute("begin immediate")  # nobody else can write
            worker.stop()
            await running

    asyncio.run(stop_while_the_file_is_locked())


class Brief(Crew):
    """Workers that die at once, of themselves."""

    def _worker(self, member: Member) -> list[str]:
        return [sys.executable, "-c", "import os; os._exit(9)"]


def test_an_end_is_written_down_when_it_happens_not_when_somebody_looks(tmp_path: Path) -> None:
    diary_folder = tmp_path / "diaries"
    diary_folder.mkdir()
    crew = Brief(
        tmp_path, Diary(diary_folder), [{}], one_clock=True, plant="", poison=False, seed=1
    )
    (worker, *_) = crew.workers
    crew.start(worker)
    wanted = [(worker.pid, f"{worker.name} 9")]

    def ends() -> list[tuple[int, str]]:
        return [(line.pid, line.note) for line in read(diary_folder) if line.what == "gone"]

    until(ends, "the end to be written down")
    assert ends() == wanted
    assert crew.reap(renew=False) == [worker]
    crew.end()
    assert ends() == wanted


PORTS = {"nats": 4222, "rabbitmq": 5672}


def opened(broker: str, namespace: str, lost: OnLaneMissing) -> Transport:
    if broker == "nats":
        from umbel.backends.nats.address import NatsAddress
        from umbel.backends.nats.transport import NatsTransport

        return NatsTransport(
            NatsAddress("nats://127.0.0.1:4222"), namespace=namespace, on_lane_missing=lost
        )
    from umbel.backends.rabbitmq.address import RabbitAddress
    from umbel.backends.rabbitmq.transport import RabbitTransport

    address = RabbitAddress("amqp://guest:guest@127.0.0.1:5672/")
    return RabbitTransport(address, namespace=namespace, on_lane_missing=lost)


def deleted(broker: str, namespace: str, lane: Lane) -> bool:
    """Whether there was such a queue on the server."""
    if broker == "nats":
        return NatsStreams("nats://127.0.0.1:4222", namespace).delete(lane)
    from umbel.backends.rabbitmq.queue_names import queue_name

    return RabbitQueues(5672, queue_name, namespace).delete(lane)


@pytest.mark.parametrize("broker", ["nats", "rabbitmq"])
def test_a_queue_is_not_made_before_the_books_know_that_it_was_missing(broker: str) -> None:
    """Else nobody would recall what was sent there, if whoever made it dies at once."""
    try:
        socket.create_connection(("127.0.0.1", PORTS[broker]), 2).close()
    except OSError as error:
        pytest.skip(f"not run: {broker} does not answer ({error})")
    namespace, lane = f"test-found-{fresh_id()[-12:]}", Lane("default", "io")
    job = Envelope(id=fresh_id(), subject="t", body=Body(JSON, b"{}"), kind="io")

    async def books_are_away(lane: Lane) -> None:
        raise Unavailable("no books")

    async def sent(lost: OnLaneMissing) -> None:
        transport = opened(broker, namespace, lost)
        try:
            await transport.send([job])
        finally:
            await transport.close()

    with pytest.raises(Unavailable, match="no books"):
        asyncio.run(sent(books_are_away))
    assert not deleted(broker, namespace, lane)
    told: list[Lane] = []
    asyncio.run(sent(told.append))
    assert told == [lane]
    assert deleted(broker, namespace, lane)
