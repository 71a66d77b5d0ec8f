"""A small AMQP 1.0 broker that follows the specification, because none could be installed.

Made with Proton's own classes, in memory, in a thread: plain names for queues, which are made when
they are first used, or have to be there; drain; every outcome; links that end with their queue.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

from proton import Condition, Delivery, Endpoint, Link, Message, Terminus
from proton.handlers import MessagingHandler
from proton.reactor import ApplicationEvent, Container, EventInjector


def _listen(container: Container) -> int:
    """Listen on a free port, and return it."""
    while True:
        port = random.randint(23_000, 31_000)  # below those that the kernel gives to connections
        with suppress(OSError):
            container.listen(f"amqp://127.0.0.1:{port}")
            return port


class Queue:
    """Messages in order, the links that receive from it, and the unsettled deliveries."""

    def __init__(self) -> None:
        self.ready: deque[tuple[int, Message]] = deque()
        self.links: list[Link] = []
        self.taken: dict[Delivery, tuple[int, Message]] = {}
        self._numbers = count()

    def put(self, message: Message) -> None:
        self.ready.append((next(self._numbers), message))
        self.pump()

    def put_back(self, deliveries: list[Delivery]) -> None:
        """Put messages back in their old order."""
        for delivery in deliveries:
            self.ready.append(self.taken.pop(delivery))
        self.ready = deque(sorted(self.ready, key=lambda one: one[0]))
        self.pump()

    def pump(self) -> None:
        """Deliver messages to the links that have credit, in turn."""
        while self.ready and (eager := [link for link in self.links if link.credit > 0]):
            for link in eager[: len(self.ready)]:
                one = self.ready.popleft()
                self.taken[link.send(one[1])] = one

    def leave(self, gone: Callable[[Link], bool]) -> None:
        """Remove these links, and put back the messages that they hold."""
        self.links = [link for link in self.links if not gone(link)]
        self.put_back([delivery for delivery in self.taken if gone(delivery.link)])


class PlainBroker(MessagingHandler):
    """The broker: it accepts connections and keeps queues in memory."""

    def __init__(self, *, makes_queues: bool, largest: int) -> None:
        super().__init__(prefetch=1000, auto_accept=False)
        self._makes_queues = makes_queues
        self._largest = largest
        self._queues: dict[str, Queue] = {}
        self._injector = EventInjector()
        self.port = 0
        self.ready = threading.Event()

    @property
    def url(self) -> str:
        return f"amqp://127.0.0.1:{self.port}"

    def act(self, work: Callable[[], None]) -> None:
        """Call a function in the broker's thread, and wait for it."""
        done = threading.Event()
        self._injector.trigger(ApplicationEvent("errand", subject=(work, done)))
        assert done.wait(10)

    def make(self, name: str) -> None:
        self.act(lambda: self._queues.update({name: Queue()}))

    def delete(self, name: str) -> None:
        """Delete a queue with its messages, and close its links, as an operator may."""

        def work() -> None:
            for connection in self._connections:
                for link in links_of(connection):
                    if name in (link.source.address, link.target.address):
                        link.condition = Condition("amqp:resource-deleted", "by an operator")
                        link.close()
            self._queues.pop(name, None)

        self.act(work)

    def credit(self, name: str) -> int:
        """Return the credit of all receivers of a queue."""
        found: list[int] = []

        def look() -> None:
            if name in self._queues:
                found.extend(link.credit for link in self._queues[name].links)

        self.act(look)
        return sum(found)

    def stop(self) -> None:
        self._injector.trigger(ApplicationEvent("goodbye"))

    # --- Proton ------------------------------------------------------------------------------

    def on_start(self, event: Any) -> None:
        self._connections: list[Any] = []
        self._container = event.container
        event.container.selectable(self._injector)
        self.port = _listen(event.container)
        self.ready.set()

    def on_errand(self, event: Any) -> None:
        work, done = event.subject
        work()
        done.set()

    def on_goodbye(self, event: Any) -> None:
        self._container.stop()

    def on_connection_opened(self, event: Any) -> None:
        self._connections.append(event.connection)

    def on_link_opening(self, event: Any) -> None:
        link = event.link
        here, there = (
            (link.source, link.remote_source)
            if link.is_sender
            else (
                link.target,
                link.remote_target,
            )
        )
        if there.address not in self._queues and not self._makes_queues:
            here.type = Terminus.UNSPECIFIED  # refused, as soon as it is open
            return
        here.address = there.address
        queue = self._queues.setdefault(there.address, Queue())
        if link.is_sender:
            queue.links.append(link)
        else:
            link.max_message_size = self._largest

    def on_link_opened(self, event: Any) -> None:
        link = event.link
        if Terminus.UNSPECIFIED in (link.source.type, link.target.type):
            link.condition = Condition("amqp:not-found", "there is no such queue")
            link.close()

    def on_message(self, event: Any) -> None:
        queue = self._queues.get(event.link.target.address)
        if queue is None:
            self.release(event.delivery, delivered=False)
            return
        queue.put(event.message)
        self.accept(event.delivery)

    def on_sendable(self, event: Any) -> None:
        queue = self._queues.get(event.link.source.address)
        if queue is not None:
            queue.pump()
        if event.link.drain_mode:
            event.link.drained()

    def on_accepted(self, event: Any) -> None:
        for queue in self._queues.values():
            queue.taken.pop(event.delivery, None)

    def on_released(self, event: Any) -> None:
        for queue in self._queues.values():
            if event.delivery in queue.taken:
                queue.put_back([event.delivery])

    def on_link_closing(self, event: Any) -> None:
        for queue in self._queues.values():
            queue.leave(lambda link: link == event.link)

    def on_session_closing(self, event: Any) -> None:
        for queue in self._queues.values():
            queue.leave(lambda link: link.session == event.session)

    def on_connection_closing(self, event: Any) -> None:
        self._lose(event.connection)

    def on_disconnected(self, event: Any) -> None:
        self._lose(event.connection)

    def _lose(self, connection: Any) -> None:
        self._connections = [one for one in self._connections if one != connection]
        for queue in self._queues.values():
            queue.leave(lambda link: link.connection == connection)


def links_of(connection: Any) -> list[Link]:
    """Return the links that are open at both ends."""
    found: list[Link] = []
    link = connection.link_head(Endpoint.LOCAL_ACTIVE | Endpoint.REMOTE_ACTIVE)
    while link is not None:
        found.append(link)
        link = link.next(Endpoint.LOCAL_ACTIVE | Endpoint.REMOTE_ACTIVE)
    return found


@contextmanager
def plain_broker(*, makes_queues: bool = True, largest: int = 0) -> Iterator[PlainBroker]:
    """Run a broker until the block ends."""
    broker = PlainBroker(makes_queues=makes_queues, largest=largest)
    container = Container(broker)
    thread = threading.Thread(target=container.run, name="broker", daemon=True)
    thread.start()
    assert broker.ready.wait(10)
    try:
        yield broker
    finally:
        broker.stop()
        thread.join(10)
