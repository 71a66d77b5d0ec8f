"""Joins: jobs that wait for other jobs to end.

A job that waits for a join is ``blocked``. A job may be a part of joins, at a position in each.
When a part ends, however it ends, the join counts it in the same step. When all parts have ended,
the join is complete, and the jobs that wait for it are queued or cancelled, as ``fire`` says. Joins
of one graph have the same group; a record is kept as long as its group has joins.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from umbel.errors import ConfigurationError
from umbel.messages.bodies import Body
from umbel.messages.envelopes import Envelope
from umbel.messages.leases import Failure
from umbel.messages.states import State

Fire = Literal["all", "success", "failure"]

GROUP_HEADER = "graph"
"""The extension attribute that names the group of a job. Its record is kept with the group."""
GRAPH_TASK = "umbel.graph"
"""The task of the root of a graph: the job whose id is the group of the others."""
NODE_HEADER = "node"
"""The extension attribute that says which node of its graph a job is."""


class Join(msgspec.Struct, frozen=True):
    """What jobs wait for: that all parts have ended.

    ``fire`` says which outcome of the parts queues the waiting jobs: any (``all``), only successes
    (``success``), or at least one other end (``failure``). Otherwise they are cancelled. A join
    that is ``held`` does not complete before it is sealed.
    """

    id: str
    group: str
    fire: Fire = "all"
    held: bool = False

    def __post_init__(self) -> None:
        for field in ("id", "group"):
            name = getattr(self, field)
            if not 0 < len(name) <= 255 or "\0" in name or not _is_text(name):
                raise ConfigurationError(
                    f"{field}={name!r} of a join: give 1 to 255 characters, without NUL"
                )


class Edge(msgspec.Struct, frozen=True):
    """A job is a part of a join, at a position that no other part of that join has."""

    job: str
    join: str
    position: int

    def __post_init__(self) -> None:
        if type(self.position) is not int or not 0 <= self.position < 2**31:
            raise ConfigurationError(
                f"position={self.position!r} of a part: give a number from 0 to 2,147,483,647"
            )


class Wait(msgspec.Struct, frozen=True):
    """A job of the same publication is blocked until the join is complete.

    Its ``delay`` and ``expires_in`` count from that moment.
    """

    job: str
    join: str


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs, and how they wait for each other. It is added as a whole or not at all.

    The edges may name jobs of this publication, and live or ended jobs published before. The waits
    and edges may name joins of this publication, and joins added before. A job waits for at most
    one join.
    """

    envelopes: tuple[Envelope, ...] = ()
    joins: tuple[Join, ...] = ()
    edges: tuple[Edge, ...] = ()
    waits: tuple[Wait, ...] = ()


class Growth(msgspec.Struct, frozen=True):
    """The jobs that replace the job that is settled.

    ``replacement`` is the one of them that takes its position in every join. A job whose
    cancellation was requested does not grow.
    """

    publication: Publication
    replacement: str


class PartResult(msgspec.Struct, frozen=True, kw_only=True):
    """How one part of a join ended, or its present state."""

    position: int
    job: str
    state: State
    result: Body | None = None
    failure: Failure | None = None
    reason: str = ""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a join of a group, without its arguments and its result.

    One job is a member once for each of its positions. If its record does not exist any more, the
    state is the one that the join has counted, and the fields that describe the job are empty.
    """

    join: str
    position: int
    job: str
    task: str
    state: State
    node: str = ""
    """The job's extension attribute ``NODE_HEADER``."""
    graph: str = ""
    """Its ``GROUP_HEADER``: another graph if the job was published before this one."""
    result_type: str | None = None
    """The content type of its result; None if it has none."""
    reason: str = ""
    failure: Failure | None = None
    created: float = 0.0
    started: float | None = None
    """When its last run started."""
    finished: float | None = None
    worker: str | None = None


def _is_text(name: str) -> bool:
    """Return whether a name can be written as UTF-8."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def cancel_reason(fire: Fire) -> str:
    """Return why a job was cancelled whose join completed without queueing it."""
    if fire == "failure":
        return "not needed: all jobs that it waited for succeeded"
    return "a job that it waited for did not succeed"
