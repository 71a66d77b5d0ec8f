"""A process of ours that does the work: a router or a publisher daemon, reached over a link."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, cast
from urllib.parse import quote

from umbel.backends import (
    Broker,
    Capabilities,
    Control,
    Deployments,
    Gates,
    NoTransactions,
    Records,
    Registry,
    Roles,
    Routes,
    Steps,
    Transactions,
)
from umbel.errors import ConfigurationError
from umbel.messages import Envelope
from umbel.worker.intake import Intake

_CAN = Capabilities(records=True, delay=True, priority=True, unique=True, notify=True, move=True)
LINKS = ("umbel", "umbel+tcp", "umbel+unix")


class LinkBackend:
    """An address of ours. Whoever uses it needs no credentials of a broker or database."""

    def __init__(self, url: str) -> None:
        try:
            # All that ``open`` needs: a signal handler must not come while it is imported.
            import umbel.links  # noqa: F401
            from umbel.backends.amqp.address import Home
        except ImportError as error:
            raise ConfigurationError(
                f"links need Qpid Proton: pip install 'umbel[amqp]' ({error})"
            ) from None
        self._home = Home(url)
        self._home.context()  # says now what is wrong with it

    def open(self, *, inline: bool = False) -> Roles:
        from umbel.links import Link, Stub

        link = Link(self._home)
        return Roles(
            cast(
                Broker,
                Stub(Broker, "broker", link, capabilities=_CAN, publish_within=_no_transaction),
            ),
            cast(Records, Stub(Records, "records", link)),
            cast(Registry, Stub(Registry, "registry", link)),
            cast(Control, Stub(Control, "control", link)),
            cast(Gates, Stub(Gates, "gates", link)),
            cast(Steps, Stub(Steps, "steps", link)),
            cast(Deployments, Stub(Deployments, "deployments", link)),
            cast(Routes, Stub(Routes, "routes", link)),
        )

    def intake(self, queues: Sequence[str]) -> Intake:
        """The intake of a worker that serves these queues."""
        from umbel.app.stations import INTAKE
        from umbel.links import Link, Stub

        address = INTAKE + ",".join(quote(queue, safe="") for queue in queues)
        return cast(Intake, Stub(Intake, address, Link(self._home)))

    async def migrate(self) -> list[int]:
        return []

    async def version(self) -> tuple[int, int]:
        return 1, 1

    def transactions(self) -> Transactions:
        return NoTransactions(
            f"this worker reaches its store over a link ({self._home.address}), without the"
            " database's credentials; give it the database's own URL to work in transactions there"
        )

    async def unwrap(self, connection: Any) -> Any:
        _no_transaction([], connection)


def _no_transaction(envelopes: Sequence[Envelope], connection: Any) -> NoReturn:
    raise ConfigurationError(
        "connection: a transaction of your own needs the database's own URL, not a link"
    )
