"""Behavior specific to NATS: created and deleted streams, other programs, dead connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("nats")

import nats
from local_servers import HOST, NATS_URL, PORTS
from nats_transports import connect_and_clean, open_transport, refusal

from chaos.proxy import Proxy
from umbel.backends import Lane
from umbel.backends.nats.address import NatsAddress
from umbel.backends.nats.connections import Connection, OutgoingMessage
from umbel.backends.nats.jetstream import create_stream
from umbel.backends.nats.stream_names import stream_of
from umbel.backends.nats.transport import NatsTransport
from umbel.errors import ConfigurationError, Unavailable
from umbel.messages import JSON, Body, Envelope, fresh_id
from umbel.messages.wire import read_message, write

if refused := refusal():
    pytest.skip(
        f"not run: the lanes of NATS; {NATS_URL} does not answer ({refused})",
        allow_module_level=True,
    )

IO, ANY = Lane("default", "io"), Lane("default", "")
SOON = 5.0


@pytest.fixture
def namespace() -> str:
    return f"t{fresh_id()[-12:]}"


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy(PORTS["nats"], seed=0)
    yield made
    made.close()


def run(namespace: str, scenario: Callable[[nats.NATS], Awaitable[None]]) -> None:
    """Run a test with a client of nats-py, and clean up afterwards."""

    async def main() -> None:
        async with asyncio.timeout(45), connect_and_clean(namespace) as client:
            await scenario(client)

    asyncio.run(main())


def envelopes(namespace: str, count: int, **changes: Any) -> list[Envelope]:
    body = Body(JSON, b'{"args":[1],"kwargs":{}}')
    fields = {"subject": "tests.add", "body": body, "namespace": namespace, "kind": "io"}
    return [Envelope(id=fresh_id(), **(fields | changes)) for _ in range(count)]


def test_two_transports_that_create_the_same_lane_at_once_report_it_once_each_at_most(
    namespace: str,
) -> None:
    async def scenario(_: nats.NATS) -> None:
        for turn in range(10):
            lost: list[str] = []
            queue = f"new-{turn}"
            async with (
                open_transport(namespace, lost) as one,
                open_transport(namespace, lost) as other,
            ):
                await asyncio.gather(one.check(), other.check())
                await asyncio.gather(
                    one.send(envelopes(namespace, 2, queue=queue)),
                    one.receive({Lane(queue, "io"): 1}, 0.0),
                    other.receive({Lane(queue, "io"): 1}, 0.0),
                    other.send(envelopes(namespace, 2, queue=queue)),
                )
                assert lost in ([queue], [queue] * 2)

    run(namespace, scenario)


def test_many_that_make_the_same_stream_at_once_find_one_maker(namespace: str) -> None:
    """The server may refuse a stream because the same stream already has its subject."""

    async def scenario(client: nats.NATS) -> None:
        address = NatsAddress(NATS_URL)
        connections = [await Connection.open(address, NATS_URL) for _ in range(6)]
        for turn in range(500):
            stream = stream_of(namespace, Lane(f"new-{turn}", "io"))
            made = await asyncio.gather(
                *(
                    create_stream(one, stream, replicas=1, description=f"by {number}")
                    for number, one in enumerate(connections)
                )
            )
            assert sorted(made) == [False] * 5 + [True]
            await client.jetstream().delete_stream(stream.name)
        for one in connections:
            await one.close()

    run(namespace, scenario)


def test_a_script_that_knows_only_the_subject_sends_a_job(namespace: str) -> None:
    async def scenario(client: nats.NATS) -> None:
        async with open_transport(namespace, []) as one:
            await one.receive({ANY: 1}, 0.0)
            (sent,) = envelopes(namespace, 1, kind="")
            # What such a script consists of: a connection, a subject, an event as JSON.
            await client.publish(f"{namespace}.default", write(sent))
            await client.publish(
                f"{namespace}.default",
                b'{"args": [2]}',
                headers={
                    "Ce-Specversion": "1.0",
                    "Ce-Id": fresh_id(),
                    "Ce-Type": "umbel.command",
                    "Ce-Source": "/elsewhere",
                    "Ce-Subject": "tests.%C3%A4dd",
                    "Ce-Datacontenttype": "application/json",
                },
            )
            found = []
            while len(found) < 2:
                found += await one.receive({ANY: 2 - len(found)}, SOON)
            read = [read_message(*a.read(), a.data) for a in found]
            assert read[0] == sent
            assert (read[1].subject, read[1].body) == ("tests.ädd", Body(JSON, b'{"args": [2]}'))
            await one.accept(found)

    run(namespace, scenario)


@pytest.mark.parametrize("deleted", ["stream", "consumer"])
def test_what_is_deleted_under_a_waiting_receiver_is_made_anew(
    namespace: str, deleted: str
) -> None:
    async def scenario(client: nats.NATS) -> None:
        lost: list[str] = []
        name = stream_of(namespace, IO).name
        async with open_transport(namespace, lost) as one:
            await one.receive({IO: 1}, 0.0)
            waiting = asyncio.create_task(one.receive({IO: 1}, 30))
            await asyncio.sleep(0.2)
            if deleted == "stream":
                await client.jetstream().delete_stream(name)
            else:
                await client.jetstream().delete_consumer(name, "umbel")
            async with asyncio.timeout(2):
                while await is_away(client, name):
                    await asyncio.sleep(0.02)
            (sent,) = envelopes(namespace, 1)
            async with open_transport(namespace, lost) as other:
                await other.send([sent])
            (arrival,) = await waiting
            assert arrival.id == sent.id
            assert lost == ["default"] * (2 if deleted == "stream" else 1)

    run(namespace, scenario)


async def is_away(client: nats.NATS, stream: str) -> bool:
    try:
        await client.jetstream().consumer_info(stream, "umbel")
    except nats.js.errors.NotFoundError:
        return True
    return False


@pytest.mark.parametrize("wait", [0.0, 0.5, 30.0])
def test_what_was_deleted_before_receiving_is_made_anew(namespace: str, wait: float) -> None:
    async def scenario(client: nats.NATS) -> None:
        lost: list[str] = []
        name = stream_of(namespace, IO).name
        async with open_transport(namespace, lost) as one:
            await one.receive({IO: 1}, 0.0)
            await client.jetstream().delete_stream(name)
            waiting = asyncio.create_task(one.receive({IO: 1}, wait))
            async with asyncio.timeout(4):
                while await is_away(client, name):
                    await asyncio.sleep(0.02)
            assert lost == ["default"] * 2
            one.stop_waiting()
            assert await waiting == []

    run(namespace, scenario)


def test_a_deleted_consumer_loses_nothing(namespace: str) -> None:
    async def scenario(client: nats.NATS) -> None:
        lost: list[str] = []
        async with open_transport(namespace, lost) as one:
            sent = envelopes(namespace, 3)
            await one.send(sent)
            await client.jetstream().delete_consumer(stream_of(namespace, IO).name, "umbel")
            found = await one.receive({IO: 3}, SOON)
            assert [a.id for a in found] == [one.id for one in sent]
            assert lost == ["default"]

    run(namespace, scenario)


def test_what_is_repeated_because_its_answer_got_lost_arrives_once(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = Connection.publish
    answered: list[int] = []

    async def deaf(
        self: Connection, posts: list[OutgoingMessage], timeout: float
    ) -> list[BaseException | None]:
        answers = await publish(self, posts, timeout)
        if len(posts) < 10 or answered:
            return answers
        answered.append(len(posts))
        return [*answers[:4], *[TimeoutError()] * (len(answers) - 4)]

    async def scenario(_: nats.NATS) -> None:
        async with open_transport(namespace, []) as one:
            sent = envelopes(namespace, 10)
            monkeypatch.setattr(Connection, "publish", deaf)
            await one.send(sent)
            assert answered == [10]
            found = await one.receive({IO: 100}, SOON)
            assert [a.id for a in found] == [one.id for one in sent]
            await one.accept(found)
            assert await one.receive({IO: 100}, 0.2) == []

    run(namespace, scenario)


def test_the_same_job_may_be_sent_again(namespace: str) -> None:
    async def scenario(_: nats.NATS) -> None:
        async with open_transport(namespace, []) as one:
            sent = envelopes(namespace, 1)
            await one.send(sent)
            await one.send(sent)
            found = await one.receive({IO: 100}, SOON)
            assert [a.id for a in found] == [sent[0].id] * 2
            await one.accept(found)

    run(namespace, scenario)


def test_messages_of_a_cancelled_receive_go_to_others_at_once(namespace: str) -> None:
    async def scenario(_: nats.NATS) -> None:
        async with open_transport(namespace, []) as one, open_transport(namespace, []) as other:
            await other.receive({IO: 1}, 0.0)
            for _ in range(30):
                waiting = asyncio.create_task(one.receive({IO: 50}, 30))
                await asyncio.sleep(0.004)
                sent = envelopes(namespace, 20)
                sending = asyncio.create_task(other.send(sent))
                await asyncio.sleep(0.001)
                waiting.cancel()
                found = [] if (await asyncio.wait([waiting])) and waiting.cancelled() else None
                if found is None:
                    found = waiting.result()
                    await one.accept(found)
                await sending
                async with asyncio.timeout(1):  # less than it takes to be given up for dead
                    while len(found) < 20:
                        more = await other.receive({IO: 20}, 1)
                        await other.accept(more)
                        found += more
                assert sorted(a.id for a in found) == sorted(e.id for e in sent)

    run(namespace, scenario)


def test_a_room_full_of_large_messages_is_received(namespace: str) -> None:
    async def scenario(_: nats.NATS) -> None:
        async with open_transport(namespace, []) as one, open_transport(namespace, []) as other:
            sent = envelopes(namespace, 80, body=Body(JSON, b"1" * 900_000))
            await one.send(sent)
            found: list[str] = []
            while len(found) < len(sent):
                arrivals = await other.receive({IO: 100, ANY: 100}, SOON)
                await other.accept(arrivals)
                found += [a.id for a in arrivals]
            assert found == [one.id for one in sent]

    run(namespace, scenario)


def test_a_dead_connection_is_an_error_within_seconds_and_is_then_replaced(
    namespace: str, proxy: Proxy
) -> None:
    async def scenario(_: nats.NATS) -> None:
        async with open_transport(namespace, [], proxy.port) as one:
            first = envelopes(namespace, 1)
            await one.send(first)
            proxy.set_state("dead")
            for call in (one.send(first), one.receive({IO: 1}, 30), one.check()):
                start = time.monotonic()
                with pytest.raises(Unavailable, match=f"NATS at {HOST}"):
                    await call
                assert time.monotonic() - start < 12
            proxy.set_state("fine")
            second = envelopes(namespace, 1)
            await one.send(second)
            found: set[str] = set()
            while not found >= {first[0].id, second[0].id}:
                arrivals = await one.receive({IO: 10}, SOON)
                await one.accept(arrivals)
                found |= {a.id for a in arrivals}

    run(namespace, scenario)


def test_acknowledgements_without_a_connection_are_sent_on_the_next(
    namespace: str, proxy: Proxy
) -> None:
    async def scenario(_: nats.NATS) -> None:
        async with open_transport(namespace, [], proxy.port) as one:
            await one.send(envelopes(namespace, 3))
            found = await one.receive({IO: 3}, SOON)
            await asyncio.to_thread(proxy.cut)
            await asyncio.sleep(0.2)
            await one.accept(found)
            await one.check()
            assert await one.receive({IO: 3}, 3.0) == []

    run(namespace, scenario)


async def put_raw(subject: str, headers: bytes) -> None:
    """Publish a message with headers that no client library would write."""
    reader, writer = await asyncio.open_connection(HOST, PORTS["nats"])
    writer.write(b'CONNECT {"headers": true, "verbose": false}\r\n')
    sizes = f"{len(headers)} {len(headers) + 1}"
    writer.write(f"HPUB {subject} {sizes}\r\n".encode() + headers + b"x\r\nPING\r\n")
    while await reader.readline() != b"PONG\r\n":
        pass
    writer.close()


@pytest.mark.parametrize(
    "headers", [b"NATS/1.0\r\n\xff: 1\r\nx\r\n\r\n", b"NATS/1.0 503 x\r\n\r\n"]
)
def test_a_message_with_invalid_headers_is_received(namespace: str, headers: bytes) -> None:
    async def scenario(_: nats.NATS) -> None:
        async with open_transport(namespace, []) as one:
            assert await one.receive({IO: 1}, 0.0) == []
            await put_raw(stream_of(namespace, IO).subject, headers)
            (bad,) = await one.receive({IO: 1}, SOON)
            assert (*bad.read(), bad.data) == ({}, "", b"x")
            await one.accept([bad])

    run(namespace, scenario)


def test_a_message_that_stops_nats_py_delays_the_receiver_only(namespace: str) -> None:
    """nats-py stops reading if it parses a status line that is not UTF-8."""

    async def scenario(_: nats.NATS) -> None:
        one = NatsTransport(NatsAddress(NATS_URL), namespace=namespace, on_lane_missing=str)
        assert await one.receive({IO: 1}, 0.0) == []
        await put_raw(stream_of(namespace, IO).subject, b"NATS/1.0 503 \xff\r\n\r\n")
        with pytest.raises(Unavailable):
            await one.receive({IO: 1}, 30)
        (sent,) = envelopes(namespace, 1)
        await one.send([sent])
        (found,) = await one.receive({IO: 1}, SOON)
        assert found.id == sent.id
        await one.accept([found])
        await one.close()

    run(namespace, scenario)


def test_a_subject_that_belongs_to_another_stream_is_reported_with_the_remedy(
    namespace: str,
) -> None:
    async def scenario(client: nats.NATS) -> None:
        await client.jetstream().add_stream(name=f"{namespace}+mine", subjects=[f"{namespace}.>"])
        async with open_transport(namespace, []) as one:
            with pytest.raises(ConfigurationError, match=r"overlap.*choose another namespace"):
                await one.send(envelopes(namespace, 1))

    run(namespace, scenario)


def test_replicas_without_a_cluster_are_reported_with_the_remedy(namespace: str) -> None:
    async def scenario(_: nats.NATS) -> None:
        address = NatsAddress(f"{NATS_URL}?replicas=3")
        one = NatsTransport(address, namespace=namespace, on_lane_missing=print)
        with pytest.raises(ConfigurationError, match="replicas=1"):
            await one.send(envelopes(namespace, 1))
        await one.close()

    run(namespace, scenario)


def test_it_runs_on_uvloop(namespace: str) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        async with (
            asyncio.timeout(20),
            connect_and_clean(namespace),
            open_transport(namespace, []) as one,
        ):
            sent = envelopes(namespace, 500)
            await one.send(sent)
            found = []
            while len(found) < 500:
                new = await one.receive({IO: 100, ANY: 100}, SOON)
                await one.accept(new)
                found += new
            assert [a.id for a in found] == [one.id for one in sent]
            assert await one.receive({IO: 100, ANY: 100}, 0.1) == []

    uvloop.run(main())
