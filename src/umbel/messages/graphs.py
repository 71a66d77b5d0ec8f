"""A graph as it is at one moment: its nodes, their states, and what each waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from umbel.errors import NotAllowed
from umbel.messages.nodes import Inside
from umbel.messages.states import State

NodeState = State | Literal["skipped"]
OF_SIGNALS = ("release", "timer")
"""The kinds of nodes that end a signal that is not given. Their paths begin with its path."""
SHOWN_KINDS = ("", "map", "chunk", "signal", "sleep", "place")
"""The kinds of nodes that are shown and counted: a task, or what waits for a person or time."""

WAITS_FOR_TIME = ("sleep", "timer", "deadline")
"""The kinds of nodes that wait for time to pass. If they are retried, other jobs replace them."""


class Subgraph(msgspec.Struct, frozen=True):
    """A sub-workflow, or a node that was replaced: nodes are drawn inside it."""

    path: str
    name: str
    """The name of the workflow, or the task of the node that was replaced."""


class GraphNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a graph."""

    path: str
    """Where it is in the expression, as in ``1.0``. ``--node`` takes it, or the id of the job."""
    task: str
    job: str
    state: NodeState
    kind: str = ""
    """Empty for a task; ``map`` and ``chunk`` run a task, too. ``workflow``: a sub-workflow, as a
    summary of its nodes. It is no job."""
    handler: bool = False
    """Whether it handles a failure."""
    before: tuple[str, ...] = ()
    """The jobs that it waits for."""
    created: float = 0.0
    started: float | None = None
    finished: float | None = None
    error: str = ""
    """The last line of its traceback, or why it was not run."""
    failed: bool = False
    """Whether it has failed by itself, not because of a node before it."""
    worker: str | None = None
    undoes: str = ""
    """Of an undo: the job whose effect it takes back."""
    replaced: bool = False
    """Whether other nodes have taken its place when it ran, as in a map over a result."""
    resolved_in: str = ""
    """Of a node whose result an operator gave after its end: the queue in which it would run."""
    inside: tuple[Subgraph, ...] = ()
    """The sub-workflows and replaced nodes that contain it, the outermost first."""

    @property
    def runs_task(self) -> bool:
        """Whether it is shown: a task runs for it, or it waits for a person, time or a place."""
        return self.kind in SHOWN_KINDS

    @property
    def seconds(self) -> float | None:
        """How long its last run took; None if it has not ended, or did not run."""
        if self.started is None or self.finished is None:
            return None
        return max(self.finished - self.started, 0.0)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self.state == "skipped" or self.state.finished

    @property
    def is_unneeded(self) -> bool:
        """Whether it is a handler that was cancelled because nothing has failed."""
        return self.handler and self.state is State.CANCELLED and not self.failed

    @property
    def is_expected(self) -> bool:
        """Whether it has not ended and will run, as far as is known.

        A handler that is blocked is not expected: it runs only if something fails.
        """
        return not self.has_ended and not (self.handler and self.state is State.BLOCKED)


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """A graph and its nodes, in the order of their paths."""

    id: str
    label: str
    state: State
    """The state of the whole; ``buried`` if it has failed."""
    nodes: tuple[GraphNode, ...]
    created: float = 0.0
    finished: float | None = None
    error: str = ""
    root: GraphNode
    workflow: str = ""
    """The name of the workflow; empty for another canvas."""
    version: str = ""

    def tasks(self) -> list[GraphNode]:
        """Return the nodes that run tasks."""
        return [node for node in self.nodes if node.runs_task]

    @property
    def progress(self) -> tuple[int, int]:
        """How many nodes have ended, and how many there are now. Replacements add nodes."""
        tasks = [node for node in self.tasks() if not (node.handler and not node.failed)]
        return sum(node.has_ended for node in tasks), len(tasks)

    def counts(self) -> dict[str, int]:
        """Return how many nodes are in each state."""
        return dict(Counter(str(node.state) for node in self.tasks()))

    def find(self, name: str) -> GraphNode:
        """Return the node with this path or job id. Raise NotAllowed."""
        for node in self.nodes:
            if name in (node.path, node.job):
                return node
        paths = ", ".join(node.path for node in self.tasks()[:12])
        raise NotAllowed(f"graph {self.id} has no node {name!r:.80}; its nodes are {paths}")

    def after(self, jobs: Iterable[str]) -> list[GraphNode]:
        """Return all nodes that wait for these jobs, directly or through others."""
        waiting: dict[str, list[GraphNode]] = {}
        for node in (*self.nodes, self.root):
            for part in node.before:
                waiting.setdefault(part, []).append(node)
        found: dict[str, GraphNode] = {}
        left = [*jobs]
        while left:
            for node in waiting.get(left.pop(), ()):
                if node.job not in found:
                    found[node.job] = node
                    left.append(node.job)
        return [*found.values()]

    def in_order(self, jobs: Iterable[str]) -> list[str]:
        """Return these jobs, each after those of them that it waits for."""
        ranks = _ranks({node.job: node.before for node in (*self.nodes, self.root)})
        return sorted({*jobs}, key=lambda job: (ranks.get(job, 0), job))

    def waits(self) -> dict[str, tuple[str, ...]]:
        """Return the jobs for which each node waits.

        A signal may be given early, so its job waits for none. Here it waits for those from whose
        end its timeout counts. What begins a part that has replaced a node waits for that node.
        """
        return _waits(self.nodes)

    def critical_path(self) -> list[str]:
        """Return the jobs that determined when the graph ended, or what it waits for now."""
        by_job = {node.job: node for node in self.nodes}
        waits = self.waits()
        path: dict[str, None] = {}
        at: GraphNode | None = self.root
        while at is not None:
            jobs = waits.get(at.job, at.before)
            before = [by_job[job] for job in jobs if job in by_job and job not in path]
            # A node that has not ended determines the end more than one that has.
            at = max(before, key=_end_of, default=None)
            if at is not None:
                path[at.job] = None
        return [*path][::-1]


def in_reading_order(nodes: Iterable[GraphNode]) -> tuple[GraphNode, ...]:
    """Return nodes by their paths; those with names come after the nodes that they wait for."""
    listed = [*nodes]
    ranks = _ranks(_waits(listed))
    keys = {node.job: path_key(node.path) for node in listed}
    last: dict[tuple[tuple[int, int, str], ...], int] = {}
    for node in listed:
        is_main = node.runs_task and not (node.handler or node.undoes)
        for place in _starts(keys[node.job]) if is_main else ():
            last[place] = max(last.get(place, 0), ranks[node.job])

    def key(node: GraphNode) -> list[tuple[int, int, str]]:
        words = keys[node.job]
        return [
            (1, last.get(place, 0), word[2]) if word[0] else word
            for word, place in zip(words, _starts(words), strict=True)
        ]

    return tuple(sorted(listed, key=key))


def _starts(words: Sequence[tuple[int, int, str]]) -> list[tuple[tuple[int, int, str], ...]]:
    """Return the paths that contain a path, and itself."""
    return [tuple(words[: number + 1]) for number in range(len(words))]


def subgraphs(path: str, inside: Inside) -> tuple[Subgraph, ...]:
    """Return what contains a node, as its message says it."""
    words = path.split(".")
    return tuple(Subgraph(".".join(words[:count]), name) for count, name in inside)


def _waits(nodes: Sequence[GraphNode]) -> dict[str, tuple[str, ...]]:
    """Return the jobs for which each node waits, as ``Graph.waits`` describes."""
    found = {node.job: node.before for node in nodes}
    signals = {node.path: node.job for node in nodes if node.kind == "signal"}
    for node in nodes:
        target = signals.get(node.path.rpartition(".")[0]) if node.kind in OF_SIGNALS else None
        if target is not None:
            found[target] = tuple(dict.fromkeys((*found[target], *node.before)))
    replaced = {
        (*node.inside, Subgraph(node.path, node.task)): node.job for node in nodes if node.replaced
    }
    for node in nodes if replaced else ():
        around = [node.inside[:end] for end in range(len(node.inside), 0, -1)]
        job = next((replaced[one] for one in around if one in replaced), None)
        if job is not None and not node.before:
            found[node.job] = (job,)
    return found


def _ranks(waits: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return for each job how many nodes come before it, on the longest way."""
    ranks = dict.fromkeys(waits, 0)
    after: dict[str, list[str]] = {}
    waiting: dict[str, int] = {}
    for waiter, jobs in waits.items():
        before = {job for job in jobs if job in ranks}
        waiting[waiter] = len(before)
        for job in before:
            after.setdefault(job, []).append(waiter)
    ready = [job for job, count in waiting.items() if count == 0]
    for job in ready:  # it grows meanwhile
        for following in after.get(job, ()):
            ranks[following] = max(ranks[following], ranks[job] + 1)
            waiting[following] -= 1
            if waiting[following] == 0:
                ready.append(following)
    return ranks


def path_key(path: str) -> list[tuple[int, int, str]]:
    """Return what sorts paths: ``2`` before ``10``."""
    return [(0, int(one), "") if one.isdigit() else (1, 0, one) for one in path.split(".") if one]


def _end_of(node: GraphNode) -> tuple[bool, float]:
    return node.finished is None, node.finished or 0.0
