"""The conformance suite of the transport's port.

An adapter's test file holds a class that inherits the suite and one fixture::

    class TestMine(TransportSuite):
        @pytest.fixture
        def server(self) -> OpenServer:
            return lambda: my_server()      # an async context manager of a Server

A ``Server`` opens transports and plain clients of that server: ``put`` sends a message as another
program would, and ``reply_client`` receives replies as another program would::

    @asynccontextmanager
    async def reply_client() -> AsyncIterator[ReplyClient]:
        client = await library.connect(URL)             # the server's own library
        inbox = await client.subscribe("an.address")

        async def receive() -> ReceivedMessage:
            message = await inbox.next()
            attributes, data = attributes_of(message), message.data
            return ReceivedMessage(attributes, message.content_type, data, correlation)

        yield ReplyClient(address="an.address", receive=receive)
        await client.close()
"""

import pytest

pytest.register_assert_rewrite(
    *(
        f"{__name__}.{topic}"
        for topic in ("capacity", "delivering", "faults", "foreign_messages", "replies")
    )
)

from umbel.testing.transports.capacity import ReceiveCapacity, Waking  # noqa: E402
from umbel.testing.transports.delivering import Acknowledging, Delivering  # noqa: E402
from umbel.testing.transports.faults import Faults  # noqa: E402
from umbel.testing.transports.foreign_messages import ForeignMessages  # noqa: E402
from umbel.testing.transports.replies import Replies  # noqa: E402
from umbel.testing.transports.server import (  # noqa: E402
    OpenServer,
    ReceivedMessage,
    ReplyClient,
    Server,
    record_missing_queue,
)

__all__ = [
    "OpenServer",
    "ReceivedMessage",
    "ReplyClient",
    "Server",
    "TransportSuite",
    "record_missing_queue",
]


class TransportSuite(
    Delivering, Acknowledging, ReceiveCapacity, Waking, Faults, ForeignMessages, Replies
):
    """Tests of everything that every transport must do."""
