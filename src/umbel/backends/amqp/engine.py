"""One end of an AMQP 1.0 connection without a socket: bytes in, bytes out, and callbacks.

Qpid Proton keeps the protocol's state. The engine turns Proton's events into calls on the links.
For each message it calls Proton's functions directly: Proton's classes would make half a dozen
objects for every event. ``_impl`` is the only way from a class to the object of the functions.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, Protocol

from cproton import (  # type: ignore[import-untyped]
    PN_DELIVERY,
    PN_LINK_FLOW,
    addressof,
    isnull,
    pn_collector_peek,
    pn_delivery,
    pn_delivery_aborted,
    pn_delivery_link,
    pn_delivery_local_state,
    pn_delivery_partial,
    pn_delivery_pending,
    pn_delivery_readable,
    pn_delivery_remote_state,
    pn_delivery_settle,
    pn_delivery_update,
    pn_delivery_updated,
    pn_event_delivery,
    pn_event_link,
    pn_event_type,
    pn_link_advance,
    pn_link_credit,
    pn_link_recv,
    pn_link_send,
    pn_link_session,
    pn_session_outgoing_bytes,
)
from proton import Collector, Condition, Connection, Delivery, Event, Terminus, Transport

from umbel.messages import random_hex

MAX_FRAME_BYTES = 65_536
IDLE_TIMEOUT_SECONDS = 20.0
"""A peer that has sent nothing for this long is considered gone."""
_MAX_LINKS = 32
"""Links that a peer may have open at once on a connection that it made to us."""
_MAX_CHANNEL = 15
"""The highest session number on such a connection."""
_MAX_SESSIONS = 1_000
"""Sessions that a peer may begin on such a connection, one after another: Proton keeps them all."""
_MAX_OUTGOING_BYTES = 1_048_576
"""Bytes that are handed to Proton before the first of them are written to the socket."""

ACCEPTED, REJECTED, RELEASED = Delivery.ACCEPTED, Delivery.REJECTED, Delivery.RELEASED

TOO_LARGE = "amqp:link:message-size-exceeded"
MISSING = ("amqp:not-found", "amqp:resource-deleted")
"""Conditions with which a peer reports that an address does not exist, or no longer exists."""

OnOutcome = Callable[[str], None]
"""Called with the outcome of a message: empty if it was accepted, otherwise the reason."""
OnMessage = Callable[["ReceivingLink", Any, bytes], None]
"""Called with a link, the token that settles the message, and the whole message."""


class ConnectionHandler(Protocol):
    """The user of a connection. Its methods are called while bytes are fed.

    They must not block or raise.
    """

    def on_open(self) -> None:
        """The peer has opened the connection."""

    def on_peer_sender(self, address: str, accept: Callable[[OnMessage, int, int], None]) -> str:
        """The peer wants to send to this address. Return why it may not, or an empty text.

        To allow it, call ``accept`` with the callback for messages, the credit and the largest size
        of a message in bytes.
        """

    def on_peer_receiver(self, address: str, link: SendingLink) -> str:
        """The peer wants to receive from this address. Return why it may not, or an empty text."""

    def on_closed(self, reason: str) -> None:
        """The connection has ended, and every link on it."""


class SendingLink:
    """The sending side of a link."""

    def __init__(self, engine: Engine, link: Any) -> None:
        self._engine = engine
        self._link = link
        self._waiting: deque[tuple[bytes, OnOutcome | None, Callable[[], None]]] = deque()
        self._unsettled: dict[int, OnOutcome] = {}
        self._tags = count()
        self.blocked_since: float | None = None
        """When messages began to wait without any being sent; None if no message waits."""
        self.is_open = False
        """Whether the peer has accepted the link."""
        self.max_message_bytes = 0
        """The peer's limit for one message, known once the link is open; 0 if there is none."""
        self.close_reason = ""
        """Why the link is closed; empty while it is open or opening."""

    def send(
        self,
        message: bytes,
        on_outcome: OnOutcome | None = None,
        *,
        on_dequeued: Callable[[], None] | None = None,
    ) -> None:
        """Send a message as soon as the peer grants credit.

        Without ``on_outcome`` the message is sent settled, and its outcome is not reported.
        ``on_dequeued`` is called when the message no longer waits here: it is being written to the
        socket, or the link is closed.
        """
        on_dequeued = on_dequeued or _do_nothing
        if self.close_reason:
            if on_outcome is not None:
                on_outcome(self.close_reason)
            on_dequeued()
            return
        self._waiting.append((message, on_outcome, on_dequeued))
        self.blocked_since = self.blocked_since or time.monotonic()
        self.send_waiting()

    def close(self) -> None:
        """Close the link. Waiting messages are not sent."""
        if not self.close_reason:
            self.fail("closed here")
            self._link.close()

    def belongs_to(self, session: Any) -> bool:
        """Return whether the link is part of this session."""
        return bool(self._link.session == session)

    def send_waiting(self) -> None:
        """Hand waiting messages to Proton, as far as the peer's credit and memory limits allow."""
        if not self._waiting:
            return
        link = self._link._impl
        credit = pn_link_credit(link)
        while self._waiting and credit > 0 and self._engine.has_capacity(pn_link_session(link)):
            message, on_outcome, on_dequeued = self._waiting.popleft()
            delivery = pn_delivery(link, str(next(self._tags)))
            pn_link_send(link, message)
            pn_link_advance(link)
            self._engine.count_outgoing(len(message))
            credit -= 1
            self.blocked_since = time.monotonic() if self._waiting else None
            if on_outcome is None:
                pn_delivery_settle(delivery)
            else:
                self._unsettled[addressof(delivery)] = on_outcome
            self._engine.schedule_write()
            on_dequeued()

    def handle_disposition(self, delivery: Any) -> None:
        """Report the outcome that the peer has sent for a message."""
        on_outcome = self._unsettled.pop(addressof(delivery), None)
        state = pn_delivery_remote_state(delivery)
        reason = "" if state == ACCEPTED else _describe_refusal(Delivery(delivery))
        pn_delivery_settle(delivery)
        if on_outcome is not None:
            on_outcome(reason)

    def fail(self, reason: str) -> None:
        """Mark the link as closed and report this as the outcome of every unsettled message."""
        self.close_reason = self.close_reason or reason or "closed by the peer"
        waiting, self._waiting = self._waiting, deque()
        unsettled, self._unsettled = self._unsettled, {}
        callbacks = (on_outcome for _, on_outcome, _ in waiting if on_outcome)
        for on_outcome in (*callbacks, *unsettled.values()):
            on_outcome(self.close_reason)
        for _, _, on_dequeued in waiting:
            on_dequeued()


class ReceivingLink:
    """The receiving side of a link."""

    def __init__(
        self, engine: Engine, link: Any, on_message: OnMessage, credit: int, max_bytes: int
    ) -> None:
        self._engine = engine
        self._link = link
        self._on_message = on_message
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self.address = ""
        """Where the link receives from, known once it is open."""
        self.is_open = False
        """Whether the peer has accepted the link."""
        self.flow_count = 0
        """How many flow frames the peer has sent for the link."""
        self.close_reason = ""
        """Why the link is closed; empty while it is open or opening."""
        self.on_attached: Callable[[], None] = _do_nothing
        """Called when the peer has answered: the link has an address, or it is closed."""
        self.add_credit(credit)

    @property
    def credit(self) -> int:
        """How many more messages the peer may send."""
        return int(self._link.credit)

    @property
    def is_drained(self) -> bool:
        """Whether the peer has answered ``drain``: it has sent what it had."""
        return not self._link.draining()

    def add_credit(self, credit: int) -> None:
        """Allow the peer to send this many more messages."""
        if credit > 0 and not self.close_reason:
            self._link.flow(credit)
            self._engine.schedule_write()

    def revoke_credit(self) -> None:
        """Take back all credit. Messages that are under way still arrive; nothing marks the last.

        The caller must flush before it reads from the socket: a message that arrives in between
        would make the credit negative, and a negative credit is a very large one on the wire.
        """
        if self._link.credit > 0 and not self.close_reason:
            self._link.flow(-self._link.credit)
            self._engine.schedule_write()

    def drain(self, credit: int) -> None:
        """Allow the peer to send this many more messages, but only those that it has now."""
        if not self.close_reason:
            self._link.drain(credit)
            self._engine.schedule_write()

    def settle(self, token: Any, state: int = ACCEPTED, reason: str = "") -> None:
        """Report the outcome of a message to the peer. Settling twice is allowed."""
        delivery = token._impl
        if self.close_reason or pn_delivery_local_state(delivery):
            return
        if reason:
            token.local.condition = _to_condition("amqp:invalid-field", reason)
            token.update(state)
        else:
            pn_delivery_update(delivery, state)
        pn_delivery_settle(delivery)
        self._engine.schedule_write()

    def close(self) -> None:
        """Close the link. Unsettled messages go back to the peer."""
        if not self.close_reason:
            self.close_reason = "closed here"
            self._link.close()
            self._engine.schedule_write()

    def belongs_to(self, session: Any) -> bool:
        """Return whether the link is part of this session."""
        return bool(self._link.session == session)

    def handle_delivery(self, delivery: Any) -> None:
        """Read a part of a message; call ``on_message`` if it was the last part."""
        size, data = pn_link_recv(self._link._impl, pn_delivery_pending(delivery))
        if self.close_reason:
            return
        if pn_delivery_aborted(delivery):
            self._discard_parts()
            pn_delivery_settle(delivery)
            return
        self._size += max(size, 0)
        if self._engine.count_partial(max(size, 0), self._size) > self._max_bytes:
            self.close_with_error(TOO_LARGE, f"more than {self._max_bytes:,} bytes")
            return
        if size > 0:
            self._parts.append(data)
        if not pn_delivery_partial(delivery):
            pn_link_advance(self._link._impl)
            message = b"".join(self._parts)
            self._discard_parts()
            if self._link.credit < 0:
                self._engine.record_violation("sent more messages than it had credit for")
            self._on_message(self, Delivery(delivery), message)

    def close_with_error(self, name: str, reason: str) -> None:
        """Close the link and send the peer the reason."""
        self._discard_parts()
        self.close_reason = reason
        self._link.condition = _to_condition(name, reason)
        self._link.close()
        self._engine.schedule_write()

    def fail(self, reason: str) -> None:
        """Mark the link as closed."""
        self._discard_parts()
        self.close_reason = self.close_reason or reason or "closed by the peer"
        self.on_attached()

    def _discard_parts(self) -> None:
        self._engine.count_partial(-self._size, 0)
        self._parts, self._size = [], 0


def _do_nothing() -> None:
    pass


class Session:
    """A session beside the one that all other links share.

    Some brokers end a whole session when one of its links cannot be attached. A link that may fail
    therefore gets a session of its own.
    """

    def __init__(self, engine: Engine, proton_session: Any) -> None:
        self._engine = engine
        self.proton_session = proton_session
        self.links: list[Any] = []
        self.is_open = False
        """Whether the peer has accepted the session."""
        self.close_reason = ""
        """Why the session has ended; empty while it is open or opening."""

    def open_sender(self, address: str, *, durable: bool = False) -> SendingLink:
        """Open a link that sends to this address.

        If the broker creates the address for it, ``durable`` says whether that is durable.
        """
        return self._engine.open_sender(address, durable=durable, within=self)

    def open_receiver(self, address: str, on_message: OnMessage, max_bytes: int) -> ReceivingLink:
        """Open a link that receives from this address, without credit at first."""
        return self._engine.open_receiver(address, on_message, 0, max_bytes, within=self)

    def close(self) -> None:
        """End the session and its links. Closing twice is allowed."""
        self._engine.close_session(self)


class Engine:
    """Either end of a connection. ``schedule_write`` is called when there may be bytes to write."""

    def __init__(
        self, handler: ConnectionHandler, schedule_write: Callable[[], None], *, server: bool
    ) -> None:
        self.schedule_write = schedule_write
        self.close_reason = ""
        """Why the connection has ended; empty until then."""
        self._handler = handler
        self._server = server
        self._collector = Collector()
        self._connection = Connection()
        self._connection.container = f"umbel-{random_hex(6)}"
        self._connection.collect(self._collector)
        self._transport = Transport(Transport.SERVER if server else Transport.CLIENT)
        self._transport.max_frame_size = MAX_FRAME_BYTES
        self._transport.idle_timeout = IDLE_TIMEOUT_SECONDS
        if server:
            self._transport.channel_max = _MAX_CHANNEL
        self.is_open = False
        """Whether the peer has opened the connection."""
        self.violation = ""
        """The limit that the peer has exceeded and must be disconnected for; empty if none."""
        self.is_writable = True
        """Whether the socket accepts more bytes at the moment."""
        self._link_count = 0
        self._session_count = 0
        self._unwritten_bytes = 0
        self._partial_bytes = 0
        self._session: Any = None
        self._sessions: list[Session] = []
        self._links: dict[int, SendingLink | ReceivingLink] = {}
        """Keyed by the address of Proton's object: links of both directions may share a name."""
        self._is_dispatching = False

    def start(self, host: str = "", user: str = "", password: str = "") -> None:
        """Start the protocol. A client opens the connection; a server waits for the peer."""
        sasl = self._transport.sasl()
        if self._server:
            sasl.allowed_mechs("ANONYMOUS")
            self._transport.require_auth(False)
            self._transport.bind(self._connection)
            return
        if user:
            self._connection.user, self._connection.password = user, password
            sasl.allowed_mechs("PLAIN")
            sasl.allow_insecure_mechs = True  # a password in the URL is meant to be sent
        else:
            sasl.allowed_mechs("ANONYMOUS")
        self._connection.hostname = host
        self._transport.bind(self._connection)
        self._connection.open()
        self._session = self._connection.session()
        self._session.open()
        self.schedule_write()

    @property
    def product(self) -> tuple[str, str]:
        """The peer's product name and version, as it reports them."""
        properties = self._connection.remote_properties or {}
        return str(properties.get("product", "")), str(properties.get("version", ""))

    def open_session(self) -> Session:
        """Begin a new session."""
        session = Session(self, self._connection.session())
        self._sessions.append(session)
        session.proton_session.open()
        self.schedule_write()
        return session

    def close_session(self, session: Session) -> None:
        """End a session and all its links."""
        if not session.close_reason:
            self._fail_session(session, "closed here")
            session.proton_session.close()
            self.schedule_write()

    def open_sender(
        self, address: str, *, durable: bool = False, within: Session | None = None
    ) -> SendingLink:
        """Open a link that sends to this address."""
        session = within.proton_session if within else self._session
        link = session.sender(f"{address}-{random_hex(4)}")
        link.target.address = address
        if durable:
            link.target.durability = Terminus.CONFIGURATION
        sending_link = SendingLink(self, link)
        self._add(link, sending_link, within)
        return sending_link

    def open_receiver(
        self,
        address: str | None,
        on_message: OnMessage,
        credit: int,
        max_bytes: int,
        *,
        within: Session | None = None,
    ) -> ReceivingLink:
        """Open a link that receives from this address; for None the peer chooses an address."""
        session = within.proton_session if within else self._session
        link = session.receiver(f"{address}-{random_hex(4)}")
        if address is None:
            link.source.dynamic = True
        else:
            link.source.address = address
        receiving_link = ReceivingLink(self, link, on_message, credit, max_bytes)
        self._add(link, receiving_link, within)
        return receiving_link

    def close(self, name: str = "", reason: str = "") -> None:
        """Close the connection; with a name, as an error with this reason."""
        if name:
            self._connection.condition = _to_condition(name, reason)
        self._connection.close()
        self.schedule_write()

    # --- bytes -------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Process bytes from the peer."""
        view = memoryview(data)
        while view and not self.close_reason:
            capacity = self._transport.capacity()
            if capacity <= 0:
                break
            self._transport.push(bytes(view[:capacity]))
            view = view[capacity:]
            self._dispatch()
        self.schedule_write()

    def take_output(self) -> bytes:
        """Return bytes to write to the socket, and remove them here; empty if there are none."""
        self._dispatch()
        pending = self._transport.pending()
        if pending <= 0:
            self._unwritten_bytes = 0  # all were taken: there may be capacity for more messages
            self.send_waiting()
            pending = self._transport.pending()
            if pending <= 0:
                return b""
        data: bytes = self._transport.peek(pending) or b""
        self._transport.pop(len(data))
        return data

    def send_waiting(self) -> None:
        """Hand Proton the messages that waited for capacity."""
        for link in self._sending_links():
            link.send_waiting()

    def _sending_links(self) -> list[SendingLink]:
        return [link for link in self._links.values() if isinstance(link, SendingLink)]

    def has_capacity(self, session: Any) -> bool:
        """Return whether Proton may be handed one more message, which it would keep in memory."""
        return (
            self.is_writable
            and self._unwritten_bytes < _MAX_OUTGOING_BYTES
            and pn_session_outgoing_bytes(session) < _MAX_OUTGOING_BYTES
        )

    def count_outgoing(self, size: int) -> None:
        """Record that Proton was handed a message of this many bytes."""
        self._unwritten_bytes += size

    def count_partial(self, added: int, size: int) -> int:
        """Record received parts of a message; return the size to compare with the link's limit.

        For a peer that connected to us, the unfinished messages of all its links count together.
        """
        self._partial_bytes += added
        return self._partial_bytes if self._server else size

    def record_violation(self, violation: str) -> None:
        """Record that a peer that connected to us has exceeded a limit."""
        if self._server:
            self.violation = self.violation or violation

    @property
    def blocked_since(self) -> float | None:
        """Since when the peer has given no credit for messages that wait; None if none waits."""
        return min(
            (link.blocked_since for link in self._sending_links() if link.blocked_since),
            default=None,
        )

    @property
    def is_finished(self) -> bool:
        """Whether no more bytes will ever have to be written."""
        return int(self._transport.pending()) < 0

    def tick(self, now: float) -> float:
        """Process the passing of time; return when to call this again, or 0 for never."""
        due = float(self._transport.tick(now))
        self._dispatch()
        return due

    def mark_lost(self, reason: str) -> None:
        """End the connection: no more bytes will come."""
        if not self.close_reason:
            self._end(reason)

    # --- events ------------------------------------------------------------------------------

    def _add(self, link: Any, side: SendingLink | ReceivingLink, within: Session | None) -> None:
        self._links[_to_key(link)] = side
        if within is not None:
            within.links.append(link)
        link.open()
        self.schedule_write()

    def _dispatch(self) -> None:
        if self._is_dispatching:  # a nested call: the outer loop handles the new events
            return
        self._is_dispatching = True
        try:
            while not isnull(event := pn_collector_peek(self._collector._impl)):
                event_type = pn_event_type(event)
                if event_type == PN_DELIVERY:
                    self._handle_delivery(pn_event_delivery(event))
                elif event_type == PN_LINK_FLOW:
                    self._handle_flow(pn_event_link(event))
                else:
                    self._handle(Event.wrap(event))
                self._collector.pop()
        finally:
            self._is_dispatching = False

    def _handle(self, event: Any) -> None:
        handler = _HANDLERS.get(event.type)
        if handler is not None:
            handler(self, event)

    def _end(self, reason: str) -> None:
        if self.close_reason:
            return
        self.close_reason = reason or "closed by the peer"
        for session in self._sessions:
            session.close_reason = session.close_reason or self.close_reason
        for link in self._links.values():
            link.fail(self.close_reason)
        self._links.clear()
        self._handler.on_closed(self.close_reason)

    def _on_connection_opened(self, event: Any) -> None:
        if self._server:
            self._connection.open()
        self.is_open = True
        self._handler.on_open()

    def _on_connection_closed(self, event: Any) -> None:
        self._connection.close()
        self._end(_describe(self._connection.remote_condition))

    def _on_session_opened(self, event: Any) -> None:
        if self._server:
            self._session_count += 1
            if self._session_count > _MAX_SESSIONS:
                self.record_violation(f"began more than {_MAX_SESSIONS:,} sessions")
            event.session.open()
        for session in self._sessions:
            if session.proton_session == event.session:
                session.is_open = True

    def _on_session_closed(self, event: Any) -> None:
        closed = event.session
        reason = _describe(closed.remote_condition)
        closed.close()
        for session in [one for one in self._sessions if one.proton_session == closed]:
            self._sessions.remove(session)
            self._fail_session(session, reason)
            for link in session.links:  # before their session, or Proton frees them twice
                link.close()
                link.free()
            closed.free()
            return
        if not self._server:
            self._end(reason)
            return
        for key, side in [*self._links.items()]:
            if side.belongs_to(closed):
                del self._links[key]
                side.fail(reason)

    def _fail_session(self, session: Session, reason: str) -> None:
        session.close_reason = session.close_reason or reason or "closed by the peer"
        for key, side in [*self._links.items()]:
            if side.belongs_to(session.proton_session):
                del self._links[key]
                side.fail(session.close_reason)

    def _on_link_opened(self, event: Any) -> None:
        link = event.link
        if not self._server:
            side = self._links.get(_to_key(link))
            if isinstance(side, ReceivingLink):
                side.address = link.remote_source.address or ""
                side.is_open = link.remote_source.type != Terminus.UNSPECIFIED
                side.on_attached()
            elif side is not None:
                side.max_message_bytes = int(link.remote_max_message_size)
                side.is_open = link.remote_target.type != Terminus.UNSPECIFIED
            return
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        self._link_count += 1
        if self._link_count > _MAX_LINKS:
            self.record_violation(f"opened more than {_MAX_LINKS} links")
        reason = self._admit_sender(link) if link.is_receiver else self._admit_receiver(link)
        if reason:
            if link.is_receiver:
                link.target.type = Terminus.UNSPECIFIED
            else:
                link.source.type = Terminus.UNSPECIFIED
            link.condition = _to_condition("amqp:not-found", reason)
            link.open()
            link.close()

    def _admit_sender(self, link: Any) -> str:
        def accept(on_message: OnMessage, credit: int, max_bytes: int) -> None:
            link.max_message_size = max_bytes
            link.open()
            self._links[_to_key(link)] = ReceivingLink(self, link, on_message, credit, max_bytes)

        return self._handler.on_peer_sender(link.remote_target.address or "", accept)

    def _admit_receiver(self, link: Any) -> str:
        if link.remote_source.dynamic:
            link.source.address = f"replies/{random_hex(16)}"
        sending_link = SendingLink(self, link)
        reason = self._handler.on_peer_receiver(link.source.address or "", sending_link)
        if not reason:
            self._links[_to_key(link)] = sending_link
            link.open()
        return reason

    def _on_link_closed(self, event: Any) -> None:
        link = event.link
        side = self._links.pop(_to_key(link), None)
        link.close()
        if side is not None:
            side.fail(_describe(link.remote_condition))
        if self._server:
            self._link_count -= 1
            link.free()  # or a peer could fill the memory by opening and closing links
        self.schedule_write()

    def _handle_flow(self, link: Any) -> None:
        side = self._links.get(addressof(link))
        if isinstance(side, SendingLink):
            side.send_waiting()
        elif side is not None:
            side.flow_count += 1

    def _handle_delivery(self, delivery: Any) -> None:
        side = self._links.get(addressof(pn_delivery_link(delivery)))
        if isinstance(side, ReceivingLink) and pn_delivery_readable(delivery):
            side.handle_delivery(delivery)
        elif isinstance(side, SendingLink) and pn_delivery_updated(delivery):
            side.handle_disposition(delivery)

    def _on_transport_error(self, event: Any) -> None:
        self._end(_describe(self._transport.condition) or "the connection broke")


_HANDLERS: dict[Any, Callable[[Engine, Any], None]] = {
    Event.CONNECTION_REMOTE_OPEN: Engine._on_connection_opened,
    Event.CONNECTION_REMOTE_CLOSE: Engine._on_connection_closed,
    Event.SESSION_REMOTE_OPEN: Engine._on_session_opened,
    Event.SESSION_REMOTE_CLOSE: Engine._on_session_closed,
    Event.LINK_REMOTE_OPEN: Engine._on_link_opened,
    Event.LINK_REMOTE_CLOSE: Engine._on_link_closed,
    Event.LINK_REMOTE_DETACH: Engine._on_link_closed,
    Event.TRANSPORT_ERROR: Engine._on_transport_error,
}


def _to_key(link: Any) -> int:
    return int(addressof(link._impl))


def _to_condition(name: str, reason: str) -> Any:
    return Condition(name, reason)


def _describe_refusal(delivery: Any) -> str:
    """Return why the peer did not accept a message."""
    state = delivery.remote_state
    condition = delivery.remote.condition if state == REJECTED else None
    if condition is None:
        return f"not accepted: {state}"
    if condition.name == TOO_LARGE:
        return _describe(condition)
    return str(condition.description or condition.name)


def _describe(condition: Any) -> str:
    if condition is None:
        return ""
    return f"{condition.name}: {condition.description}" if condition.description else condition.name
