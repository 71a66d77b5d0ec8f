"""Options of the dashboard, checked when they are given."""

from __future__ import annotations

import ipaddress

import msgspec

from umbel.errors import ConfigurationError

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
_MAPPED_BITS = 96
"""The length of the prefix of IPv6 addresses that are addresses of IPv4."""


class DashboardOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the dashboard is reached, and what it shows.

    Raises:
        ConfigurationError: an option is wrong, or the dashboard would be open to other machines.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    prefix: str = ""
    """The path under which a reverse proxy serves the dashboard, as in ``/umbel``."""
    login: bool = False
    """Whether users must log in. Needed unless ``host`` is an address of this machine only."""
    hosts: tuple[str, ...] = ()
    """Names in the Host header that are accepted besides those of this machine."""
    is_https: bool = False
    """Whether browsers reach it by HTTPS, through a proxy. The cookie is then for HTTPS only."""
    proxy_header: str = ""
    """The header in which a trusted proxy names the user."""
    proxies: tuple[str, ...] = ()
    """Addresses or networks of the proxies that are trusted to name the user and the client's
    address."""
    mask: tuple[str, ...] = ()
    """Names of arguments and fields whose values are not shown to viewers."""

    def __post_init__(self) -> None:
        if not self.is_loopback and not self.login and not self.proxy_header:
            raise ConfigurationError(
                f"host={self.host!r}: other machines could use the dashboard without a login; add"
                " --login and create a user with: umbel dashboard users add NAME"
            )
        if not 0 <= self.port <= 65_535:
            raise ConfigurationError(f"port={self.port}: give a number from 0 to 65535")
        if self.prefix and (not self.prefix.startswith("/") or self.prefix.endswith("/")):
            raise ConfigurationError(f"prefix={self.prefix!r}: write it as in '/umbel'")
        if self.proxy_header and not self.proxies:
            raise ConfigurationError(
                f"proxy_header={self.proxy_header!r}: name the addresses of the proxies, too"
            )
        for proxy in self.proxies:
            try:
                _network(proxy)
            except ValueError:
                raise ConfigurationError(
                    f"proxies={proxy!r}: give an IP address, or a network as in 10.0.0.0/8"
                ) from None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in LOOPBACK_NAMES

    def trusts(self, address: str) -> bool:
        """Return whether an address is that of a trusted proxy."""
        try:
            found = ipaddress.ip_address(plain_address(address))
        except ValueError:
            return False
        return any(found in _network(proxy) for proxy in self.proxies)

    @property
    def is_open(self) -> bool:
        """Whether connections from this machine need no login.

        An option for a reverse proxy ends this: its connections come from this machine, too.
        """
        is_proxied = self.own_names or self.prefix or self.is_https or self.proxies
        return self.is_loopback and not self.login and not is_proxied

    @property
    def own_names(self) -> frozenset[str]:
        """The names under which browsers reach it, in lower case: pages of these may act."""
        return frozenset(map(str.lower, self.hosts))

    @property
    def accepted_hosts(self) -> frozenset[str]:
        """The names that a Host header may have, without the port, in lower case."""
        return frozenset(map(str.lower, (*LOOPBACK_NAMES, self.host, *self.hosts)))


def plain_address(text: str) -> str:
    """Return an address in its usual form, of IPv4 also if it is written as one of IPv6.

    A text that is no address is returned as it is.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    return str(getattr(address, "ipv4_mapped", None) or address)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Return a network, or the one that has only this address. Raises ValueError."""
    network = ipaddress.ip_network(plain_address(text))
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is None or network.prefixlen < _MAPPED_BITS:
        return network
    return ipaddress.ip_network((mapped, network.prefixlen - _MAPPED_BITS))
