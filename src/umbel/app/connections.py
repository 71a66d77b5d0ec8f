"""Opens an application's connections on first use and after a fork, and closes them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from umbel.app.backends import import_backlog, open_backlog
from umbel.app.exit_handler import close_at_exit
from umbel.backends import Backend, BlockingRecords, Roles, reentry
from umbel.backends.backlog import Backlog
from umbel.clock import Clock
from umbel.configuration import Settings
from umbel.messages import Record
from umbel.publisher import Bridge, Forwarder, Publisher, blocking_send
from umbel.telemetry import Telemetry

CLOSE_TIMEOUT_SECONDS = 5


class OpenConnections(NamedTuple):
    """What one process has open."""

    generation: int
    """The generation of the bridge that opened them: another one after a fork."""
    roles: Roles
    publisher: Publisher
    forwarder: Forwarder | None
    """None for an application without a backlog."""
    find_finished: Callable[[str, float], Record | None] | None
    """Finds a finished job in the caller's own thread; None if the store cannot do that."""


class Connections:
    """Opens connections on first use, from any thread, and keeps them until they are closed.

    After a fork the child opens new ones and does not touch those of its parent.
    """

    def __init__(
        self, backend: Backend, settings: Settings, clock: Clock, telemetry: Telemetry
    ) -> None:
        self.backend = backend
        self.bridge = Bridge()
        self._settings = settings
        self._clock = clock
        self._telemetry = telemetry
        self._opened: OpenConnections | None = None
        self._lock = threading.RLock()
        self._of_parents: list[Any] = []
        """Connections of parent processes. Collecting them would close them for the parent."""
        self._backlogs: dict[int, Backlog | None] = {}
        """By generation. Calls at every level of nesting share one."""
        import_backlog(settings)
        os.register_at_fork(after_in_child=self._replace_lock)

    def use(self, backend: Backend, settings: Settings, clock: Clock) -> None:
        """Open connections to this backend from now on. Call ``close`` first."""
        self.backend, self._settings, self._clock = backend, settings, clock

    def get(self) -> OpenConnections:
        """Return the connections of this process. Open them if they are not open."""
        generation = self.bridge.generation
        opened = self._opened
        if opened is not None and opened.generation == generation:
            return opened
        with reentry.entered(), self._lock:
            if self._opened is None or self._opened.generation != generation:
                new = self._open(generation)
                if self._opened is None or self._opened.generation != generation:
                    self._of_parents.append(self._opened)
                    self._opened = new
                elif new.forwarder is not None:
                    # A call inside this one was faster: in a signal handler or a finalizer.
                    new.forwarder.close(0.0)
            return self._opened

    def close(self) -> None:
        """Close the connections and the bridge. The next ``get`` opens new ones."""
        opened, self._opened = self._opened, None
        generation = self.bridge.generation
        with reentry.entered():
            if opened is not None and opened.generation == generation:
                if opened.forwarder is not None:
                    opened.forwarder.close(self._settings.deadline)
                opened.publisher.close()
                self.bridge.run(opened.roles.close(), CLOSE_TIMEOUT_SECONDS)
            self.bridge.close()
        self._backlogs.pop(generation, None)

    def backlog(self) -> Backlog | None:
        """Return this process's backlog; None for an application without one. Takes no lock."""
        generation = self.bridge.generation
        if generation not in self._backlogs:
            self._backlogs.setdefault(generation, open_backlog(self._settings, self._clock))
        return self._backlogs.get(generation)

    def find_forwarder(self) -> Forwarder | None:
        """Return the forwarder if it is open already. Takes no lock."""
        opened = self._opened
        if opened is None or opened.generation != self.bridge.generation:
            return None
        return opened.forwarder

    def publish_backlog(self, why: str) -> None:
        """Start publishing the backlog, in a thread that may wait for locks. Does not block."""

        def publish() -> None:
            if (forwarder := self.get().forwarder) is not None:
                forwarder.publish_backlog(why)

        reentry.thread(publish, name="umbel-backlog", level=0).start()

    def _open(self, generation: int) -> OpenConnections:
        roles = self.backend.open(is_loop_dedicated=True)
        send, forwarder = blocking_send(roles.broker, self.bridge), None
        deadline, backlog = self._settings.deadline, self.backlog()
        if backlog is not None:
            forwarder = Forwarder(
                send, backlog, self._clock, deadline=deadline, telemetry=self._telemetry
            )
            close_at_exit(forwarder, deadline)
            send = forwarder.send
        publisher = Publisher(
            send, self._clock, deadline=deadline, has_backlog=forwarder is not None
        )
        find = None
        if roles.broker.capabilities.blocking_records:
            find = cast(BlockingRecords, roles.records).find_finished_blocking
        return OpenConnections(generation, roles, publisher, forwarder, find)

    def _replace_lock(self) -> None:
        self._lock = threading.RLock()  # a thread of the parent may hold the old one for ever
