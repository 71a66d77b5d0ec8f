"""The suite of the transport's port.

An adapter's test file holds a class that inherits the suite and one fixture::

    class TestMine(TransportSuite):
        @pytest.fixture
        def server(self) -> Servers:
            return lambda: my_server()      # an async context manager of a Server

Beside transports a ``Server`` gives plain clients of that server: ``put`` sends as another program
would, and ``asker`` listens for answers as another program would::

    @asynccontextmanager
    async def asker() -> AsyncIterator[Asker]:
        client = await library.connect(URL)             # the server's own library
        inbox = await client.subscribe("an.address")

        async def hear() -> Heard:
            message = await inbox.next()
            return Heard(attributes_of(message), message.content_type, message.data, correlation)

        yield Asker(address="an.address", hear=hear)
        await client.close()
"""

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{topic}" for topic in ("carrying", "faults", "replies", "rooms", "strangers"))
)

from umbel.testing.transports.carrying import Acknowledging, Carrying  # noqa: E402
from umbel.testing.transports.faults import Faults  # noqa: E402
from umbel.testing.transports.replies import Replies  # noqa: E402
from umbel.testing.transports.rooms import Rooms, Waking  # noqa: E402
from umbel.testing.transports.server import Asker, Heard, Server, Servers, by_queue  # noqa: E402
from umbel.testing.transports.strangers import Strangers  # noqa: E402

__all__ = ["Asker", "Heard", "Server", "Servers", "TransportSuite", "by_queue"]


class TransportSuite(Carrying, Acknowledging, Rooms, Waking, Faults, Strangers, Replies):
    """What every transport has to do."""
