"""Publishes messages that another program built: foreign CloudEvents, and those sent over links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from umbel.app.client import Client
from umbel.backends import Published
from umbel.errors import BadMessage
from umbel.keys import SIGNATURE_HEADER
from umbel.messages import Envelope, MessageType
from umbel.tasks import Handle, Registry


class ForeignMessages:
    """Checks messages and makes them messages of this application."""

    def __init__(self, client: Client, registry: Registry, namespace: str) -> None:
        self._client = client
        self._registry = registry
        self._namespace = namespace

    def publish(self, envelope: Envelope) -> Handle[Any]:
        """Publish one message from sync code. Raises BadMessage, MessageTooLarge."""
        return self._client.send_envelope(self._adopt(envelope))

    async def apublish(self, envelopes: Sequence[Envelope]) -> list[Published]:
        """Publish messages from async code. Raises BadMessage, MessageTooLarge."""
        return await self._client.asend_envelopes([self._adopt(one) for one in envelopes])

    def _adopt(self, envelope: Envelope) -> Envelope:
        """Return the message with this application's namespace and the kind of its task."""
        if envelope.type is not MessageType.COMMAND:
            raise BadMessage("type", f"a job is a {MessageType.COMMAND}, not a {envelope.type}")
        self._client.codec.measure(envelope.body.data, what=f"event {envelope.id}")
        namespace = self._namespace
        if SIGNATURE_HEADER in envelope.headers and envelope.namespace != namespace:
            raise BadMessage(
                "namespace",
                f"it is signed for {envelope.namespace!r}, and here is {namespace!r}; give the"
                f" sender namespace={namespace!r}",
            )
        known = self._registry.get(envelope.subject)
        kind = known.kind if known is not None else envelope.kind
        return replace(envelope, kind=kind, namespace=namespace)
