"""The backend behind a link: a router or a publisher daemon carries out the calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast
from urllib.parse import quote

from umbel.backends import (
    Broker,
    Capabilities,
    Control,
    Coordination,
    Gates,
    Joins,
    NoTransactions,
    Records,
    Registry,
    Roles,
    Routes,
    Steps,
    Transactions,
)
from umbel.errors import ConfigurationError
from umbel.worker.intake import Intake

if TYPE_CHECKING:
    from umbel.links import LinkClient

_CAPABILITIES = Capabilities(
    records=True, delay=True, priority=True, unique=True, notify=True, move=True
)
LINK_SCHEMES = ("umbel", "umbel+tcp", "umbel+unix")


class LinkBackend:
    """The backend of an ``umbel://`` URL. Its users need no credentials of a broker or database."""

    def __init__(self, url: str) -> None:
        try:
            # Imported here for ``open``: a signal handler must not run during the import.
            import umbel.links  # noqa: F401
            from umbel.backends.amqp.address import AmqpAddress
        except ImportError as error:
            raise ConfigurationError(
                f"links need Qpid Proton: pip install 'umbel[amqp]' ({error})"
            ) from None
        self._address = AmqpAddress(url)
        self._address.ssl_context()  # raises if the TLS options are wrong

    def open(self, *, is_loop_dedicated: bool = False) -> Roles:
        from umbel.links import LinkClient

        return _roles(LinkClient(self._address))

    def intake(self, queues: Sequence[str]) -> Intake:
        """Return the intake of a worker that serves these queues."""
        from umbel.app.link_service import INTAKE_PREFIX
        from umbel.links import LinkClient, Stub

        node = INTAKE_PREFIX + ",".join(quote(queue, safe="") for queue in queues)
        client = LinkClient(self._address)
        return cast(Intake, Stub(Intake, node, client, roles=_roles(client)))

    async def migrate(self) -> list[int]:
        return []

    async def version(self) -> tuple[int, int]:
        return 1, 1

    def eraser(self) -> NoReturn:
        raise ConfigurationError(
            f"a link ({self._address.label}) deletes no namespace; give the URLs of the broker and"
            " the store"
        )

    def transactions(self) -> Transactions:
        return NoTransactions(
            f"this worker uses its store over a link ({self._address.label}) and has no credentials"
            " of the database; give it the database's own URL to use transactions there"
        )

    async def unwrap(self, connection: Any) -> Any:
        _no_transaction(None, connection)


def _roles(client: LinkClient) -> Roles:
    """Return the roles that the other process serves."""
    from umbel.links import Stub

    return Roles(
        cast(
            Broker,
            Stub(
                Broker,
                "broker",
                client,
                capabilities=_CAPABILITIES,
                publish_within=_no_transaction,
            ),
        ),
        cast(Records, Stub(Records, "records", client)),
        cast(Registry, Stub(Registry, "registry", client)),
        cast(Control, Stub(Control, "control", client)),
        cast(Gates, Stub(Gates, "gates", client)),
        cast(Steps, Stub(Steps, "steps", client)),
        cast(Routes, Stub(Routes, "routes", client)),
        cast(Joins, Stub(Joins, "joins", client, add_within=_no_transaction)),
        cast(Coordination, Stub(Coordination, "coordination", client)),
    )


def _no_transaction(messages: Any, connection: Any) -> NoReturn:
    raise ConfigurationError(
        "connection: a transaction of your own needs the database's own URL, not a link"
    )
