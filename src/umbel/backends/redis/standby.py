"""Standby: handing a job directly to a waiting worker.

Without standby, a publish adds a job to its lane and notifies a waiting worker, and the worker
claims the job with another round trip. With standby, the publish claims the job for the worker and
sends it the whole job:

1. A fetch that finds no job opens a ticket and puts its incarnation on standby for its queues, with
   the ticket (``begin_standby`` in standby.lua). It does so only if it has capacity for every kind
   of job and its listener is subscribed; without a ticket it is only notified.
2. A publish of one simple job (publish_one.lua) looks for an incarnation on standby for the queue.
   If nothing is paused and no other job of the queue comes first, the script stores the job as
   running, with a lease of that incarnation, and sends the job to the process's own channel. The
   incarnation that began its standby last is chosen. If no process receives the message, the next
   incarnation is tried; if there is none, the job is queued as usual.
3. The listener of the process stores the job under its ticket and wakes the fetch, which returns
   it.

An incarnation is handed at most one job per ticket. A fetch that ends in any other way asks the
server for a job that it was handed in the meantime (``end_standby``), and sends the ticket of the
last job that it received, so that the server does not return that job again. If a job was handed
over and never received, it goes back to its queue like any claimed job that the worker does not
hold, when the worker extends its leases.

This module has the process's side: the tickets of an event loop, and the jobs that have arrived for
them.
"""

from __future__ import annotations

import secrets

import hiredis

from umbel.backends.redis.values import text


class StandbyTickets:
    """The tickets of one event loop, and the jobs that were received for them."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(8)
        """The beginning of its tickets, and the end of the name of its channel."""
        self._count = 0
        self._open: dict[str, list[bytes]] = {}
        """From an open ticket to the job that was received for it; empty if there is none yet."""
        self._received: dict[str, str] = {}
        """From an incarnation to the ticket of the last job that it received."""

    def open(self) -> str:
        """Return a new ticket."""
        self._count += 1
        ticket = f"{self.token}.{self._count}"
        self._open[ticket] = []
        return ticket

    def close(self, ticket: str) -> None:
        """Close a ticket. A job that arrives for it later is ignored here."""
        del self._open[ticket]

    def receive(self, message: bytes) -> str:
        """Store the job of a message (ticket, id, field, value, …). Return the ticket."""
        reader = hiredis.Reader()
        reader.feed(message)
        first, *job = reader.gets()
        ticket = text(first)
        if ticket in self._open:
            self._open[ticket] = job
        return ticket

    def take(self, ticket: str, owner: str) -> list[bytes]:
        """Return the job received for a ticket: id, field, value, …; empty if there is none."""
        job, self._open[ticket] = self._open[ticket], []
        if job:
            self._received[owner] = ticket
        return job

    def last_received(self, owner: str) -> str:
        """Return the ticket of the last job that an incarnation received, or an empty string.

        The server does not return the job of that ticket again.
        """
        return self._received.get(owner, "")

    def forget(self, owner: str, ticket: str) -> None:
        """Forget a ticket that the server knows to be received."""
        if self._received.get(owner) == ticket:
            del self._received[owner]
