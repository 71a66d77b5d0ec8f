"""Messages of other programs: CloudEvents in both modes, and invalid messages."""

from __future__ import annotations

import pytest

from umbel.errors import BadMessage
from umbel.messages import JSON, fresh_id
from umbel.messages.wire import MEDIA_TYPE, write
from umbel.testing.transports.server import IO, Server, envelope, ids, read, receive, transport_test


class ForeignMessages:
    """Messages of other programs arrive as they were sent."""

    @transport_test
    async def test_a_cloud_event_in_binary_mode(self, s: Server) -> None:
        async with s.open() as one:
            await one.receive({IO: 1}, 0.0)
            job = fresh_id()
            attributes = {
                "specversion": "1.0",
                "id": job,
                "type": "umbel.command",
                "source": "/elsewhere",
                "subject": "tests.add",
                "tenant": "acme",
            }
            await s.put(IO, attributes, JSON, b'{"args": [1, 2]}')
            (arrival,) = await receive(one)
            found = read(arrival)
            assert (found.id, found.subject, found.headers) == (
                job,
                "tests.add",
                {"tenant": "acme"},
            )
            assert (found.body.content_type, found.body.data) == (JSON, b'{"args": [1, 2]}')
            await one.accept([arrival])

    @transport_test
    async def test_a_cloud_event_in_structured_mode(self, s: Server) -> None:
        async with s.open() as one:
            await one.receive({IO: 1}, 0.0)
            sent = envelope(s, 5)
            await s.put(IO, {}, MEDIA_TYPE, write(sent))
            (arrival,) = await receive(one)
            assert read(arrival) == sent
            await one.accept([arrival])

    @transport_test
    async def test_an_invalid_message_arrives_and_does_no_harm(self, s: Server) -> None:
        async with s.open() as one:
            await one.receive({IO: 1}, 0.0)
            await s.put(IO, {}, "", b"\xff\x00 no event")
            (arrival,) = await receive(one)
            assert arrival.data == b"\xff\x00 no event"
            with pytest.raises(BadMessage, match="specversion"):
                read(arrival)
            await one.accept([arrival])
            good = envelope(s)
            await one.send([good])
            (next_one,) = await receive(one)
            assert ids([next_one]) == [good.id]
            await one.accept([next_one])
