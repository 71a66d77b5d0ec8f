"""URLs of servers: mask their secrets, and check that their parts are unambiguous.

Every text that may quote a URL passes through ``mask_secrets``: error messages, log lines,
telemetry and the output of commands. A value that is a URL as a whole passes through ``mask_url``,
which also masks a secret in a URL that cannot be parsed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

MASK = "***"
URL_EXAMPLES = {
    "SQLite": "sqlite:///umbel.db",
    "PostgreSQL": "postgresql://user:password@host:5432/database",
    "Redis": "redis://host:6379/0",
    "Valkey": "valkey://host:6379/0",
    "RabbitMQ": "amqp://user:password@host:5672/vhost",
    "NATS": "nats://host:4222",
    "AMQP 1.0": "amqp1://user:password@host:5672",
    "Umbel router": "umbel://host:5680",
}
"""Every backend with a URL of it."""

_SECRET = r"(?:password|passwd|passphrase|pwd|secret|token)\w{0,200}|\bpickle_key"
"""The end of the name of a secret."""
_SECRET_OPTIONS = ("password", "sslpassword", "sentinel_password", "token")
"""Options whose values are secret. Their names are not, and may be shown."""
_HOST = r"(?:\[[^\[\]@]*\]|[^\[\]:@\s]*)(?::\d*)?"
_HOSTS = re.compile(rf"{_HOST}(?:,{_HOST})*")
_SCHEME = re.compile(r"(?:[\w.-]+=)?[A-Za-z][A-Za-z0-9+.-]*:?")
_LOGIN = re.compile(r"([^:@/?#\[\]\s]*):([^@/?#\[\]\s]+)")
_USER = re.compile(r"[^:@/?#\[\]\s]+")
_USER_SCHEMES = ("postgresql", "postgres", "amqp", "amqps", "amqp1", "amqp1s")
"""Schemes where a login without a password is a user name. Elsewhere it may be a token."""
_PASSWORD_SCHEMES = tuple(
    f"{server}{suffix}"
    for server in ("redis", "rediss", "valkey", "valkeys")
    for suffix in ("", "+unix", "+sentinel")
)
_PLAIN = re.compile(r"[\w./\\-]*(?::\d+)?")
_EXAMPLE_LOGIN = "user:password"
"""The placeholder in error messages that show where a login goes."""

# A value ends at the next parameter. An ampersand before anything else is part of the value.
_PARAMETER = re.compile(rf"(?i:({_SECRET})=)([^&]*(?:&(?![a-z_]+=)[^&]*)*)")
_ASSIGNMENT = re.compile(rf"(?i:({_SECRET})=)('(?:[^'\\]|\\.)*'|[^&\s'\",;)]+)")
# The bounds let any text take a time that grows only with its length.
_QUOTED = re.compile(r"""(['"])([A-Za-z][A-Za-z0-9+.-]{0,63}://(?:\\.|(?!\1)[^\n]){1,1000}+)\1""")
_BARE = re.compile(r"""[A-Za-z][A-Za-z0-9+.-]{0,63}://[^\s'"<>]*""")


def mask_secrets(text: str) -> str:
    """Return a text with the secrets of quoted URLs and connection strings masked."""
    if "@" not in text and "=" not in text:
        return text
    text = _QUOTED.sub(_mask_quoted, text)
    text = _BARE.sub(lambda found: mask_url(found[0]) if "@" in found[0] else found[0], text)
    return _ASSIGNMENT.sub(rf"\1={MASK}", text)


def _mask_quoted(found: re.Match[str]) -> str:
    mark, url = found[1], found[2]
    # Without a login or a secret option, the URL has no secret: "begin with redis://HOST:PORT".
    has_no_secret = "@" not in url and not _PARAMETER.search(url)
    return found[0] if has_no_secret else f"{mark}{mask_url(url)}{mark}"


def mask_url(url: str) -> str:
    """Return a URL with its secrets masked: all before the last ``@`` if its login is ambiguous."""
    url = _PARAMETER.sub(lambda found: f"{found[1]}={MASK}" if found[2] else found[0], url)
    if url.startswith("sqlite:///"):
        return url  # a path, which may contain anything
    before, at, after = url.rpartition("@")
    scheme, mark, rest = (before if at else url).partition("://")
    if not mark:
        return f"{MASK}@{after}" if at else url if _PLAIN.fullmatch(url) else MASK
    if not _SCHEME.fullmatch(scheme):
        return f"{MASK}@{after}" if at else MASK
    if not at:
        return url if _HOSTS.fullmatch(_authority(rest)) else f"{scheme}://{MASK}"
    return f"{scheme}://{_mask_login(url, scheme, rest)}@{after}"


def _mask_login(url: str, scheme: str, login: str) -> str:
    if login == _EXAMPLE_LOGIN:
        return login
    if (found := _LOGIN.fullmatch(login)) and scheme in (*_USER_SCHEMES, *_PASSWORD_SCHEMES):
        return f"{found[1]}:{MASK}"
    is_user = scheme in _USER_SCHEMES and _USER.fullmatch(login) and not find_url_flaw(url)
    return login if is_user else MASK


def find_url_flaw(url: str) -> str:
    """Return the remedy for a URL whose parts are ambiguous; an empty text if they are clear.

    A driver that ends a password at the wrong character would take the rest for a host, a port or
    an option, and quote it in its messages. Such a URL must not reach a driver.
    """
    scheme, mark, rest = url.partition("://")
    if not mark or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        return "begin it with SCHEME://"
    authority = _authority(rest)
    login, _, hosts = authority.rpartition("@")
    if "@" in login or "@" in rest[len(authority) :]:
        return "write @ as %40, / as %2F, ? as %3F and # as %23 in a user name, password or option"
    if re.search(r"[\x00-\x1f\x7f-\x9f]", url) or re.search(r"[\s\[\]]", login):
        return "write brackets, spaces and control characters as %5B, %5D, %20 and so on"
    if re.search(r"%(?![0-9A-Fa-f]{2})", authority) or "%00" in url:
        return "write % as %25, and no %00"
    if not _HOSTS.fullmatch(hosts) or not _can_be_parsed(url):
        return "port: give a number, as in HOST:PORT, and write an IPv6 address in brackets"
    query = rest[len(authority) :].partition("?")[2]
    if any(pair and "=" not in pair for pair in query.split("&")):
        return "write options as NAME=VALUE with & between them, and & as %26 in a value"
    return ""


def url_examples(schemes: Collection[str]) -> str:
    """Return a line with an example for each backend that has one of these schemes."""
    return "\n".join(
        f"  {backend:12}  {url}"
        for backend, url in URL_EXAMPLES.items()
        if urlsplit(url).scheme in schemes
    )


def unknown_options(names: Iterable[str], url: str) -> str:
    """Return the names of unknown options for an error; masked if one may be part of a password."""
    has_secret = _PARAMETER.search(url.partition("?")[2])
    shown = (name if name in _SECRET_OPTIONS or not has_secret else MASK for name in names)
    return ", ".join(sorted(set(shown)))


def _authority(rest: str) -> str:
    return re.split(r"[/?#]", rest, maxsplit=1)[0]


def _can_be_parsed(url: str) -> bool:
    try:
        urlsplit(url)
    except ValueError:
        return False
    return True
