"""A Hypothesis state machine: whatever happens to graphs, an adapter and the model agree."""

from __future__ import annotations

from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    rule,
)

from umbel.backends import JobFilter
from umbel.backends.joins import Resolution
from umbel.messages import (
    Cancelled,
    Delivery,
    Edge,
    Failed,
    Growth,
    Interrupted,
    Outcome,
    Record,
    Retry,
    State,
    Succeeded,
)
from umbel.testing.actions import FAILURE, LONG_WAIT, RESULT, claim, kill, register, settlement
from umbel.testing.backend import OpenAdapters
from umbel.testing.state_machines import AdapterMachine, run_machine
from umbel.testing.stores.graphs import Graph, members
from umbel.testing.stores.join_model import JoinModel

T = TypeVar("T")

GROUPS = ("red", "blue")
MAX_ROUNDS = 60
MEMBERS_PAGE = 3

which = st.integers(0, 30)
"""Chooses one of several values; 0 is the latest."""
sides = st.integers(0, 1)
groups = st.sampled_from(GROUPS)
fires = st.sampled_from(("all", "success", "success", "failure"))
nodes = st.fixed_dictionaries(
    {
        "parts": st.lists(which, max_size=3),
        "waits": st.sampled_from(("no", "new", "new", "new", "held", "open")),
        "fire": fires,
        "expires": st.sampled_from((False, False, False, True)),
        "feeds": st.booleans(),
    }
)
"""A job: its parts if it waits for a new join, or whether it waits for an open one that is held;
whether its time is over; and whether it is a part of the open join."""
outcomes: st.SearchStrategy[Outcome] = st.sampled_from(
    (
        *(Succeeded(RESULT), Succeeded(RESULT), Failed(FAILURE), Failed(FAILURE)),
        *(Cancelled("not wanted"), Retry(FAILURE, 0.0), Interrupted("stopping")),
    )
)
resolutions: st.SearchStrategy[Resolution] = st.sampled_from(
    (Succeeded(RESULT), Failed(FAILURE), Cancelled("by hand"))
)
ENDS = {Succeeded: State.SUCCEEDED, Failed: State.BURIED, Cancelled: State.CANCELLED}


class JoinMachine(AdapterMachine):
    """Adapters of two processes on the same data, with one worker and graphs of two groups."""

    def __init__(self, backends: OpenAdapters) -> None:
        super().__init__(backends)
        self.model = JoinModel()
        self.held: dict[str, Delivery] = {}
        self.added: list[Graph] = []
        self.owner = self._run(register(self.sides[0]))

    def finish(self) -> None:
        """Let everything end; then every graph has ended and can be dropped."""
        self._end_everything()

    # --- graphs -------------------------------------------------------------------------------

    @initialize(specs=st.lists(nodes, min_size=3, max_size=8), group=groups)
    def a_graph_is_there(self, specs: list[dict[str, Any]], group: str) -> None:
        self._add(specs, group, 0)
        self.fetch(0)

    @rule(specs=st.lists(nodes, min_size=1, max_size=5), group=groups, side=sides)
    def add(self, specs: list[dict[str, Any]], group: str, side: int) -> None:
        self._add(specs, group, side)

    @rule(pick=which, side=sides)
    def add_again(self, pick: int, side: int) -> None:
        if self.added:
            known = _pick(self.added, pick).publication()
            answer = self._run(self.sides[side].joins.add(known))
            assert all(one.existing for one in answer)

    def _add(self, specs: list[dict[str, Any]], group: str, side: int) -> None:
        graph, expiring = self._graph(specs, group)
        answer = self._run(self.sides[side].joins.add(graph.publication()))
        expected = [(one.id, False) for one in graph.envelopes]
        assert [(one.id, one.existing) for one in answer] == expected
        self.model.add(graph.publication(), expiring)
        self.added.append(graph)

    def _graph(self, specs: list[dict[str, Any]], group: str) -> tuple[Graph, set[str]]:
        graph, expiring = Graph(self.sides[0], group), set[str]()
        for spec in specs:
            past = {"expires": self.clock.now() - 60} if spec["expires"] else {}
            known = [*self.model.jobs, *(one.id for one in graph.envelopes)]
            after, held = None, self._held_joins(group)
            if spec["waits"] in ("new", "held"):
                parts = [_pick(known, pick) for pick in spec["parts"]] if known else []
                after = graph.join(*parts, fire=spec["fire"], held=spec["waits"] == "held")
            elif spec["waits"] == "open" and held:
                after = next(join for join in self._joins() if join.id == held[-1])
            made = graph.job(after, max_deaths=1, **past)
            expiring |= {made.id} if spec["expires"] else set()
            if spec["feeds"] and held and after is None:
                taken = [e.position for e in graph.edges if e.join == held[-1]]
                taken += self.model.joins[held[-1]].parts
                graph.edges.append(Edge(made.id, held[-1], max(taken, default=-1) + 1))
        return graph, expiring

    def _held_joins(self, group: str) -> list[str]:
        joins = self.model.joins.values()
        return [join.id for join in joins if join.held and join.group == group]

    def _joins(self) -> list[Any]:
        return [join for graph in self.added for join in graph.joins]

    @rule(pick=which, side=sides)
    def seal(self, pick: int, side: int) -> None:
        if self.model.joins:
            joins = [_pick([*self.model.joins], pick), "nothing"]
            expected = self.model.seal(joins)
            assert self._run(self.sides[side].joins.seal(joins)) == expected

    # --- workers ------------------------------------------------------------------------------

    @rule(side=sides)
    def fetch(self, side: int) -> None:
        found = self._run(claim(self.sides[side], self.owner))
        queued = self.model.in_state(State.QUEUED)
        while len(found) < len(queued):  # the other messages of a pair are on their way
            more = self._run(claim(self.sides[side], self.owner, wait=LONG_WAIT))
            if not more:
                break
            found = [*found, *more]
        assert sorted(one.id for one in found) == sorted(queued), "not exactly the queued jobs"
        self.held |= {one.id: one for one in found}
        for one in found:
            self.model.jobs[one.id].state = State.RUNNING

    @rule(ends=st.lists(st.tuples(which, outcomes), min_size=1, max_size=3), side=sides)
    def settle(self, ends: list[tuple[int, Outcome]], side: int) -> None:
        if not self.held:
            return
        chosen = {_pick([*self.held], pick): outcome for pick, outcome in ends}
        batch = [settlement(self.held.pop(job), outcome) for job, outcome in chosen.items()]
        assert self._run(self.sides[side].broker.settle(batch)) == []
        kinds = {job: ENDS.get(type(outcome), State.QUEUED) for job, outcome in chosen.items()}
        self.model.end(kinds)

    @rule(pick=which, specs=st.lists(nodes, min_size=1, max_size=3), group=groups, side=sides)
    def grow(self, pick: int, specs: list[dict[str, Any]], group: str, side: int) -> None:
        if not self.held:
            return
        job = _pick([*self.held], pick)
        plain = [spec | {"expires": False, "feeds": False, "parts": []} for spec in specs]
        plain = [spec | {"waits": "no" if spec["waits"] == "open" else "new"} for spec in plain]
        graph, _ = self._graph(plain, group)
        place = graph.envelopes[-1]
        for one in graph.envelopes[:-1]:  # the place waits for all others
            for join in [wait.join for wait in graph.waits if wait.job == place.id]:
                taken = sum(edge.join == join for edge in graph.edges)
                graph.edges.append(Edge(one.id, join, taken))
        growth = Growth(graph.publication(), place.id)
        end = settlement(self.held.pop(job), Succeeded(RESULT), growth=growth)
        assert self._run(self.sides[side].broker.settle([end])) == []
        if self.model.grow(job, place.id, graph.publication()):
            self.added.append(graph)

    @rule(side=sides)
    def the_worker_dies(self, side: int) -> None:
        """Each job may die once only, so all that it holds are buried."""
        late = [settlement(one, Succeeded(RESULT)) for one in self.held.values()]
        self._run(kill(self.sides[side], self.owner))
        found = self._run(self.sides[side].broker.recover())
        assert sorted(found) == sorted(self.held)
        self.model.end(dict.fromkeys(self.held, State.BURIED))
        assert self._run(self.sides[side].broker.settle(late)) == [one.lease for one in late]
        self.held.clear()
        self.owner = self._run(register(self.sides[side]))

    # --- operators ----------------------------------------------------------------------------

    @rule(picks=st.lists(which, min_size=1, max_size=3), buries=st.booleans(), side=sides)
    def cancel_or_bury(self, picks: list[int], buries: bool, side: int) -> None:
        jobs = self._some(picks)
        idle = [job.id for job in self.model.idle() if job.id in jobs]
        control = self.sides[side].control
        if buries:
            assert sorted(self._run(control.bury(jobs, "no use"))) == sorted(idle)
        else:
            answer = self._run(control.cancel(jobs, "not wanted"))
            states = {job: self.model.jobs[job].state for job in jobs}
            assert answer == states | dict.fromkeys(idle, State.CANCELLED)
            for job in jobs:
                self.model.request_cancel(job)
        self.model.end(dict.fromkeys(idle, State.BURIED if buries else State.CANCELLED))

    @rule(limit=st.integers(1, 5), side=sides)
    def expire(self, limit: int, side: int) -> None:
        found = self._run(self.sides[side].broker.expire(limit))
        idle = {job.id: job for job in self.model.idle()}
        assert len({*found}) == len(found) <= limit
        assert all(idle[job].expires is not False for job in found)
        must = {job.id for job in idle.values() if job.expires} - {*found}
        assert not must or len(found) == limit, f"{must} should have expired"
        self.model.end(dict.fromkeys(found, State.EXPIRED))

    @rule(pick=which, outcome=resolutions, side=sides)
    def resolve(self, pick: int, outcome: Resolution, side: int) -> None:
        for job in self._some([pick]):
            expected = job in [one.id for one in self.model.idle()]
            assert self._run(self.sides[side].joins.resolve(job, outcome)) == expected
            if expected:
                self.model.end({job: ENDS[type(outcome)]})

    @rule(picks=st.lists(which, min_size=1, max_size=3), side=sides)
    def reopen(self, picks: list[int], side: int) -> None:
        jobs = self._some(picks)
        answer = self._run(self.sides[side].joins.reopen(jobs))
        back, blocked_again = self.model.reopen(jobs)
        assert len({*answer}) == len(answer)
        assert back <= {*answer} <= back | blocked_again

    @rule(limit=st.integers(1, 3) | st.just(1000), side=sides)
    def advance(self, limit: int, side: int) -> None:
        pending = len(self.model.pending())
        done = self._run(self.sides[side].joins.advance(limit))
        assert done <= limit
        assert (done > 0) == (pending > 0), "zero means that nothing is left to do"
        changed = self.model.accept(self._states())
        assert done <= changed, "jobs that a cancellation released need not be counted"

    @rule(group=groups, side=sides)
    def drop(self, group: str, side: int) -> None:
        is_live = self.model.is_group_live(group)
        dropped = self._run(self.sides[side].joins.drop(group))
        assert is_live is None or dropped == (not is_live)
        if dropped:
            self.model.drop(group)

    def _some(self, picks: list[int]) -> list[str]:
        known = [*self.model.jobs]
        return [*dict.fromkeys(_pick(known, pick) for pick in picks)] if known else []

    # --- invariants ---------------------------------------------------------------------------

    @invariant()
    def every_job_is_in_the_state_of_the_model(self) -> None:
        found = self._records()
        self.model.accept({job: record.state for job, record in found.items()})
        assert {*found} == {*self.model.jobs}
        for job, record in found.items():
            node = self.model.jobs[job]
            assert record.state is node.state, f"{record.state}, in the model {node}"
            assert node.reason is None or record.reason == node.reason
        self._check_members()

    @rule(side=sides)
    def read_all_results(self, side: int) -> None:
        for join in self.model.joins:
            found = self._run(self.sides[side].joins.results(join))
            assert [(one.position, one.job, one.state) for one in found] == self.model.results(join)

    def _check_members(self) -> None:
        for group in GROUPS:
            for side, failed in enumerate((False, True)):
                found = self._run(members(self.sides[side], group, MEMBERS_PAGE, failed=failed))
                parts = [(one.join, one.position, one.job, one.state) for one in found]
                assert parts == self.model.members(group, failed=failed)

    def _records(self) -> dict[str, Record]:
        found = self._run(self.sides[0].records.search(JobFilter(limit=1000)))
        return {record.id: record for record in found}

    def _states(self) -> dict[str, State]:
        return {job: record.state for job, record in self._records().items()}

    def _end_everything(self) -> None:
        """Seal all joins and let all jobs succeed. Then nothing is live."""
        joins = [join.id for join in self.model.joins.values() if join.held]
        self._run(self.sides[0].joins.seal(joins))
        self.model.seal(joins)
        for _ in range(MAX_ROUNDS):
            while self._run(self.sides[1].joins.advance()):
                pass
            self.every_job_is_in_the_state_of_the_model()
            assert self.model.pending() == []
            self.fetch(0)
            if not self.held:
                break
            ends = [settlement(one, Succeeded(RESULT)) for one in self.held.values()]
            assert self._run(self.sides[1].broker.settle(ends)) == []
            self.model.end(dict.fromkeys(self.held, State.SUCCEEDED))
            self.held.clear()
        assert self.model.live() == [], "a graph does not end"
        self.read_all_results(0)
        for group in GROUPS:
            assert self._run(self.sides[0].joins.drop(group))
        assert self._run(self.sides[0].broker.depths()) == []


class JoinMachineSuite:
    """Runs the machine over an adapter. Inherit it beside a ``backend`` fixture."""

    join_examples = 30
    join_steps = 25

    def test_whatever_happens_to_graphs_they_are_where_the_model_is_and_end(
        self, backend: OpenAdapters
    ) -> None:
        run_machine(JoinMachine, backend, examples=self.join_examples, steps=self.join_steps)


def _pick(known: Any, pick: int) -> Any:
    """Return one of the values, counted from the latest."""
    return known[-1 - pick % len(known)]
