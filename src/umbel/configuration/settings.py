"""An application's settings: frozen, checked, each with the environment variable that sets it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import msgspec

from umbel.backends.choosing import STORES, TRANSPORTS
from umbel.configuration.file import ConfigFile
from umbel.errors import ConfigurationError
from umbel.messages import JSON, MESSAGEPACK, PICKLE
from umbel.urls import MASK, find_url_flaw, mask_url, url_examples

DEFAULT_URL = "sqlite:///umbel.db"
SCHEMES = (*STORES, *TRANSPORTS, "umbel", "umbel+tcp", "umbel+unix")
BACKLOGS = ("sqlite", "postgresql", "postgres")
_NAMESPACE = re.compile(r"[A-Za-z0-9_.\-]{1,63}")
_FORMATS = {"json": JSON, "msgpack": MESSAGEPACK, "pickle": PICKLE}
_KINDS = {int: "a whole number", float: "a number", str: "a text"}
_MAX_RECORDS = 10**15
"""Databases refuse numbers above 64 bits."""
_NEXT_PAIR = re.compile(r",(?=[^,=]+=[a-z0-9+]+://)")
"""The comma between two pairs, not one between two servers of a URL."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Settings:
    """All settings of an application. Unset fields come from the environment, a file, or here."""

    broker: str = DEFAULT_URL
    """UMBEL_URL or UMBEL_BROKER"""
    brokers: Mapping[str, str] = field(default_factory=dict)
    """UMBEL_BROKERS, as in mail=amqp://host,bulk=nats://host: the brokers of some queues"""
    store: str = ""
    """UMBEL_STORE; if empty the broker's URL, or the default URL if the broker is no store"""
    namespace: str = "umbel"
    """UMBEL_NAMESPACE"""
    deadline: float = 2.0
    """UMBEL_DEADLINE: maximum seconds for publishing, and for reading or cancelling one job"""
    backlog: str = "memory"
    """UMBEL_BACKLOG: where messages are kept while the broker is unreachable: memory, none, or the
    URL of a SQLite file or a PostgreSQL database"""
    backlog_limit: int = 10_000
    """UMBEL_BACKLOG_LIMIT: the maximum number of messages in the backlog"""
    max_message: int = 1_048_576
    """UMBEL_MAX_MESSAGE: the maximum size of a message in bytes"""
    format: str = "json"
    """UMBEL_FORMAT: json, msgpack, or pickle with a key"""
    pickle_key: str = ""
    """UMBEL_PICKLE_KEY: signs and verifies pickles"""
    keep_days: float = 7.0
    """UMBEL_KEEP_DAYS: how long the records of finished jobs are kept"""
    keep_count: int = 1_000_000
    """UMBEL_KEEP_COUNT: how many records of finished jobs are kept at most"""
    missing_task_days: float = 7.0
    """UMBEL_MISSING_TASK_DAYS: how long jobs of a task that no running worker has wait for one
    before they are buried"""

    route_idle: float = 0.0
    """UMBEL_ROUTE_IDLE: seconds without a job after which a key's route is released; 0: never"""
    keys: str = ""
    """UMBEL_KEYS: the file of keys that sign messages to one worker, see umbel keys; if empty and
    the broker is a SQLite file, the user's key"""

    def __post_init__(self) -> None:
        _check_url("broker", self.broker)
        _check_url("store", self.store, tuple(STORES))
        for queue, url in _check_pairs(self.brokers):
            # A name that is not plain may be part of a URL that was split in the wrong place.
            _check_url(f"brokers[{mask_url(queue)!r}]", url)
        object.__setattr__(self, "brokers", MappingProxyType(dict(self.brokers)))
        if not _NAMESPACE.fullmatch(self.namespace):
            raise ConfigurationError(
                f"namespace={_mask(self.namespace)!r}: give 1 to 63 letters, digits, '_', '-'"
                " or '.'"
            )
        if self.backlog not in ("memory", "none"):
            _check_url("backlog", self.backlog, BACKLOGS)
        if self.backlog_limit < 1:
            raise ConfigurationError(f"backlog_limit={self.backlog_limit}: give 1 or more messages")
        if not 0 < self.deadline <= 3600:
            raise ConfigurationError(f"deadline={self.deadline}: give seconds above 0")
        if self.format not in _FORMATS:
            raise ConfigurationError(
                f"format={_mask(self.format)!r}: give one of {', '.join(_FORMATS)}"
            )
        if not 0 <= self.route_idle < float("inf"):
            raise ConfigurationError(f"route_idle={self.route_idle}: give seconds, or 0 for never")
        if not self.missing_task_days > 0:
            raise ConfigurationError(
                f"missing_task_days={self.missing_task_days}: give a number of days above 0"
            )
        if self.max_message < 1024:
            raise ConfigurationError(f"max_message={self.max_message}: give 1,024 or more bytes")
        if not self.keep_days > 0:
            raise ConfigurationError(f"keep_days={self.keep_days}: give a number of days above 0")
        if not 0 <= self.keep_count <= _MAX_RECORDS:
            raise ConfigurationError(
                f"keep_count={self.keep_count}: give 0 to {_MAX_RECORDS:,} records"
            )

    @property
    def content_type(self) -> str:
        """The media type of message bodies."""
        return _FORMATS[self.format]

    @property
    def is_local_file(self) -> bool:
        """Whether the broker is a file, so that only processes of one machine publish."""
        scheme, _, path = self.broker.partition(":///")
        return scheme == "sqlite" and not path.startswith(":memory:")

    @classmethod
    def resolve(
        cls,
        given: Mapping[str, Any],
        environment: Mapping[str, str],
        file: ConfigFile = ConfigFile(),  # noqa: B008 - it is immutable
    ) -> Settings:
        """Return settings from arguments, the environment, the file, then defaults.

        Raises:
            ConfigurationError: a value is wrong; the text names the field, and the variable or
                the file that sets it.
        """
        in_file = _check_file(file, {one.name: one.default for one in fields(cls)})
        values = {name: value for name, value in given.items() if value is not None}
        variables: dict[str, str] = {}
        for one in fields(cls):
            names = [f"UMBEL_{one.name.upper()}"]
            if one.name == "broker":
                names.insert(0, "UMBEL_URL")
            found = next((name for name in names if environment.get(name)), None)
            if one.name not in values and found is not None:
                values[one.name] = _parse(found, environment[found], one.default)
                variables[one.name] = found
            elif one.name not in values and one.name in in_file:
                values[one.name] = in_file[one.name]
                variables[one.name] = f"{file.source}: {one.name}"
        try:
            return cls(**values)
        except ConfigurationError as error:
            raise _name_variable(error, variables) from None

    def public(self) -> dict[str, Any]:
        """Return the settings with passwords, tokens and keys masked."""
        shown = {one.name: getattr(self, one.name) for one in fields(self)}
        for name in ("broker", "store", "backlog"):
            shown[name] = mask_url(shown[name])
        shown["brokers"] = {queue: mask_url(url) for queue, url in self.brokers.items()}
        shown["pickle_key"] = MASK if self.pickle_key else ""
        return shown

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.public().items())
        return f"Settings({shown})"


def _parse(variable: str, text: str, like: Any) -> Any:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"{variable}: give text in UTF-8") from None
    if like is MISSING:  # ``brokers`` is the only setting that is a mapping
        return _parse_pairs(variable, text)
    try:
        return msgspec.convert(text, type(like), strict=False)
    except msgspec.ValidationError:
        raise ConfigurationError(f"{variable}={_mask(text)!r}: give {_KINDS[type(like)]}") from None


def _check_file(file: ConfigFile, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a file. Raise ConfigurationError for unknown names and wrong types."""
    found: dict[str, Any] = {}
    for name, value in file.settings.items():
        if name not in defaults:
            import difflib

            near = difflib.get_close_matches(name, [*defaults, "tasks"], n=1)
            remedy = f"did you mean {near[0]}? If not, the" if near else "the"
            raise ConfigurationError(
                f"{file.source}: {name}: not a setting; {remedy} settings are"
                f' {", ".join(defaults)}; options of tasks are in [tasks."NAME"]'
            )
        default = defaults[name]
        try:
            found[name] = (
                dict(value) if default is MISSING else msgspec.convert(value, type(default))
            )
        except (msgspec.ValidationError, TypeError, ValueError):
            kind = _KINDS.get(type(default), "a table, as in [brokers]")
            raise ConfigurationError(f"{file.source}: {name}: give {kind}") from None
    return found


def _name_variable(error: ConfigurationError, variables: Mapping[str, str]) -> ConfigurationError:
    """Return the error with the variable in place of the setting that the variable has set."""
    text = str(error)
    name = re.match(r"\w*", text)[0]  # type: ignore[index]  # it always matches
    return ConfigurationError(variables[name] + text[len(name) :]) if name in variables else error


def _mask(text: str) -> str:
    """Return the value of a setting. If it looks like a URL given by mistake, mask it."""
    return mask_url(text) if any(mark in text for mark in ("@", "=", ":")) else text


def _parse_pairs(variable: str, text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in _NEXT_PAIR.split(text)]
    if not all(equals and "://" not in queue for queue, equals, _ in pairs):
        raise ConfigurationError(
            f"{variable}={mask_url(text)!r}: give QUEUE=URL, several with commas between them"
        )
    return {queue.strip(): url.strip() for queue, _, url in pairs}


def _check_pairs(brokers: Any) -> list[tuple[str, str]]:
    pairs = list(brokers.items()) if isinstance(brokers, Mapping) else [("", "")]
    for queue, url in pairs:
        if not (isinstance(queue, str) and isinstance(url, str) and queue and url):
            raise ConfigurationError(
                'brokers: give the URL of a broker for each queue, as in {"mail": "amqp://host"}'
            )
    return pairs


def _check_url(name: str, url: str, schemes: tuple[str, ...] = SCHEMES) -> None:
    try:
        scheme = urlsplit(url).scheme
    except ValueError:  # an unclosed bracket
        scheme = ""
    if url and scheme not in schemes:
        flaw = f"{scheme}:// cannot be the {name}"
        if scheme not in SCHEMES:
            flaw = "no backend has such a URL"
        raise ConfigurationError(
            f"{name}={mask_url(url)!r}: {flaw}; give one of\n{url_examples(schemes)}"
        )
    if url and scheme != "sqlite" and (flaw := find_url_flaw(url)):
        raise ConfigurationError(f"{name}={mask_url(url)!r}: {flaw}")
