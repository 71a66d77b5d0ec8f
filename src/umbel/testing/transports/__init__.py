"""The suite of the transport's port.

An adapter's test file holds a class that inherits the suite and one fixture::

    class TestMine(TransportSuite):
        @pytest.fixture
        def server(self) -> Servers:
            return lambda: my_server()      # an async context manager of a Server
"""

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{topic}" for topic in ("carrying", "faults", "rooms", "strangers"))
)

from umbel.testing.transports.carrying import Acknowledging, Carrying  # noqa: E402
from umbel.testing.transports.faults import Faults  # noqa: E402
from umbel.testing.transports.rooms import Rooms, Waking  # noqa: E402
from umbel.testing.transports.server import Server, Servers  # noqa: E402
from umbel.testing.transports.strangers import Strangers  # noqa: E402

__all__ = ["Server", "Servers", "TransportSuite"]


class TransportSuite(Carrying, Acknowledging, Rooms, Waking, Faults, Strangers):
    """What every transport has to do."""
