"""Every error Umbel raises, on one page.

::

    UmbelError
    ├── ConfigurationError      an option or URL is wrong; the text says what to write
    │   └── IndexTaken          ... another worker sits at that index
    ├── BadArguments            a call does not fit the task's signature
    ├── NotEncodable            an argument or result has no wire form
    ├── MessageTooLarge         a message or result is over the size limit
    ├── BadMessage              bytes from outside are not a message we can read
    ├── UnknownTask             no task of that name is registered here
    ├── UnknownWorker           no worker of that name has ever been here
    ├── UnknownJob              no job of that id was ever published, or its record was pruned
    ├── DuplicateJob            a live job already holds the unique key
    ├── NotAllowed              the operation does not fit the job's state
    ├── DeploymentUnderWay      somebody else deploys, and only one may at a time
    ├── DeploymentLost          the deployment ended while it was waited for: workers fetch again
    ├── SchemaError             the database has no Umbel schema, or one of another version
    ├── Unavailable             the server cannot be reached right now; trying later is right
    │   ├── PublishTimeout      ... and the publishing deadline has passed
    │   └── BacklogFull         ... and the backlog holds all it may
    ├── LeaseLost               the work was taken from this worker; what it did is not recorded
    ├── StepsChanged            a job's kept steps are not those that its code calls now
    ├── ResultTimeout           the job is not finished yet
    └── JobFailed               the job ended without a result
        ├── JobCancelled        ... because somebody cancelled it
        └── JobExpired          ... because its expiry passed before it started
"""

from __future__ import annotations

from collections.abc import Sequence

from umbel.urls import masked


def _readable(text: str, limit: int) -> str:
    """Text from outside, so that every store takes it and somebody reads it."""
    text = text if len(text) <= limit else f"{text[: limit // 2]} … {text[-limit // 3 :]}"
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()


class UmbelError(Exception):
    """Anything Umbel itself raises. Catch this to catch them all.

    Passwords and tokens of URLs in the text are masked.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(masked(one) if isinstance(one, str) else one for one in args))


class ConfigurationError(UmbelError, ValueError):
    """An option is wrong. The text names the field and what to write instead."""


class IndexTaken(ConfigurationError):
    """Another living worker has the index that this one asks for."""

    def __init__(self, index: int, worker: str) -> None:
        super().__init__(
            f"index={index}: worker {worker} has it; stop that one (once it is dead, its lease"
            " lapses by itself), give this one its name, or give another index"
        )
        self.index = index
        self.worker = worker

    def __reduce__(self) -> tuple[type[IndexTaken], tuple[int, str]]:
        return IndexTaken, (self.index, self.worker)


class BadArguments(UmbelError, TypeError):
    """The arguments of a call do not fit the task's signature. Correct the call."""


class NotEncodable(UmbelError, TypeError):
    """A value has no wire form. Pass plain data, a dataclass, a msgspec or a pydantic model."""


class MessageTooLarge(UmbelError, ValueError):
    """A message is over the limit. Pass a reference (a path, a key, a URL) instead of the data."""


class BadMessage(UmbelError, ValueError):
    """Bytes from outside cannot be read as a message. ``field`` names the part that is wrong."""

    def __init__(self, field: str, why: str, *, unsupported: bool = False) -> None:
        self.field = _readable(field, 100) if field.strip() else repr(field)
        super().__init__(f"{self.field}: {_readable(why, 800)}")
        self.unsupported = unsupported
        """The type asked for has no wire form, whatever the value."""


class UnknownTask(UmbelError, LookupError):
    """No task of that name is registered here. Import its module, or ``app.include`` it."""


class UnknownWorker(UmbelError, LookupError):
    """No worker of that name has been here. ``living`` are the names of those that are."""

    def __init__(self, name: str, living: Sequence[str]) -> None:
        there = f"there is {', '.join(living)}" if living else "no worker lives"
        super().__init__(f"no worker is called {name!r}; {there}")
        self.name = name
        self.living = tuple(living)

    def __reduce__(self) -> tuple[type[UnknownWorker], tuple[str, tuple[str, ...]]]:
        return UnknownWorker, (self.name, self.living)


class UnknownJob(UmbelError, LookupError):
    """No job has this id. It was never published here, or its record has been pruned."""


class DuplicateJob(UmbelError):
    """A live job holds the unique key. ``existing`` is its id."""

    def __init__(self, key: str, existing: str) -> None:
        super().__init__(
            f"job {existing} already holds the unique key {key!r}; wait for it, or publish with"
            ' Unique(..., on_conflict="return") or on_conflict="replace"'
        )
        self.key = key
        self.existing = existing


class NotAllowed(UmbelError):
    """The job's state does not permit the operation. The text says which states do."""


class DeploymentUnderWay(UmbelError):
    """Somebody else deploys. Wait until they have ended it, or take over with ``--force``."""


class DeploymentLost(UmbelError):
    """The deployment was ended or taken over by others, or has lapsed. Begin another one."""


class SchemaError(UmbelError):
    """The database's schema is missing, older or newer. Run ``umbel db migrate`` or upgrade."""


class Unavailable(UmbelError, ConnectionError):
    """A server cannot be reached or refuses work at the moment. Nothing was lost; try later."""


class PublishTimeout(Unavailable, TimeoutError):
    """The broker did not confirm within the deadline. Publishing the same id again is safe."""


class BacklogFull(Unavailable):
    """The broker is out of reach and the backlog is full: nothing was kept. Slow down, or raise
    ``backlog_limit``."""


class LeaseLost(UmbelError):
    """The lease on a job has lapsed or was taken; its outcome will not be recorded."""


class StepsChanged(UmbelError):
    """A job goes on from the steps it has kept, but its code calls others now. Restore their order,
    or let the job begin anew: ``umbel jobs retry ID --from-scratch``."""


class ResultTimeout(UmbelError, TimeoutError):
    """The job has not finished within the time given. It goes on; ask again later."""


class JobFailed(UmbelError):
    """The job ended without a result and its own exception cannot be raised here."""


class JobCancelled(JobFailed):
    """The job was cancelled before it gave a result."""


class JobExpired(JobFailed):
    """The job's expiry passed before a worker could start it."""


class RemoteTraceback(Exception):
    """The traceback of the worker, shown as the cause of an exception raised again by a handle."""

    def __init__(self, text: str) -> None:
        super().__init__(masked(text))
        self.text = masked(text)

    def __str__(self) -> str:
        return f"\n{self.text}"
