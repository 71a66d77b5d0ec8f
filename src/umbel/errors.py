"""All errors that Umbel raises.

::

    UmbelError
    ├── ConfigurationError      an option or URL is wrong; the text says what to write
    │   └── IndexTaken          ... another worker has that index
    ├── BadArguments            a call does not fit the task's signature
    ├── NotEncodable            an argument or result has no wire form
    ├── MessageTooLarge         a message or result is over the size limit
    ├── BadMessage              a received message cannot be read
    ├── UnknownTask             no task of that name is registered here
    ├── UnknownSchedule         no schedule of that name exists
    ├── UnknownWorker           no worker of that name has ever been registered
    ├── UnknownJob              no job of that id was ever published, or its record was pruned
    ├── DuplicateJob            a live job already holds the unique key
    ├── NotAllowed              the operation does not fit the job's state
    ├── DeploymentUnderWay      another deployment is in progress
    ├── DeploymentLost          the deployment has ended, expired or been taken over
    ├── SchemaError             the database has no Umbel schema, or one of another version
    ├── Unavailable             the server cannot be reached now; try again later
    │   ├── PublishTimeout      ... and the publishing deadline has passed
    │   └── BacklogFull         ... and the backlog is full
    ├── LeaseLost               the worker lost the job; its outcome is not recorded
    ├── StepsChanged            a job's stored steps do not match its code
    ├── ResultTimeout           the job is not finished yet
    └── JobFailed               the job ended without a result
        ├── JobCancelled        ... because it was cancelled
        ├── BroadcastFailed     ... because the task failed on some workers
        ├── NodeFailed          ... because a node of its graph failed
        └── JobExpired          ... because its expiry passed before it started
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from umbel.urls import mask_secrets


def _clean(text: str, limit: int) -> str:
    """Shorten a foreign text and escape what stores do not accept."""
    text = text if len(text) <= limit else f"{text[: limit // 2]} … {text[-limit // 3 :]}"
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()


class UmbelError(Exception):
    """The base class of all errors of Umbel. Catch it to catch them all.

    Passwords and tokens of URLs in the text are masked.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(mask_secrets(one) if isinstance(one, str) else one for one in args))


class ConfigurationError(UmbelError, ValueError):
    """An option is wrong. The text names it and says what to write instead."""


class IndexTaken(ConfigurationError):
    """Another running worker has the requested index. Use another index, or stop that worker."""

    def __init__(self, index: int, worker: str) -> None:
        super().__init__(
            f"index={index}: worker {worker} has it; stop that worker (if it has died, wait until"
            " its lease has expired), give this worker the same name, or use another index"
        )
        self.index = index
        self.worker = worker

    def __reduce__(self) -> tuple[type[IndexTaken], tuple[int, str]]:
        return IndexTaken, (self.index, self.worker)


class BadArguments(UmbelError, TypeError):
    """The arguments of a call do not match the task's signature. Correct the call."""


class NotEncodable(UmbelError, TypeError):
    """A value has no wire form. Pass plain data, a dataclass, a msgspec or a pydantic model."""


class MessageTooLarge(UmbelError, ValueError):
    """A message is over the limit. Pass a reference (a path, a key, a URL) instead of the data."""


class BadMessage(UmbelError, ValueError):
    """A received message cannot be read. Correct its sender; ``field`` names the wrong part."""

    def __init__(self, field: str, reason: str, *, unsupported: bool = False) -> None:
        self.field = _clean(field, 100) if field.strip() else repr(field)
        super().__init__(f"{self.field}: {_clean(reason, 800)}")
        self.unsupported = unsupported
        """Whether no value of the annotated type can be decoded."""


class UnknownTask(UmbelError, LookupError):
    """No task of that name is registered here. Import its module, or ``app.include`` it."""


class UnknownSchedule(UmbelError, LookupError):
    """No schedule of that name exists. ``umbel schedules list`` shows all of them."""


class UnknownWorker(UmbelError, LookupError):
    """No worker of that name was ever registered. ``living`` has the names of running workers."""

    def __init__(self, name: str, living: Sequence[str]) -> None:
        running = f"running: {', '.join(living)}" if living else "no workers are running"
        super().__init__(f"no worker is called {name!r}; {running}")
        self.name = name
        self.living = tuple(living)

    def __reduce__(self) -> tuple[type[UnknownWorker], tuple[str, tuple[str, ...]]]:
        return UnknownWorker, (self.name, self.living)


class UnknownJob(UmbelError, LookupError):
    """No job has this id. It was never published here, or its record has been pruned."""


class DuplicateJob(UmbelError):
    """A live job has the unique key; ``existing`` is its id. Wait for that job, or use
    ``on_conflict``."""

    def __init__(self, key: str, existing: str) -> None:
        super().__init__(
            f"job {existing} already has the unique key {key!r}; wait for it, or publish with"
            ' Unique(..., on_conflict="return") or on_conflict="replace"'
        )
        self.key = key
        self.existing = existing


class NotAllowed(UmbelError):
    """The operation is not allowed in the job's state. The text names the states that allow it."""


class DeploymentUnderWay(UmbelError):
    """Another deployment is in progress. Wait until it ends, or take over with ``--force``."""


class DeploymentLost(UmbelError):
    """The deployment was ended or taken over, or has expired. Begin another one."""


class SchemaError(UmbelError):
    """The database's schema is missing, older or newer. Run ``umbel db migrate`` or upgrade."""


class Unavailable(UmbelError, ConnectionError):
    """A server cannot be reached or refuses work now. Nothing was lost; try again later."""


class PublishTimeout(Unavailable, TimeoutError):
    """The broker did not confirm within the deadline. Publishing the same id again is safe."""


class BacklogFull(Unavailable):
    """The broker is unreachable and the backlog is full; the messages were not stored. Publish more
    slowly, or raise ``backlog_limit``."""


class LeaseLost(UmbelError):
    """The lease on a job has expired or was taken. The job runs elsewhere; do nothing."""


class StepsChanged(UmbelError):
    """The code of a resumed job calls other steps than those stored. Restore the order of steps, or
    start the job again from scratch: ``umbel jobs retry ID --from-scratch``."""


class ResultTimeout(UmbelError, TimeoutError):
    """The job has not finished within the timeout. It continues; ask again later. If it cannot
    start, the text says why."""


class JobFailed(UmbelError):
    """The job ended without a result, and its exception cannot be raised here. See
    ``umbel jobs show``."""


class JobCancelled(JobFailed):
    """The job was cancelled before it ended. Publish it again, or use ``umbel jobs retry``."""


class BroadcastFailed(JobFailed):
    """A broadcast failed on some workers: ``failed`` has the reason of each, by the worker's name.
    Each worker's part is a job of the same task: see ``umbel jobs list --state buried``."""

    def __init__(self, failed: Mapping[str, str], workers: int) -> None:
        super().__init__(dict(failed), workers)
        self.failed = dict(failed)
        self.workers = workers

    def __str__(self) -> str:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.failed.items())
        return f"failed on {len(self.failed)} of {self.workers} workers: {reasons}"


class NodeFailed(JobFailed):
    """A node of a graph has ended without success. ``umbel graphs show`` has the whole graph.

    A group that collects errors has it in its list; a handler gets it as its argument.
    """

    def __init__(
        self, node: str, job: str, error: str, others: Sequence[NodeFailed] = (), graph: str = ""
    ) -> None:
        super().__init__(node, job, error, tuple(others), graph)
        self.node = node
        """The path and task of the node, as in ``1.0 shop.charge``."""
        self.job = job
        """The id of its job."""
        self.error = error
        """The last line of its traceback, or why it was not run."""
        self.others = tuple(others)
        """For a handler: further nodes that failed, in the order of time."""
        self.graph_id = graph
        """The id of the graph."""

    def __str__(self) -> str:
        more = f" (and {len(self.others)} more)" if self.others else ""
        return f"node {self.node} failed: {self.error}{more}; job {self.job}"


class JobExpired(JobFailed):
    """The job expired before a worker could start it. Start more workers, or allow more time."""


class RemoteTraceback(Exception):
    """The traceback from the worker: the cause of an exception that a handle raises again."""

    def __init__(self, text: str) -> None:
        super().__init__(mask_secrets(text))
        self.text = mask_secrets(text)

    def __str__(self) -> str:
        return f"\n{self.text}"
