"""Regression tests for bugs that chaos runs have found."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from processes import until

from chaos.event_log import EventLog, read
from chaos.processes_under_test import ManagedProcess, ProcessGroup
from chaos.transport_queues import NatsStreams, RabbitQueues
from umbel import Umbel, WorkerOptions
from umbel.backends import Lane, Transport
from umbel.backends.transport import OnLaneMissing
from umbel.errors import Unavailable
from umbel.messages import JSON, Body, Envelope, fresh_id


def test_a_worker_that_cannot_unregister_stops_nevertheless(tmp_path: Path) -> None:
    app = Umbel(f"sqlite:///{tmp_path}/umbel.db")

    async def stop_while_the_file_is_locked() -> None:
        worker = app.worker(WorkerOptions(name="w"))
        running = asyncio.create_task(worker.run())
        await worker.started.wait()
        with closing(sqlite3.connect(f"{tmp_path}/umbel.db", isolation_level=None)) as other:
            other.execute("begin immediate")  # no other connection can write
            worker.stop()
            await running

    asyncio.run(stop_while_the_file_is_locked())


class ExitingWorkers(ProcessGroup):
    """Workers that exit immediately by themselves."""

    def _worker(self, member: ManagedProcess) -> list[str]:
        return [sys.executable, "-c", "import os; os._exit(9)"]


def test_an_exit_is_logged_when_it_happens_not_when_the_process_is_reaped(tmp_path: Path) -> None:
    event_folder = tmp_path / "events"
    event_folder.mkdir()
    group = ExitingWorkers(
        tmp_path, EventLog(event_folder), [{}], one_clock=True, plant="", poison=False, seed=1
    )
    (worker, *_) = group.workers
    group.start(worker)
    wanted = [(worker.pid, f"{worker.name} 9")]

    def ends() -> list[tuple[int, str]]:
        return [(event.pid, event.note) for event in read(event_folder) if event.what == "gone"]

    until(lambda: bool(ends()), "the exit to be logged")
    assert ends() == wanted
    assert group.reap(renew=False) == [worker]
    group.end()
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
    """Return whether the queue existed on the server."""
    if broker == "nats":
        return NatsStreams("nats://127.0.0.1:4222", namespace).delete(lane)
    from umbel.backends.rabbitmq.queue_names import queue_name

    return RabbitQueues(5672, queue_name, namespace).delete(lane)


@pytest.mark.parametrize("broker", ["nats", "rabbitmq"])
def test_a_queue_is_not_created_before_the_store_knows_that_it_was_missing(broker: str) -> None:
    """Otherwise its lost messages would not be sent again if the creator dies immediately."""
    try:
        socket.create_connection(("127.0.0.1", PORTS[broker]), 2).close()
    except OSError as error:
        pytest.skip(f"not run: {broker} does not answer ({error})")
    namespace, lane = f"test-found-{fresh_id()[-12:]}", Lane("default", "io")
    job = Envelope(id=fresh_id(), subject="t", body=Body(JSON, b"{}"), kind="io")

    async def store_is_unavailable(lane: Lane) -> None:
        raise Unavailable("no job store")

    async def sent(lost: OnLaneMissing) -> None:
        transport = opened(broker, namespace, lost)
        try:
            await transport.send([job])
        finally:
            await transport.close()

    with pytest.raises(Unavailable, match="no job store"):
        asyncio.run(sent(store_is_unavailable))
    assert not deleted(broker, namespace, lane)
    reported: list[Lane] = []
    asyncio.run(sent(reported.append))
    assert reported == [lane]
    assert deleted(broker, namespace, lane)
