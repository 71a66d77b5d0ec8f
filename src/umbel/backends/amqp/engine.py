"""One AMQP 1.0 connection without a socket: bytes in, bytes out, and what happened in between.

Qpid Proton keeps the protocol's state; here its events become calls on the two sides of a link.
What happens for each message goes past Proton's classes to its functions: every event would make
half a dozen objects otherwise.
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

MAX_FRAME = 65_536
IDLE = 20.0
"""Seconds after which a peer that says nothing is taken to be gone."""
_MAX_LINKS = 32
"""Links that a peer may have open at once on a connection that it made to us."""
_MAX_CHANNEL = 15
"""The highest number of a session on such a connection."""
_MAX_SESSIONS = 1_000
"""Sessions that a peer may begin on it, one after the other: Proton keeps them all."""
_MAX_OUTGOING_BYTES = 1_048_576
"""Bytes that are handed to Proton before the first of them are written to the socket."""

ACCEPTED, REJECTED, RELEASED = Delivery.ACCEPTED, Delivery.REJECTED, Delivery.RELEASED

TOO_LARGE = "amqp:link:message-size-exceeded"
MISSING = ("amqp:not-found", "amqp:resource-deleted")
"""How the reasons begin that a peer gives for what is not there, or not any more."""

Told = Callable[[str], None]
"""Told what became of a message: nothing when it was accepted, else why not."""
Received = Callable[["Incoming", Any, bytes], None]
"""Called with a link, the token to answer it by, and a whole message."""


class Owner(Protocol):
    """Who uses a connection. Called while bytes are fed: it must not block or raise."""

    def opened(self) -> None:
        """The peer has answered."""

    def linked(self, address: str, credit: Callable[[Received, int, int], None]) -> str:
        """The peer wants to send to this address; why it may not, or nothing.

        To let it, call ``credit`` with who receives, how many at once, and their largest size.
        """

    def listens(self, address: str, link: Outgoing) -> str:
        """The peer wants to receive from this address; why it may not, or nothing."""

    def ended(self, why: str) -> None:
        """The connection is over; every link of it is."""


class Outgoing:
    """The sending side of a link."""

    def __init__(self, engine: Engine, link: Any) -> None:
        self._engine = engine
        self._link = link
        self._waiting: deque[tuple[bytes, Told | None, Callable[[], None]]] = deque()
        self._unanswered: dict[int, Told] = {}
        self._tags = count()
        self.waits_since: float | None = None
        """Since when no message could be sent, though some wait; None: none waits."""
        self.opened = False
        """Whether the peer has agreed to it."""
        self.limit = 0
        """Bytes of the largest message that the peer takes, once it has said so; 0 for any."""
        self.why = ""
        """Why it is closed; empty while it is not."""

    def send(
        self,
        message: bytes,
        told: Told | None = None,
        *,
        left: Callable[[], None] | None = None,
    ) -> None:
        """Send as soon as the peer has room. Without ``told`` its outcome is not reported.

        ``left`` is called when the message is no longer held here: it is being written to the
        socket, or the link is closed.
        """
        left = left or _nothing
        if self.why:
            if told is not None:
                told(self.why)
            left()
            return
        self._waiting.append((message, told, left))
        self.waits_since = self.waits_since or time.monotonic()
        self.pump()

    def close(self) -> None:
        """Send no more."""
        if not self.why:
            self.fail("closed here")
            self._link.close()

    def belongs_to(self, session: Any) -> bool:
        """Whether it ends with this session."""
        return bool(self._link.session == session)

    def pump(self) -> None:
        """Send what the peer has room for."""
        if not self._waiting:
            return
        link = self._link._impl
        room = pn_link_credit(link)
        while self._waiting and room > 0 and self._engine.has_room(pn_link_session(link)):
            message, told, left = self._waiting.popleft()
            delivery = pn_delivery(link, str(next(self._tags)))
            pn_link_send(link, message)
            pn_link_advance(link)
            self._engine.sending(len(message))
            room -= 1
            self.waits_since = time.monotonic() if self._waiting else None
            if told is None:
                pn_delivery_settle(delivery)
            else:
                self._unanswered[addressof(delivery)] = told
            self._engine.changed()
            left()

    def answered(self, delivery: Any) -> None:
        """The peer has said what became of one."""
        told = self._unanswered.pop(addressof(delivery), None)
        state = pn_delivery_remote_state(delivery)
        why = "" if state == ACCEPTED else _refusal(Delivery(delivery))
        pn_delivery_settle(delivery)
        if told is not None:
            told(why)

    def fail(self, why: str) -> None:
        """It is over: whoever waits is told."""
        self.why = self.why or why or "closed by the peer"
        waiting, self._waiting = self._waiting, deque()
        unanswered, self._unanswered = self._unanswered, {}
        for told in (*(told for _, told, _ in waiting if told), *unanswered.values()):
            told(self.why)
        for _, _, left in waiting:
            left()


class Incoming:
    """The receiving side of a link."""

    def __init__(
        self, engine: Engine, link: Any, received: Received, credit: int, limit: int
    ) -> None:
        self._engine = engine
        self._link = link
        self._received = received
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self.address = ""
        """Where it receives from, once the peer has said so."""
        self.opened = False
        """Whether the peer has agreed to it."""
        self.flows = 0
        """How often the peer has said how it stands with it."""
        self.why = ""
        """Why it is closed; empty while it is not."""
        self.on_attached: Callable[[], None] = _nothing
        """Called when the peer has answered: with an address, or by closing it."""
        self.more(credit)

    @property
    def credit(self) -> int:
        """How many more may come."""
        return int(self._link.credit)

    @property
    def drained(self) -> bool:
        """Whether all that was asked for by ``drain`` has come, or does not exist."""
        return not self._link.draining()

    def more(self, credit: int) -> None:
        """So many more may come."""
        if credit > 0 and not self.why:
            self._link.flow(credit)
            self._engine.changed()

    def less(self) -> None:
        """No more may come. What is on its way does, and nobody says when that was all.

        To be written before anything else is read: what comes in between would make the credit
        negative, and on the line that is a very large number.
        """
        if self._link.credit > 0 and not self.why:
            self._link.flow(-self._link.credit)
            self._engine.changed()

    def drain(self, credit: int) -> None:
        """So many more may come, but only now."""
        if not self.why:
            self._link.drain(credit)
            self._engine.changed()

    def answer(self, token: Any, state: int = ACCEPTED, why: str = "") -> None:
        """Say what became of a message."""
        delivery = token._impl
        if self.why or pn_delivery_local_state(delivery):
            return
        if why:
            token.local.condition = _condition("amqp:invalid-field", why)
            token.update(state)
        else:
            pn_delivery_update(delivery, state)
        pn_delivery_settle(delivery)
        self._engine.changed()

    def close(self) -> None:
        """Receive no more; what was not answered goes back."""
        if not self.why:
            self.why = "closed here"
            self._link.close()
            self._engine.changed()

    def belongs_to(self, session: Any) -> bool:
        """Whether it ends with this session."""
        return bool(self._link.session == session)

    def came(self, delivery: Any) -> None:
        """A part of a message has come, perhaps the last."""
        size, data = pn_link_recv(self._link._impl, pn_delivery_pending(delivery))
        if self.why:
            return
        if pn_delivery_aborted(delivery):
            self._forget()
            pn_delivery_settle(delivery)
            return
        self._size += max(size, 0)
        if self._engine.partial(max(size, 0), self._size) > self._limit:
            self.refuse(TOO_LARGE, f"more than {self._limit:,} bytes")
            return
        if size > 0:
            self._parts.append(data)
        if not pn_delivery_partial(delivery):
            pn_link_advance(self._link._impl)
            message = b"".join(self._parts)
            self._forget()
            if self._link.credit < 0:
                self._engine.exceed("sent more messages than it had credit for")
            self._received(self, Delivery(delivery), message)

    def refuse(self, name: str, why: str) -> None:
        """Close it and say why."""
        self._forget()
        self.why = why
        self._link.condition = _condition(name, why)
        self._link.close()
        self._engine.changed()

    def fail(self, why: str) -> None:
        """It is over."""
        self._forget()
        self.why = self.why or why or "closed by the peer"
        self.on_attached()

    def _forget(self) -> None:
        self._engine.partial(-self._size, 0)
        self._parts, self._size = [], 0


def _nothing() -> None:
    pass


class Aside:
    """A session beside the one that all links share: what fails in it harms nothing else.

    There are brokers that end a whole session when one link of it cannot be had.
    """

    def __init__(self, engine: Engine, session: Any) -> None:
        self._engine = engine
        self.session = session
        self.links: list[Any] = []
        self.opened = False
        """Whether the peer has agreed to it."""
        self.why = ""
        """Why it is over; empty while it is not."""

    def sender(self, address: str, *, durable: bool = False) -> Outgoing:
        """A link on which to send there. What has to be made for it is to be durable, or not."""
        return self._engine.sender(address, durable=durable, within=self)

    def receiver(self, address: str, received: Received, limit: int) -> Incoming:
        """A link on which to receive from there, without credit at first."""
        return self._engine.receiver(address, received, 0, limit, within=self)

    def close(self) -> None:
        """End it, with its links. Twice is fine."""
        self._engine.leave(self)


class Engine:
    """Either end of a connection. ``changed`` is called when there may be bytes to write."""

    def __init__(self, owner: Owner, changed: Callable[[], None], *, server: bool) -> None:
        self.changed = changed
        self.why = ""
        """Why it is over; empty while it is not."""
        self._owner = owner
        self._server = server
        self._collector = Collector()
        self._connection = Connection()
        self._connection.container = f"umbel-{random_hex(6)}"
        self._connection.collect(self._collector)
        self._transport = Transport(Transport.SERVER if server else Transport.CLIENT)
        self._transport.max_frame_size = MAX_FRAME
        self._transport.idle_timeout = IDLE
        if server:
            self._transport.channel_max = _MAX_CHANNEL
        self.is_open = False
        """Whether the peer has opened the connection."""
        self.excess = ""
        """Which limit the peer has exceeded, so that it is to be dropped; empty if none."""
        self.writable = True
        """Whether the socket takes more bytes at the moment."""
        self._attached = 0
        self._begun = 0
        self._unwritten = 0
        self._partial = 0
        self._session: Any = None
        self._asides: list[Aside] = []
        self._links: dict[int, Outgoing | Incoming] = {}
        """By where Proton has them: the two directions may share a name."""
        self._busy = False

    def begin(self, host: str = "", user: str = "", password: str = "") -> None:
        """Begin to talk; a server waits for the peer's first word."""
        sasl = self._transport.sasl()
        if self._server:
            sasl.allowed_mechs("ANONYMOUS")
            self._transport.require_auth(False)
            self._transport.bind(self._connection)
            return
        if user:
            self._connection.user, self._connection.password = user, password
            sasl.allowed_mechs("PLAIN")
            sasl.allow_insecure_mechs = True  # who writes a password into a URL wants it sent
        else:
            sasl.allowed_mechs("ANONYMOUS")
        self._connection.hostname = host
        self._transport.bind(self._connection)
        self._connection.open()
        self._session = self._connection.session()
        self._session.open()
        self.changed()

    @property
    def product(self) -> tuple[str, str]:
        """What the peer says it is, and its version."""
        said = self._connection.remote_properties or {}
        return str(said.get("product", "")), str(said.get("version", ""))

    def aside(self) -> Aside:
        """A new session."""
        aside = Aside(self, self._connection.session())
        self._asides.append(aside)
        aside.session.open()
        self.changed()
        return aside

    def leave(self, aside: Aside) -> None:
        """End a session, with all that is in it."""
        if not aside.why:
            self._fail_aside(aside, "closed here")
            aside.session.close()
            self.changed()

    def sender(
        self, address: str, *, durable: bool = False, within: Aside | None = None
    ) -> Outgoing:
        """A link on which to send to this address."""
        session = within.session if within else self._session
        link = session.sender(f"{address}-{random_hex(4)}")
        link.target.address = address
        if durable:
            link.target.durability = Terminus.CONFIGURATION
        outgoing = Outgoing(self, link)
        self._add(link, outgoing, within)
        return outgoing

    def receiver(
        self,
        address: str | None,
        received: Received,
        credit: int,
        limit: int,
        *,
        within: Aside | None = None,
    ) -> Incoming:
        """A link on which to receive from this address; without one the peer makes one up."""
        session = within.session if within else self._session
        link = session.receiver(f"{address}-{random_hex(4)}")
        if address is None:
            link.source.dynamic = True
        else:
            link.source.address = address
        incoming = Incoming(self, link, received, credit, limit)
        self._add(link, incoming, within)
        return incoming

    def close(self, name: str = "", why: str = "") -> None:
        """Say goodbye, and why, if there is a reason."""
        if name:
            self._connection.condition = _condition(name, why)
        self._connection.close()
        self.changed()

    # --- bytes -------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """What has come from the peer."""
        view = memoryview(data)
        while view and not self.why:
            room = self._transport.capacity()
            if room <= 0:
                break
            self._transport.push(bytes(view[:room]))
            view = view[room:]
            self._dispatch()
        self.changed()

    def take(self) -> bytes:
        """What is to go to the peer."""
        self._dispatch()
        pending = self._transport.pending()
        if pending <= 0:
            self._unwritten = 0  # all of it was taken: there may be room for more
            self.pump()
            pending = self._transport.pending()
            if pending <= 0:
                return b""
        data: bytes = self._transport.peek(pending) or b""
        self._transport.pop(len(data))
        return data

    def pump(self) -> None:
        """Hand to Proton what waited for room."""
        for link in self._outgoing():
            link.pump()

    def _outgoing(self) -> list[Outgoing]:
        return [one for one in self._links.values() if isinstance(one, Outgoing)]

    def has_room(self, session: Any) -> bool:
        """Whether one more message may be handed to Proton, which would keep it in memory."""
        return (
            self.writable
            and self._unwritten < _MAX_OUTGOING_BYTES
            and pn_session_outgoing_bytes(session) < _MAX_OUTGOING_BYTES
        )

    def sending(self, size: int) -> None:
        """So many bytes were handed to Proton."""
        self._unwritten += size

    def partial(self, more: int, size: int) -> int:
        """Note that parts of a message grew; the size that the link's limit is compared with.

        What a peer that connected to us has begun to send on all its links counts together.
        """
        self._partial += more
        return self._partial if self._server else size

    def exceed(self, why: str) -> None:
        """A peer that connected to us has exceeded a limit that it knows."""
        if self._server:
            self.excess = self.excess or why

    @property
    def waits_since(self) -> float | None:
        """Since when the peer has taken none of the messages that wait for its credit."""
        return min((one.waits_since for one in self._outgoing() if one.waits_since), default=None)

    @property
    def finished(self) -> bool:
        """Whether nothing will ever have to be written again."""
        return int(self._transport.pending()) < 0

    def tick(self, now: float) -> float:
        """Time has passed; when to be told so again, 0 for never."""
        due = float(self._transport.tick(now))
        self._dispatch()
        return due

    def cut(self, why: str) -> None:
        """No more bytes will come."""
        if not self.why:
            self._end(why)

    # --- what happens ------------------------------------------------------------------------

    def _add(self, link: Any, side: Outgoing | Incoming, within: Aside | None) -> None:
        self._links[_key(link)] = side
        if within is not None:
            within.links.append(link)
        link.open()
        self.changed()

    def _dispatch(self) -> None:
        if self._busy:  # called from within: the outer round goes on with what is new
            return
        self._busy = True
        try:
            while not isnull(event := pn_collector_peek(self._collector._impl)):
                kind = pn_event_type(event)
                if kind == PN_DELIVERY:
                    self._delivery(pn_event_delivery(event))
                elif kind == PN_LINK_FLOW:
                    self._link_flowed(pn_event_link(event))
                else:
                    self._act(Event.wrap(event))
                self._collector.pop()
        finally:
            self._busy = False

    def _act(self, event: Any) -> None:
        act = _ACTS.get(event.type)
        if act is not None:
            act(self, event)

    def _end(self, why: str) -> None:
        if self.why:
            return
        self.why = why or "closed by the peer"
        for aside in self._asides:
            aside.why = aside.why or self.why
        for link in self._links.values():
            link.fail(self.why)
        self._links.clear()
        self._owner.ended(self.why)

    def _connection_opened(self, event: Any) -> None:
        if self._server:
            self._connection.open()
        self.is_open = True
        self._owner.opened()

    def _connection_closed(self, event: Any) -> None:
        self._connection.close()
        self._end(_why(self._connection.remote_condition))

    def _session_opened(self, event: Any) -> None:
        if self._server:
            self._begun += 1
            if self._begun > _MAX_SESSIONS:
                self.exceed(f"began more than {_MAX_SESSIONS:,} sessions")
            event.session.open()
        for aside in self._asides:
            if aside.session == event.session:
                aside.opened = True

    def _session_closed(self, event: Any) -> None:
        session = event.session
        why = _why(session.remote_condition)
        session.close()
        for aside in [one for one in self._asides if one.session == session]:
            self._asides.remove(aside)
            self._fail_aside(aside, why)
            for link in aside.links:  # before their session, or Proton frees them twice
                link.close()
                link.free()
            session.free()
            return
        if not self._server:
            self._end(why)
            return
        for key, side in [*self._links.items()]:
            if side.belongs_to(session):
                del self._links[key]
                side.fail(why)

    def _fail_aside(self, aside: Aside, why: str) -> None:
        aside.why = aside.why or why or "closed by the peer"
        for key, side in [*self._links.items()]:
            if side.belongs_to(aside.session):
                del self._links[key]
                side.fail(aside.why)

    def _link_opened(self, event: Any) -> None:
        link = event.link
        if not self._server:
            side = self._links.get(_key(link))
            if isinstance(side, Incoming):
                side.address = link.remote_source.address or ""
                side.opened = link.remote_source.type != Terminus.UNSPECIFIED
                side.on_attached()
            elif side is not None:
                side.limit = int(link.remote_max_message_size)
                side.opened = link.remote_target.type != Terminus.UNSPECIFIED
            return
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        self._attached += 1
        if self._attached > _MAX_LINKS:
            self.exceed(f"opened more than {_MAX_LINKS} links")
        why = self._admit_sender(link) if link.is_receiver else self._admit_receiver(link)
        if why:
            if link.is_receiver:
                link.target.type = Terminus.UNSPECIFIED
            else:
                link.source.type = Terminus.UNSPECIFIED
            link.condition = _condition("amqp:not-found", why)
            link.open()
            link.close()

    def _admit_sender(self, link: Any) -> str:
        def credit(received: Received, many: int, limit: int) -> None:
            link.max_message_size = limit
            link.open()
            self._links[_key(link)] = Incoming(self, link, received, many, limit)

        return self._owner.linked(link.remote_target.address or "", credit)

    def _admit_receiver(self, link: Any) -> str:
        if link.remote_source.dynamic:
            link.source.address = f"replies/{random_hex(16)}"
        outgoing = Outgoing(self, link)
        why = self._owner.listens(link.source.address or "", outgoing)
        if not why:
            self._links[_key(link)] = outgoing
            link.open()
        return why

    def _link_closed(self, event: Any) -> None:
        link = event.link
        side = self._links.pop(_key(link), None)
        link.close()
        if side is not None:
            side.fail(_why(link.remote_condition))
        if self._server:
            self._attached -= 1
            link.free()  # or a peer could fill the memory by opening and closing links
        self.changed()

    def _link_flowed(self, link: Any) -> None:
        side = self._links.get(addressof(link))
        if isinstance(side, Outgoing):
            side.pump()
        elif side is not None:
            side.flows += 1

    def _delivery(self, delivery: Any) -> None:
        side = self._links.get(addressof(pn_delivery_link(delivery)))
        if isinstance(side, Incoming) and pn_delivery_readable(delivery):
            side.came(delivery)
        elif isinstance(side, Outgoing) and pn_delivery_updated(delivery):
            side.answered(delivery)

    def _failed(self, event: Any) -> None:
        self._end(_why(self._transport.condition) or "the connection broke")


_ACTS: dict[Any, Callable[[Engine, Any], None]] = {
    Event.CONNECTION_REMOTE_OPEN: Engine._connection_opened,
    Event.CONNECTION_REMOTE_CLOSE: Engine._connection_closed,
    Event.SESSION_REMOTE_OPEN: Engine._session_opened,
    Event.SESSION_REMOTE_CLOSE: Engine._session_closed,
    Event.LINK_REMOTE_OPEN: Engine._link_opened,
    Event.LINK_REMOTE_CLOSE: Engine._link_closed,
    Event.LINK_REMOTE_DETACH: Engine._link_closed,
    Event.TRANSPORT_ERROR: Engine._failed,
}


def _key(link: Any) -> int:
    return int(addressof(link._impl))


def _condition(name: str, why: str) -> Any:
    return Condition(name, why)


def _refusal(delivery: Any) -> str:
    """Why a message was not taken."""
    state = delivery.remote_state
    condition = delivery.remote.condition if state == REJECTED else None
    if condition is None:
        return f"not taken: {state}"
    if condition.name == TOO_LARGE:
        return _why(condition)
    return str(condition.description or condition.name)


def _why(condition: Any) -> str:
    if condition is None:
        return ""
    return f"{condition.name}: {condition.description}" if condition.description else condition.name
