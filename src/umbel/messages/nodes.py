"""What the message of a node says about it and its graph, and results that are references.

A message does not contain the graph. It names the join whose parts the node reads when it starts,
and where their results go. So its size does not depend on the size of the graph.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from umbel.errors import BadMessage
from umbel.messages.bodies import JSON, Body
from umbel.messages.joins import cancel_reason

Policy = Literal["fail", "cancel", "collect"]
"""What a group does when a member fails: its join fails after the others have finished, the others
are cancelled, or the failure is put into the list."""

REFERENCE = "application/x-umbel-reference"
"""The media type of a result that is to be read elsewhere: a ``Reference``."""
BEFORE_IT_FAILED = "a node before it did not succeed"
"""Why a worker cancels a node. Stores give the reasons of ``cancel_reason`` for theirs."""
MEMBER_FAILED = "another member of its group failed"

NOT_IN_SCOPE = "not needed: nothing failed in the part of the graph that it handles"
"""Why a worker cancels a handler whose part was not reached because of a node before it."""
_NOT_REACHED = frozenset(
    {cancel_reason("success"), cancel_reason("failure"), BEFORE_IT_FAILED, NOT_IN_SCOPE}
)
_NOT_NEEDED = frozenset({cancel_reason("failure"), NOT_IN_SCOPE})
_MARKS = ("finish", "skipped", "failed", "sender", "early", "resolved")
Mark = Literal["finish", "skipped", "failed", "sender", "early", "resolved"]


ALL_PARTS = -1


class Input(msgspec.Struct, frozen=True, array_like=True):
    """Where results of parts go in the arguments of a node."""

    keys: tuple[str | int, ...]
    """The keys of the argument: ``("args", 0)``. Empty for nodes that run no task."""
    form: Literal["one", "list", "flat", "failure", "undone"]
    """One result, the list of all, their lists in one list, why the parts failed, or the result of
    the job that it undoes, which is no part."""
    first: int = 0
    """The position of the first part."""
    count: int = 1
    """How many parts; ``ALL_PARTS`` if that was not known."""
    collect: bool = False
    """Whether a failure becomes an item of the list, instead of keeping the node from running."""
    pick: tuple[str | int, ...] = ()
    """The keys of the item of the result that is wanted; empty for the whole."""

    def has(self, position: int) -> bool:
        """Whether it reads the part at this position."""
        is_open = self.count == ALL_PARTS
        return self.first <= position and (is_open or position < self.first + self.count)


NodeKind = Literal[
    "",
    "graph",
    "gather",
    "map",
    "chunk",
    "cancel",
    "signal",
    "timer",
    "release",
    "sleep",
    "undo",
    "deadline",
    "place",
    "launch",
]


Inside = tuple[tuple[int, str], ...]
"""The sub-workflows and replaced nodes that contain a node, the outermost first: how many words of
its path are the path of each, and what it is called."""


class NodeSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The header ``node`` of a job that is a node of a graph."""

    path: str = ""
    """Where it is in the expression: ``1.0`` is the first member of the second part of a chain."""
    kind: NodeKind = ""
    """Empty for a task. Nodes of the other kinds are run by the worker itself, but a ``chunk``
    calls its task several times."""
    join: str = ""
    """The join for which it waits, and whose parts it reads."""
    inputs: tuple[Input, ...] = ()
    checks: bool = False
    """Whether it has to check that the parts succeeded, because its join does not."""
    free_from: int = -1
    """The first position of parts that may fail; -1 if there is none."""
    chain: str | None = None
    """The path of the innermost chain that contains it."""
    depth: int = 0
    """How many replacements contain it."""
    inside: Inside = ()
    handler: bool = False
    """Whether it handles a failure."""
    is_later: bool = False
    """Whether a node before it may finish a chain that contains it; then it is skipped."""
    scope: str = ""
    """Of a handler: the path of the part whose failures it handles; empty for the whole graph."""
    label: str = ""
    """What the root is called in lists. Of a place: the name of the workflow."""
    total: int = 0
    """How many nodes of the graph were counted when it was published. Only of roots."""
    errors: Policy = "fail"
    """Of a map or chunk: what a failure means for the list."""
    limit: int = 0
    """Of a map: how many items are processed at once. Of the root of a workflow and of its place:
    how many runs are active at once. 0 for no limit."""
    star: bool = False
    """Of a map: whether an item is a list of arguments."""
    size: int = 0
    """Of a map: how many calls each job makes; 0 if the jobs are no chunks."""
    part: tuple[int, int] | None = None
    """Of a part of a large map: its first item, and the item after its last one."""
    foreign: str | None = None
    """The path of the part of the canvas with the jobs of its join that were published before the
    graph; None if there is none."""
    acts: bool = False
    """Of a node that acts on failures of such jobs, too: its join fires in any case, because a job
    that was replaced has succeeded. The worker looks whether one has failed."""
    when: Any = None
    """The condition under which it runs: see ``graphs.conditions``."""
    signal: str = ""
    """Of a signal: its name."""
    accepts: str = ""
    """Of a signal: the type of its values; empty for any."""
    target: str = ""
    """Of a node that acts on another one: the job of that one."""
    on_cancel: bool = True
    """Of the node that undoes others: whether it does so if the graph was cancelled."""
    undoes: str = ""
    """Of an undo: the job whose effect it takes back."""
    workflow: str = ""
    """Of the root of a workflow, and of the job of a schedule that publishes it: its name."""
    version: str = ""
    """Of the root of a workflow: the version of its declaration."""

    @property
    def runs_task(self) -> bool:
        """Whether a task runs for it."""
        return self.kind in ("", "chunk")

    @property
    def must_read(self) -> bool:
        """Whether the worker reads or writes graphs before it can start."""
        reads = self.inputs or self.checks or self.is_later or self.foreign is not None
        return bool(reads) or self.when is not None or not self.runs_task

    def needs(self, position: int) -> bool:
        """Whether the part at this position has to succeed before it can run."""
        if 0 <= self.free_from <= position:
            return False
        return not any(one.collect and one.has(position) for one in self.inputs)

    def encode(self) -> str:
        """Return the header."""
        return _encode(self).decode()


class Reference(msgspec.Struct, frozen=True, omit_defaults=True):
    """A result that consists of results of other jobs: parts of a join, or one job."""

    join: str = ""
    count: int = 0
    """How many parts of the join it has, from the first one on, or ``ALL_PARTS``."""
    flat: bool = False
    """Whether the lists of the parts are one list."""
    collect: bool = False
    """Whether failures are items of the list."""
    job: str = ""

    @property
    def body(self) -> Body:
        """The reference as the result of a job."""
        return Body(REFERENCE, _encode(self))


_encode = msgspec.json.Encoder().encode
_decode_spec = msgspec.json.Decoder(NodeSpec).decode
_decode_reference = msgspec.json.Decoder(Reference).decode


def read_node(header: str) -> NodeSpec:
    """Return what a header ``node`` says. Raise BadMessage."""
    try:
        return _decode_spec(header)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadMessage("node", f"not the header of a node of a graph: {error}") from None


def read_reference(body: Body) -> Reference | None:
    """Return the reference in a result; None if it is a value. Raise BadMessage."""
    if body.content_type != REFERENCE:
        return None
    try:
        return _decode_reference(body.data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadMessage("result", f"not a reference: {error}") from None


def was_not_reached(reason: str) -> bool:
    """Whether a job was cancelled only because a node before it did not succeed."""
    return reason in _NOT_REACHED


def was_not_needed(reason: str) -> bool:
    """Whether a handler was cancelled because nothing failed."""
    return reason in _NOT_NEEDED


def with_mark(body: Body, name: Mark, value: str = "1") -> Body:
    """Return a result with a mark: it ends this chain early, its node was skipped, these calls of
    a chunk have failed, the whole graph was ended early with it, or an operator gave it."""
    return Body(f"{body.content_type}; {name}={value or '*'}", body.data)


def mark_of(content_type: str | None, name: Mark) -> str | None:
    """Return the value of a mark of a result; None if it has none."""
    for parameter in (content_type or "").split(";")[1:]:
        key, _, value = parameter.strip().partition("=")
        if key == name:
            return "" if value == "*" else value
    return None


def without_marks(body: Body) -> Body:
    """Return a result without marks."""
    media_type, *parameters = [one.strip() for one in body.content_type.split(";")]
    others = [one for one in parameters if one.partition("=")[0] not in _MARKS]
    return Body("; ".join([media_type, *others]), body.data) if parameters else body


_OF_TASKS = ("", "map", "chunk")
INTERNAL_TASKS = frozenset(f"umbel.{kind}" for kind in get_args(NodeKind) if kind not in _OF_TASKS)
"""The tasks of nodes that every worker runs by itself."""
NO_VALUE = Body(JSON, b"null")
