"""Who may use the dashboard and its HTTP interface: users, login sessions and API tokens.

A user is the entry ``users/<name>``, a session ``sessions/<digest>`` and a token
``tokens/<digest>``. Secrets are stored only as digests: reading the store gives access to nothing.
A session ends with its lease, and with its user. The entry ``keys/forms`` is the key of the tokens
in forms; all processes of a dashboard share it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Literal, TypeVar, get_args

import anyio
import msgspec

from umbel.backends import Coordination, Put, json_value
from umbel.control.saved_views import VIEWS
from umbel.errors import ConfigurationError, NotAllowed

T = TypeVar("T")
Role = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
"""From the least to the most that a user may do."""
USERS = "users/"
SESSIONS = "sessions/"
TOKENS = "tokens/"
SESSION_SECONDS = 12 * 3600.0
MIN_PASSWORD_LENGTH = 10
MAX_PASSWORD_LENGTH = 1_000
_COST = 2**14
"""The scrypt parameter n: about 50 ms and 16 MB for each attempt."""
_MAX_HASHES = 2
"""How many passwords are hashed at a time, in threads: more would take the processor and memory."""
_FORM_KEY = "keys/forms"
_TOKEN_PREFIX = "umbel_"


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A person or a program, and what it may do."""

    name: str
    role: Role
    is_local: bool = False
    """Whether it is known only by its connection from this machine."""

    def may(self, role: Role) -> bool:
        """Return whether the user may do what this role may do."""
        return ROLES.index(self.role) >= ROLES.index(role)


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """An API token, without its secret."""

    name: str
    role: Role
    digest: str = ""
    left: float | None = None
    """Seconds until it expires; None if it does not."""


class _StoredUser(msgspec.Struct, frozen=True, kw_only=True):
    role: Role
    salt: str
    password: str
    version: str
    """Changes with the password, so that older sessions end."""


class _StoredSession(msgspec.Struct, frozen=True, kw_only=True):
    user: str
    version: str


class _StoredToken(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    role: Role


class Access:
    """Reads and changes users, sessions and tokens."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._hashes = anyio.CapacityLimiter(_MAX_HASHES)

    async def form_key(self) -> bytes:
        """Return the key of the tokens in forms. It is made when it is needed first."""
        page = await self._coordination.read(_FORM_KEY, limit=1)
        if not page.entries:
            put = Put(_FORM_KEY, secrets.token_hex(32).encode())
            await self._coordination.commit({_FORM_KEY: 0}, [put])  # or another process was first
            page = await self._coordination.read(_FORM_KEY, limit=1)
        return page.entries[0].value

    # --- users -------------------------------------------------------------------------------

    async def users(self) -> list[User]:
        """Return all users by name."""
        page = await self._coordination.read(USERS)
        return [
            User(name=entry.key.removeprefix(USERS), role=stored.role)
            for entry in page.entries
            if (stored := _read(entry.value, _StoredUser)) is not None
        ]

    async def user(self, name: str) -> User | None:
        """Return a user; None if there is none with this name."""
        stored = await self._user(name)
        return None if stored is None else User(name=name, role=stored.role)

    async def set_user(
        self, name: str, role: Role, password: str, *, keep_admin: bool = False
    ) -> None:
        """Add a user, or change the role and password of an existing one, whose sessions end.

        Raises:
            ConfigurationError: the name, the role or the password cannot be used.
            NotAllowed: ``keep_admin`` is true, and no other user would be an admin.
        """
        _check_name("user", name)
        _check_role(role)
        if not MIN_PASSWORD_LENGTH <= len(password) <= MAX_PASSWORD_LENGTH:
            raise ConfigurationError(
                f"password: {len(password)} characters; give {MIN_PASSWORD_LENGTH} to"
                f" {MAX_PASSWORD_LENGTH:,}"
            )
        salt = secrets.token_hex(16)
        hashed = await self._hash(password, salt)
        stored = _StoredUser(role=role, salt=salt, password=hashed, version=secrets.token_hex(8))
        checks = await self._another_admin(name) if keep_admin and role != "admin" else {}
        done = await self._coordination.commit(checks, [Put(USERS + name, json_value(stored))])
        _check_done(done)

    async def remove_user(self, name: str, *, keep_admin: bool = False) -> bool:
        """Remove a user, whose sessions and saved views end. Return whether there was one.

        Raises:
            NotAllowed: ``keep_admin`` is true, and no other user would be an admin.
        """
        _check_name("user", name)
        found = await self._user(name)
        checks = await self._another_admin(name) if keep_admin else {}
        deletes = [USERS + name, VIEWS + name]
        _check_done(await self._coordination.commit(checks, deletes=deletes))
        return found is not None

    async def _another_admin(self, name: str) -> Mapping[str, int]:
        """Return a check that another user is an admin if this one is. Raises NotAllowed."""
        page = await self._coordination.read(USERS)
        stored = {entry.key: _read(entry.value, _StoredUser) for entry in page.entries}
        admins = {key for key, one in stored.items() if one is not None and one.role == "admin"}
        if USERS + name not in admins:
            return {}
        for entry in page.entries:
            if entry.key in admins - {USERS + name}:
                return {entry.key: entry.revision}
        raise NotAllowed(f"{name} is the only admin; make another user an admin first")

    async def log_in(self, name: str, password: str) -> str | None:
        """Return the secret of a new session; None if the name or the password is wrong.

        A wrong name takes as long as a wrong password.
        """
        stored = await self._user(name)
        salt = "00" * 16 if stored is None else stored.salt
        given = await self._hash(password[:MAX_PASSWORD_LENGTH], salt)
        if stored is None or not hmac.compare_digest(given, stored.password):
            return None
        secret = secrets.token_urlsafe(32)
        session = _StoredSession(user=name, version=stored.version)
        put = Put(SESSIONS + _digest(secret), json_value(session), SESSION_SECONDS)
        await self._coordination.commit({}, [put])
        return secret

    async def log_out(self, secret: str) -> None:
        """End a session."""
        await self._coordination.commit({}, deletes=[SESSIONS + _digest(secret)])

    async def user_of_session(self, secret: str) -> User | None:
        """Return the user of a session; None if it has ended or its user was changed."""
        key = SESSIONS + _digest(secret)
        page = await self._coordination.read(key, limit=1)
        session = next((_read(e.value, _StoredSession) for e in page.entries if e.key == key), None)
        if session is None:
            return None
        stored = await self._user(session.user)
        if stored is None or stored.version != session.version:
            return None
        return User(name=session.user, role=stored.role)

    async def _user(self, name: str) -> _StoredUser | None:
        if not _is_name(name):
            return None
        page = await self._coordination.read(USERS + name, limit=1)
        found = (_read(e.value, _StoredUser) for e in page.entries if e.key == USERS + name)
        return next(found, None)

    async def _hash(self, password: str, salt: str) -> str:
        return await anyio.to_thread.run_sync(_hash, password, salt, limiter=self._hashes)

    # --- tokens ------------------------------------------------------------------------------

    async def tokens(self) -> list[Token]:
        """Return all tokens that have not expired."""
        page = await self._coordination.read(TOKENS)
        return [
            Token(
                name=stored.name,
                role=stored.role,
                digest=entry.key.removeprefix(TOKENS),
                left=entry.left,
            )
            for entry in page.entries
            if (stored := _read(entry.value, _StoredToken)) is not None
        ]

    async def add_token(self, name: str, role: Role, seconds: float | None) -> str:
        """Return the secret of a new token. It cannot be read again.

        Raises:
            ConfigurationError: the name, the role or the time cannot be used.
        """
        secret = _TOKEN_PREFIX + secrets.token_urlsafe(32)
        stored = _StoredToken(name=_check_name("token", name), role=_check_role(role))
        put = Put(TOKENS + _digest(secret), json_value(stored), seconds)
        await self._coordination.commit({}, [put])
        return secret

    async def remove_token(self, name: str) -> int:
        """Remove the tokens with this name. Return how many."""
        found = [TOKENS + token.digest for token in await self.tokens() if token.name == name]
        await self._coordination.commit({}, deletes=found)
        return len(found)

    async def user_of_token(self, secret: str) -> User | None:
        """Return what a token stands for; None if it is unknown or has expired."""
        key = TOKENS + _digest(secret)
        page = await self._coordination.read(key, limit=1)
        stored = next((_read(e.value, _StoredToken) for e in page.entries if e.key == key), None)
        return None if stored is None else User(name=f"token {stored.name}", role=stored.role)


def _hash(password: str, salt: str) -> str:
    data = password.encode(errors="surrogatepass")
    return hashlib.scrypt(data, salt=bytes.fromhex(salt), n=_COST, r=8, p=1).hex()


def _check_done(revision: int | None) -> None:
    if revision is None:
        raise NotAllowed("another admin was changed at the same time; try again")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


def _is_name(name: str) -> bool:
    return 0 < len(name) <= 64 and name.isprintable() and "/" not in name and name == name.strip()


def _check_name(field: str, name: str) -> str:
    if not _is_name(name):
        raise ConfigurationError(
            f"{field}={name!r:.80}: give a name of 1 to 64 printable characters without /"
        )
    return name


def _check_role(role: str) -> Role:
    for known in ROLES:
        if role == known:
            return known
    raise ConfigurationError(f"role={role!r:.40}: give one of {', '.join(ROLES)}")


def _read(value: bytes, kind: type[T]) -> T | None:
    """Return the value of an entry; None if it was written by another program."""
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError:
        return None
