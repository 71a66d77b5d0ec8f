"""URLs of servers: how they are shown without their secrets, and whether their parts are clear.

Every text that may quote a URL passes through ``masked``: messages of errors, log lines,
telemetry, what commands print. A value that is a URL as a whole passes through ``masked_url``,
which hides a secret also where the URL cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

MASK = "***"

_SECRET = r"[\w.-]*(?:password|passwd|passphrase|pwd|secret|token)\w*|pickle_key"
_OPTIONS = ("password", "sslpassword", "sentinel_password", "token")
"""Names of options with a secret that are no secret themselves."""
_HOST = r"(?:\[[^\[\]@]*\]|[^\[\]:@\s]*)(?::\d*)?"
_HOSTS = re.compile(rf"{_HOST}(?:,{_HOST})*")
_SCHEME = re.compile(r"(?:[\w.-]+=)?[A-Za-z][A-Za-z0-9+.-]*:?")
_LOGIN = re.compile(r"([^:@/?#\[\]\s]*):([^@/?#\[\]\s]+)")
_USER = re.compile(r"[^:@/?#\[\]\s]+")
_USERS = ("postgresql", "postgres", "amqp", "amqps", "amqp1", "amqp1s")
"""Where a name without a password is a user. Elsewhere it may be a token, with a colon in it."""
_USERS_WITH_PASSWORDS = tuple(
    f"{server}{way}"
    for server in ("redis", "rediss", "valkey", "valkeys")
    for way in ("", "+unix", "+sentinel")
)
_PLAIN = re.compile(r"[\w./\\-]*(?::\d+)?")
_EXAMPLE = "user:password"
"""What messages write to show where a login goes."""

# A value ends at the next parameter. An ampersand before anything else is part of the value.
_PARAMETER = re.compile(rf"(?i:({_SECRET})=)([^&]*(?:&(?![a-z_]+=)[^&]*)*)")
_ASSIGNMENT = re.compile(rf"(?i:\b({_SECRET})=)('(?:[^'\\]|\\.)*'|[^&\s'\",;)]+)")
_QUOTED = re.compile(r"""(['"])([A-Za-z][A-Za-z0-9+.-]*://(?:\\.|(?!\1)[^\n])+)\1""")
_BARE = re.compile(r"""[A-Za-z][A-Za-z0-9+.-]*://[^\s'"<>]*@[^\s'"<>]*""")


def masked(text: str) -> str:
    """A text that may quote URLs or connection strings, without the secrets in them."""
    if "@" not in text and "=" not in text:
        return text
    text = _QUOTED.sub(_masked_in_quotes, text)
    text = _BARE.sub(lambda found: masked_url(found[0]), text)
    return _ASSIGNMENT.sub(rf"\1={MASK}", text)


def _masked_in_quotes(found: re.Match[str]) -> str:
    mark, url = found[1], found[2]
    # Without either it holds no secret, or it is an example: "begin with redis://HOST:PORT".
    is_open = "@" not in url and not _PARAMETER.search(url)
    return found[0] if is_open else f"{mark}{masked_url(url)}{mark}"


def masked_url(url: str) -> str:
    """A URL without its secrets; everything before the last ``@`` where its login is not clear."""
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
    return f"{scheme}://{_masked_login(url, scheme, rest)}@{after}"


def _masked_login(url: str, scheme: str, login: str) -> str:
    if login == _EXAMPLE:
        return login
    if (found := _LOGIN.fullmatch(login)) and scheme in (*_USERS, *_USERS_WITH_PASSWORDS):
        return f"{found[1]}:{MASK}"
    is_user = scheme in _USERS and _USER.fullmatch(login) and not flaw_of(url)
    return login if is_user else MASK


def flaw_of(url: str) -> str:
    """Why the parts of a server's URL cannot be told apart, and the remedy; "" when they can.

    A driver that reads a password up to the wrong character takes the rest for a host, a port or
    an option, and quotes it in its messages. So such a URL does not reach a driver.
    """
    scheme, mark, rest = url.partition("://")
    if not mark or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        return "begin it with SCHEME://"
    place = _authority(rest)
    login, _, hosts = place.rpartition("@")
    if "@" in login or "@" in rest[len(place) :]:
        return "write @ as %40, / as %2F, ? as %3F and # as %23 in a user name, password or option"
    if re.search(r"[\x00-\x1f\x7f-\x9f]", url) or re.search(r"[\s\[\]]", login):
        return "write brackets, spaces and control characters as %5B, %5D, %20 and so on"
    if re.search(r"%(?![0-9A-Fa-f]{2})", place) or "%00" in url:
        return "write % as %25, and no %00"
    if not _HOSTS.fullmatch(hosts) or not _is_readable(url):
        return "port: give a number, as in HOST:PORT, and write an IPv6 address in brackets"
    query = rest[len(place) :].partition("?")[2]
    if any(pair and "=" not in pair for pair in query.split("&")):
        return "write options as NAME=VALUE with & between them, and & as %26 in a value"
    return ""


def unknown_options(names: Iterable[str], url: str) -> str:
    """Names that an error quotes as unknown; masked where they may be a part of a password."""
    has_secret = _PARAMETER.search(url.partition("?")[2])
    shown = (name if name in _OPTIONS or not has_secret else MASK for name in names)
    return ", ".join(sorted(set(shown)))


def _authority(rest: str) -> str:
    return re.split(r"[/?#]", rest, maxsplit=1)[0]


def _is_readable(url: str) -> bool:
    try:
        urlsplit(url)
    except ValueError:
        return False
    return True
