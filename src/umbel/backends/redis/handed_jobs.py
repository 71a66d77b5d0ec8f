"""What a process is handed: jobs that somebody else claimed for one who stands by with a ticket.

A ticket is good for one job. Who gives up before that, and may have been handed one in that very
moment, asks the server: it knows what was handed over, and is told what was heard.
"""

from __future__ import annotations

import secrets

import hiredis

from umbel.backends.redis.values import text


class Hands:
    """The tickets of one event loop, and what has come for them."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(8)
        """What its tickets begin with, and the name of its channel ends with."""
        self._made = 0
        self._open: dict[str, list[bytes]] = {}
        """Tickets that are good still, and what has come; an empty list is nothing so far."""
        self._heard: dict[str, str] = {}
        """From an incarnation to the ticket with which it was handed what it has last heard of."""

    def open(self) -> str:
        """A ticket to stand by with, until it is closed."""
        self._made += 1
        ticket = f"{self.token}.{self._made}"
        self._open[ticket] = []
        return ticket

    def close(self, ticket: str) -> None:
        """What comes for it from now on is not wanted here."""
        del self._open[ticket]

    def put(self, message: bytes) -> str:
        """Take a message, an array of ticket, id, field, value, …; gives the ticket it is for."""
        reader = hiredis.Reader()
        reader.feed(message)
        first, *job = reader.gets()
        ticket = text(first)
        if ticket in self._open:
            self._open[ticket] = job
        return ticket

    def take(self, ticket: str, owner: str) -> list[bytes]:
        """What has come for a ticket of this incarnation: id, field, value, …; or nothing."""
        job, self._open[ticket] = self._open[ticket], []
        if job:
            self._heard[owner] = ticket
        return job

    def heard(self, owner: str) -> str:
        """The ticket that an incarnation need not be told of again, once it stands by anew."""
        return self._heard.get(owner, "")

    def forget(self, owner: str, ticket: str) -> None:
        """The server was told that this one was heard of."""
        if self._heard.get(owner) == ticket:
            del self._heard[owner]
