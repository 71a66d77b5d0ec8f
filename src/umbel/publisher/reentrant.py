"""Publishing for calls that are made inside another call of the same thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from umbel.backends import Published
from umbel.backends.backlog import Backlog
from umbel.errors import Unavailable
from umbel.messages import Envelope
from umbel.publisher.forwarder import SHARE, Forwarder
from umbel.publisher.publisher import Send


class ReentrantForwarder:
    """A ``Send`` that keeps what cannot be sent, as ``Forwarder`` does, without its locks.

    ``forwarder`` gives the one of the ordinary calls, or None while it is being made. ``kept`` is
    called when something was put into the backlog, and must not block: that forwarder publishes it.
    """

    def __init__(
        self,
        send: Send,
        backlog: Backlog,
        forwarder: Callable[[], Forwarder | None],
        kept: Callable[[str], None],
    ) -> None:
        self._send = send
        self._backlog = backlog
        self._forwarder = forwarder
        self._kept = kept

    def send(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        """See ``Forwarder.send``."""
        forwarder, why = self._forwarder(), "messages are kept already"
        if forwarder is None or not forwarder.has_backlog:
            try:
                return self._send(envelopes, SHARE * timeout)
            except Unavailable as error:
                trusted = self._backlog.durable if forwarder is None else forwarder.trusted
                if not trusted:
                    raise
                why = str(error)
        self._backlog.put(envelopes)
        self._kept(why)
        return [Published(envelope.id) for envelope in envelopes]

    def close(self) -> None:
        """Free what it uses."""
        self._backlog.close()
