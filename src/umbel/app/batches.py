"""``app.batch()``: jobs that are collected as they are published, and joined at the end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from umbel.backends import Published
from umbel.errors import ConfigurationError, UmbelError
from umbel.messages import (
    GRAPH_TASK,
    GROUP_HEADER,
    JSON,
    NODE_HEADER,
    Body,
    Edge,
    Envelope,
    Failed,
    Failure,
    Input,
    Join,
    NodeSpec,
    Policy,
    Publication,
    Wait,
    fresh_id,
)
from umbel.messages.nodes import ALL_PARTS
from umbel.tasks import Handle
from umbel.tasks.canvas import check_policy
from umbel.tasks.failures import describe

if TYPE_CHECKING:
    from umbel.app.client import Client

_MAX_JOBS = 100_000
_EMPTY = Body(JSON, b'{"args":[],"kwargs":{}}')

collecting: ContextVar[Batch | None] = ContextVar("umbel_batch", default=None)
"""The batch whose block runs here."""


def batch_of(client: Client, connection: Any) -> Batch | None:
    """Return the batch that collects what this client publishes here.

    Raises:
        ConfigurationError: the caller gives a connection, whose transaction may be rolled back.
    """
    batch = collecting.get()
    if batch is None or not batch.is_for(client):
        return None
    if connection is not None:
        raise ConfigurationError(
            "connection: not in the block of app.batch(), which could not wait for a job that is"
            " rolled back; publish it outside the block"
        )
    return batch


class Batch:
    """Jobs that are published in a ``with`` block. They run at once; ``handle`` waits for all.

    A canvas is one part, with its result. Calls with ``connection=`` are refused.

    If the block raises, its jobs still run, and the batch fails. If its process dies, the batch
    is cancelled after an hour.
    """

    def __init__(self, client: Client, errors: Policy, queue: str, namespace: str) -> None:
        self._client = client
        if check_policy(errors) == "cancel":
            raise ConfigurationError('errors="cancel" of a batch: give "fail" or "collect"')
        self._errors = errors
        self._queue = queue
        self._namespace = namespace
        self._count = 0
        self._token: Token[Batch | None] | None = None
        self._join = ""
        self.handle: Handle[list[Any]] = Handle(fresh_id(), client)
        """The handle of the batch: its result is the list of results, in the order of publishing.
        It may be a member of a group, and the beginning of a chain."""

    # --- the block ---------------------------------------------------------------------------

    def __enter__(self) -> Batch:
        self._client.run_blocking(self._open())
        self._token = collecting.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()
        self._client.run_blocking(self._close(error))

    async def __aenter__(self) -> Batch:
        await self._client.run_on_loop(self._open())
        self._token = collecting.set(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()
        await self._client.run_on_loop(self._close(error))

    def is_for(self, client: Client) -> bool:
        """Whether it collects what this client publishes."""
        return self._client is client

    async def add(self, envelopes: Sequence[Envelope]) -> list[Published]:
        """Publish jobs as parts of the batch. Jobs that exist already become parts of it, too.

        Raises:
            ConfigurationError: there are too many. DuplicateJob: see ``Broker.publish``.
        """
        first = self._reserve(len(envelopes))
        jobs = tuple(
            _as_part(one, self.handle.id, str(number))
            for number, one in enumerate(envelopes, first)
        )
        roles = self._client.roles
        if all(one.unique is None for one in jobs):
            edges = self._edges([one.id for one in jobs], first)
            published = await roles.joins.add(Publication(envelopes=jobs, edges=edges))
            if not published[0].existing:  # otherwise nothing was added
                return published
        published = await roles.broker.publish(jobs)
        await self._join_with([one.id for one in published], first)
        return published

    async def collect(self, root: str) -> None:
        """Make a graph that was published a part of the batch."""
        await self._join_with([root], self._reserve(1))

    def _reserve(self, count: int) -> int:
        """Return the first of so many positions. Raise ConfigurationError if they are too many."""
        first = self._count
        if first + count > _MAX_JOBS:
            raise ConfigurationError(
                f"batch: more than {_MAX_JOBS:,} jobs; let each job do more, with chunks"
            )
        self._count += count
        return first

    def _edges(self, jobs: Sequence[str], first: int) -> tuple[Edge, ...]:
        return tuple(Edge(job, self._join, number) for number, job in enumerate(jobs, first))

    async def _join_with(self, jobs: Sequence[str], first: int) -> None:
        await self._client.roles.joins.add(Publication(edges=self._edges(jobs, first)))

    # --- the root ----------------------------------------------------------------------------

    async def _open(self) -> None:
        root = self.handle.id
        self._join = f"{root}:1"
        # The number of parts is not known yet: the root reads all of them.
        reads = Input((), "list", 0, ALL_PARTS, self._errors == "collect")
        spec = NodeSpec(
            kind="graph", join=self._join, inputs=(reads,), errors=self._errors, label="batch"
        )
        envelope = Envelope(
            id=root,
            subject=GRAPH_TASK,
            body=_EMPTY,
            namespace=self._namespace,
            queue=self._queue,
            kind="io",
            max_deaths=100,
            headers={GROUP_HEADER: root, NODE_HEADER: spec.encode()},
        )
        publication = Publication(
            envelopes=(envelope,),
            joins=(Join(self._join, root, held=True),),
            waits=(Wait(root, self._join),),
        )
        await self._client.roles.joins.add(publication)

    async def _close(self, error: BaseException | None) -> None:
        joins = self._client.roles.joins
        if error is not None:
            reason = describe(error)
            failure = Failure(
                reason.type, f"the block of the batch was left: {reason.message}", reason.traceback
            )
            with suppress(UmbelError):  # the error of the block is raised
                await joins.resolve(self.handle.id, Failed(failure))
                await joins.seal([self._join])
            return
        await joins.seal([self._join])

    def _end(self) -> None:
        if self._token is not None:
            collecting.reset(self._token)
            self._token = None


def _as_part(envelope: Envelope, root: str, path: str) -> Envelope:
    if GROUP_HEADER in envelope.headers:
        return envelope
    headers = {GROUP_HEADER: root, NODE_HEADER: NodeSpec(path=path).encode()}
    return replace(envelope, headers={**envelope.headers, **headers})
