"""Alarms, restarts and timeouts, on a node that other tests do not use."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

pytest.importorskip("pika")

import pika
from rabbitmq_node import (
    RabbitNode,
    envelope,
    receive_until_found,
    send_until_accepted,
    skip_without_node,
    stop,
)

from umbel.backends import Lane
from umbel.backends.rabbitmq import receiver
from umbel.backends.rabbitmq.address import RabbitAddress
from umbel.backends.rabbitmq.queue_names import queue_name
from umbel.backends.rabbitmq.transport import RabbitTransport
from umbel.errors import Unavailable
from umbel.messages import fresh_id

IO = Lane("default", "io")


skip_without_node()

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("rabbitmq-node")]


@pytest.fixture(scope="module")
def node() -> Iterator[RabbitNode]:
    # Not pytest's own folder: the server's user must be able to enter it.
    folder = Path("/var/tmp") / f"umbel-test-rabbitmq-{os.getpid()}"
    folder.mkdir(mode=0o755)
    node = RabbitNode(folder)
    process = node.start()
    try:
        yield node
    finally:
        stop(process)
        shutil.rmtree(folder)


def transport_at(address: RabbitAddress, namespace: str = "") -> RabbitTransport:
    own = namespace or f"t{fresh_id()[-12:]}"
    return RabbitTransport(address, namespace=own, on_lane_missing=lambda _: None)


def count_consumers(address: RabbitAddress, queue: str) -> int:
    with closing(pika.BlockingConnection(address.parameters("test"))) as connection:
        found = connection.channel().queue_declare(queue, passive=True)
        return int(found.method.consumer_count)


def test_an_alarm_stops_sending_with_its_reason_and_not_receiving(node: RabbitNode) -> None:
    async def scenario() -> None:
        one = transport_at(node.address)
        first, second, third = envelope(), envelope(), envelope()
        await one.send([first, second])
        await receive_until_found(one, second.id)
        await one.send([first])
        await node.acontrol("set_vm_memory_high_watermark", "0.000001")
        try:
            for _ in range(2):
                async with asyncio.timeout(2):
                    with pytest.raises(
                        Unavailable, match=r"takes no messages.*free memory or disk"
                    ):
                        await one.send([third])
            with pytest.raises(Unavailable, match="takes no messages"):
                await one.check()
            await receive_until_found(one, first.id)
        finally:
            await node.acontrol("set_vm_memory_high_watermark", "0.4")
        await send_until_accepted(one, third)
        await receive_until_found(one, third.id)
        await one.check()
        await one.close()

    asyncio.run(scenario())


def test_a_server_that_restarts_loses_nothing_and_is_found_again(node: RabbitNode) -> None:
    async def scenario() -> None:
        one = transport_at(node.address)
        first, second = envelope(), envelope()
        await one.send([first])
        (held,) = await one.receive({IO: 10}, 10)
        await node.acontrol("stop_app")
        with pytest.raises(Unavailable):
            await one.send([second])
        with pytest.raises(Unavailable):
            await one.receive({IO: 10}, 1.0)
        await one.accept([held])
        await node.acontrol("start_app")
        await send_until_accepted(one, second)
        await receive_until_found(one, first.id)
        await one.close()

    asyncio.run(scenario())


def test_a_queue_that_exists_by_name_alone_is_made_anew(
    node: RabbitNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "_MAX_FAILING_SECONDS", 0.5)
    missing: list[Lane] = []

    async def scenario() -> None:
        space = f"t{fresh_id()[-12:]}"
        one = RabbitTransport(node.address, namespace=space, on_lane_missing=missing.append)
        first, second = envelope(), envelope()
        await one.send([first])
        await receive_until_found(one, first.id)
        await one.close()
        missing.clear()
        process = f'list_to_atom("%2F_{queue_name(space, IO)}")'
        await node.acontrol("eval", f"ra:stop_server(quorum_queues, {{{process}, node()}}).")
        other = RabbitTransport(node.address, namespace=space, on_lane_missing=missing.append)
        async with asyncio.timeout(60):
            while not missing:
                with suppress(Unavailable):
                    await other.receive({IO: 10}, 0.1)
        assert missing == [IO]
        await send_until_accepted(other, second)
        await receive_until_found(other, second.id)
        await other.close()

    asyncio.run(scenario())


def test_a_delivery_that_is_unacknowledged_for_too_long_is_only_a_loss(node: RabbitNode) -> None:
    async def scenario() -> None:
        await node.acontrol("eval", "application:set_env(rabbit, consumer_timeout, 1000).")
        await node.acontrol("eval", "application:set_env(rabbit, channel_tick_interval, 200).")
        space = f"t{fresh_id()[-12:]}"
        one = transport_at(node.address, space)
        first, second = envelope(), envelope()
        await one.send([first])
        found = await one.receive({IO: 1}, 10)
        # The acknowledgement is withheld until the server closes the channel.
        await one.accept(found)
        async with asyncio.timeout(30):
            while await asyncio.to_thread(count_consumers, node.address, queue_name(space, IO)):
                await asyncio.sleep(0.02)
        await one.accept(found)
        await one.send([second])
        await receive_until_found(one, second.id)
        await one.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("permissions", [("", ".*", ".*"), (".*", ".*", ""), ("", "", "")])
def test_a_missing_permission_is_named(node: RabbitNode, permissions: tuple[str, str, str]) -> None:
    async def scenario() -> None:
        user = f"u{fresh_id()[-6:]}"
        await node.acontrol("add_user", user, "secret")
        await node.acontrol("set_permissions", user, *permissions)
        one = transport_at(RabbitAddress(f"amqp://{user}:secret@127.0.0.1:{node.port}/"))
        with pytest.raises(Unavailable, match=r"refused.*rabbitmqctl set_permissions"):
            await one.receive({IO: 1}, 30)
        await one.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("runner", ["asyncio", "uvloop"])
def test_tls_carries_messages_to_a_server_that_is_trusted(node: RabbitNode, runner: str) -> None:
    async def scenario() -> None:
        url = f"amqps://guest:guest@127.0.0.1:{node.tls_port}/"
        one = transport_at(RabbitAddress(f"{url}?cafile={node.certificate}"))
        sent = [envelope() for _ in range(500)]
        await one.send(sent)
        await receive_until_found(one, sent[-1].id)
        await one.close()
        stranger = transport_at(RabbitAddress(url))
        with pytest.raises(Unavailable, match=r"TLS failed.*cafile"):
            await stranger.check()
        careless = transport_at(RabbitAddress(f"{url}?verify=false"))
        await careless.check()
        await careless.close()

    pytest.importorskip(runner).run(scenario())
