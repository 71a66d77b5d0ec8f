"""A Hypothesis state machine: after any sequence of commits and lapses, adapter and model agree."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import rule

from umbel.backends import Put
from umbel.testing.actions import FAR
from umbel.testing.backend import OpenAdapters
from umbel.testing.clock import FakeClock
from umbel.testing.state_machines import AdapterMachine, run_machine
from umbel.testing.stores.coordination_model import CoordinationModel

T = TypeVar("T")

SECTIONS = ("a/", "b/")
KEYS = ("a/1", "a/10", "a/é", "a/b/1", "b/1", "b/%")
LEASE = 30.0
"""Seconds of a lease that the machine's clock can pass; a day if the server's clock is used."""

keys = st.sampled_from(KEYS)
sides = st.integers(0, 1)
leases = st.sampled_from((None, None, 1.0, 2.0))
"""The length of a lease, in units of ``LEASE``."""
values = st.sampled_from((b"", b"x", b"\0\xff"))
writes = st.dictionaries(keys, st.none() | st.tuples(values, leases), max_size=3)
"""What to write to each key: nothing to delete it, or a value and its lease."""
checks = st.dictionaries(
    keys, st.sampled_from(("right", "right", "right", "absent", "old")), max_size=3
)


class CoordinationMachine(AdapterMachine):
    """Adapters of two processes on the same data."""

    def __init__(self, backends: OpenAdapters) -> None:
        super().__init__(backends)
        self.model = CoordinationModel()
        self.lease = LEASE if isinstance(self.clock, FakeClock) else FAR

    def finish(self) -> None:
        """Compare everything once more."""
        self.both_processes_read_everything()

    @rule(wanted=writes, checked=checks, side=sides)
    def commit(
        self,
        wanted: dict[str, tuple[bytes, float | None] | None],
        checked: dict[str, str],
        side: int,
    ) -> None:
        deletes = [key for key, write in wanted.items() if write is None]
        puts = [
            Put(key, write[0], None if write[1] is None else write[1] * self.lease)
            for key, write in wanted.items()
            if write is not None
        ]
        now = {key: self._check(key, how) for key, how in checked.items()}
        found = self._run(self.sides[side].coordination.commit(now, puts, deletes))
        assert (found is not None) == self.model.holds(now)
        if found is not None:
            self.model.commit(puts, deletes, found, self.clock.now())

    def _check(self, key: str, how: str) -> int:
        present = self.model.revision(key)
        return {"right": present, "absent": 0, "old": present - 1}[how]

    @rule(held=st.dictionaries(keys, st.booleans(), max_size=3), side=sides)
    def renew(self, held: dict[str, bool], side: int) -> None:
        known = {key: self.model.revision(key) - (not right) for key, right in held.items()}
        known = {key: revision for key, revision in known.items() if revision > 0}
        lost = self._run(self.sides[side].coordination.renew(known, self.lease))
        assert sorted(lost) == sorted(self.model.renew(known, self.clock.now() + self.lease))

    @rule(share=st.sampled_from((0.25, 0.5, 1.5)))
    def time_passes(self, share: float) -> None:
        if isinstance(self.clock, FakeClock):
            self.clock.advance(self.lease * share)
            self.model.lapse(self.clock.now())

    @rule(limit=st.integers(1, 3), side=sides)
    def sweep(self, limit: int, side: int) -> None:
        assert 0 <= self._run(self.sides[side].coordination.sweep(limit)) <= limit

    @rule(
        prefix=st.sampled_from((*SECTIONS, "a/1", "a/b/", "b/none")),
        after=st.sampled_from(("", *KEYS)),
        limit=st.integers(1, 4),
        side=sides,
    )
    def read(self, prefix: str, after: str, limit: int, side: int) -> None:
        page = self._run(self.sides[side].coordination.read(prefix, after, limit))
        self.model.check(prefix, after, limit, page)

    @rule(side=sides, old=st.booleans())
    def watch(self, side: int, old: bool) -> None:
        known = {section: self.model.section(section) for section in SECTIONS}
        since = {section: one.revision - old for section, one in known.items()}
        found = self._run(self.sides[side].coordination.changed(since, 0))
        for section, one in known.items():
            if section in found:
                assert found[section] != since[section]
                one.see(found[section])
                self.model.last = max(self.model.last, found[section])
            else:
                assert not one.must_grow, "a lapse was not told"
                assert since[section] == one.revision, "a change was not told"

    @rule()
    def both_processes_read_everything(self) -> None:
        """Not after each step: commits, renewals and sweeps meet lapses that were not read yet."""
        for section, side in zip(SECTIONS, self.sides, strict=True):
            page = self._run(side.coordination.read(section))
            self.model.check(section, "", 1000, page)


class CoordinationMachineSuite:
    """Runs the machine over an adapter. Inherit it beside a ``backend`` fixture."""

    coordination_examples = 50
    coordination_steps = 30

    def test_any_sequence_of_commits_leaves_the_entries_where_the_model_is(
        self, backend: OpenAdapters
    ) -> None:
        run_machine(
            CoordinationMachine,
            backend,
            examples=self.coordination_examples,
            steps=self.coordination_steps,
        )
