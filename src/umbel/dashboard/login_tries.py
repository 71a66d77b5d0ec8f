"""A limit to how many logins are tried in a minute."""

from __future__ import annotations

import ipaddress
from collections import deque

from umbel.clock import Clock

_LOGIN_TRIES = 5
_ADDRESS_TRIES = 20
_LOGIN_SECONDS = 60.0
_MAX_TRIED = 10_000
"""How many addresses, and pairs of user and address, are remembered: those used last."""


class TooManyTries(Exception):
    """There were too many logins from one address, or of one user from there."""


class LoginTries:
    """Counts the logins of the last minute, whether they succeed or not.

    They are counted for each address, so that a client cannot lock out a user elsewhere.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._times: dict[str, deque[float]] = {}

    def count(self, name: str, address: str) -> None:
        """Count one login. Raises TooManyTries."""
        network = _network(address)
        self._count(f"from {network}", _ADDRESS_TRIES)
        self._count(f"from {network} as {name}", _LOGIN_TRIES)
        while len(self._times) > _MAX_TRIED:
            del self._times[next(iter(self._times))]

    def _count(self, key: str, limit: int) -> None:
        now = self._clock.monotonic()
        times = self._times.pop(key, deque())
        self._times[key] = times  # the one used last is the last one
        while times and times[0] <= now - _LOGIN_SECONDS:
            times.popleft()
        if len(times) >= limit:
            raise TooManyTries
        times.append(now)


def _network(address: str) -> str:
    """Return an address; of IPv6 its network, because one client has all addresses in it."""
    try:
        version = ipaddress.ip_address(address).version
    except ValueError:
        return address
    if version == 4:
        return address
    return str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))
