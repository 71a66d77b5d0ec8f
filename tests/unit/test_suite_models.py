"""The models of the suites: what they expect of an adapter, and which answers they refuse."""

from __future__ import annotations

import pytest

from umbel.backends import Entry, Page, Put
from umbel.messages import (
    GROUP_HEADER,
    JSON,
    Body,
    Edge,
    Envelope,
    Fire,
    Join,
    Publication,
    State,
    Wait,
)
from umbel.testing.stores.coordination_model import CoordinationModel
from umbel.testing.stores.join_model import JoinModel

BLOCKED, QUEUED, CANCELLED = State.BLOCKED, State.QUEUED, State.CANCELLED


# --- coordination ----------------------------------------------------------------------------


@pytest.fixture
def entries() -> CoordinationModel:
    """One entry of revision 5, under a lease until 10."""
    model = CoordinationModel()
    model.commit([Put("a/x", b"1", 10.0)], [], 5, now=0.0)
    return model


def page(*found: Entry, revision: int, now: float = 0.0) -> Page:
    return Page(found, revision, now)


def test_a_page_is_compared_with_the_entries(entries: CoordinationModel) -> None:
    entries.check("a/", "", 9, page(Entry("a/x", b"1", 5, 10.0), revision=5))
    for wrong in (
        page(revision=5),
        page(Entry("a/x", b"2", 5, 10.0), revision=5),
        page(Entry("a/x", b"1", 4, 10.0), revision=5),
        page(Entry("a/x", b"1", 5, None), revision=5),
        page(Entry("a/x", b"1", 5, 3.0), revision=5),
        page(Entry("a/x", b"1", 5, 10.0), revision=6),
    ):
        with pytest.raises(AssertionError):
            entries.check("a/", "", 9, wrong)


def test_a_revision_must_grow_with_each_commit(entries: CoordinationModel) -> None:
    with pytest.raises(AssertionError):
        entries.commit([Put("b/y")], [], 5, now=0.0)


def test_a_lapse_must_change_the_revision_once(entries: CoordinationModel) -> None:
    entries.lapse(10.0)
    with pytest.raises(AssertionError):
        entries.section("a/").see(5)
    entries.section("a/").see(6)
    with pytest.raises(AssertionError):
        entries.section("a/").see(7)


def test_a_lapse_before_a_commit_may_change_the_revision_after_it(
    entries: CoordinationModel,
) -> None:
    entries.lapse(10.0)
    entries.commit([Put("a/y")], [], 6, now=10.0)
    entries.section("a/").see(7)


def test_lapsed_and_rewritten_entries_are_lost(entries: CoordinationModel) -> None:
    assert entries.holds({"a/x": 5, "a/y": 0})
    assert entries.renew({"a/x": 5, "a/y": 3}, until=20.0) == ["a/y"]
    entries.lapse(15.0)
    assert entries.renew({"a/x": 5}, until=40.0) == []
    entries.lapse(40.0)
    assert entries.renew({"a/x": 5}, until=50.0) == ["a/x"]
    assert entries.holds({"a/x": 0})


# --- joins -----------------------------------------------------------------------------------


def chain(*fires: Fire, held: bool = False) -> JoinModel:
    """Return jobs named 0, 1, …, of which each waits for the one before it."""
    count = len(fires) + 1
    jobs = [
        Envelope(id=f"{n}", subject="t", body=Body(JSON, b"{}"), headers={GROUP_HEADER: "g"})
        for n in range(count)
    ]
    model = JoinModel()
    model.add(
        Publication(
            envelopes=tuple(jobs),
            joins=tuple(Join(f"j{n}", "g", fire, held) for n, fire in enumerate(fires, 1)),
            edges=tuple(Edge(f"{n - 1}", f"j{n}", 0) for n in range(1, count)),
            waits=tuple(Wait(f"{n}", f"j{n}") for n in range(1, count)),
        ),
        (),
    )
    return model


def states(model: JoinModel) -> list[State]:
    return [job.state for job in model.jobs.values()]


def test_the_end_of_a_part_queues_what_waits() -> None:
    model = chain("all", "success")
    assert states(model) == [QUEUED, BLOCKED, BLOCKED]
    model.end({"0": State.BURIED})
    assert states(model) == [State.BURIED, QUEUED, BLOCKED]
    assert model.pending() == []


def test_jobs_that_cannot_run_are_pending_until_the_adapter_cancels_them() -> None:
    model = chain("success", "failure")
    model.end({"0": State.BURIED})
    assert [job.id for job in model.pending()] == ["1"]
    assert model.accept({"0": State.BURIED, "1": BLOCKED, "2": BLOCKED}) == 0
    assert model.accept({"0": State.BURIED, "1": CANCELLED, "2": BLOCKED}) == 1
    assert [job.id for job in model.pending()] == ["2"]
    assert model.accept({"0": State.BURIED, "1": CANCELLED, "2": QUEUED}) == 1
    assert model.pending() == []


def test_a_held_join_completes_when_it_is_sealed() -> None:
    model = chain("all", held=True)
    model.end({"0": State.SUCCEEDED})
    assert states(model) == [State.SUCCEEDED, BLOCKED]
    assert model.seal(["j1", "none"]) == 1
    assert states(model) == [State.SUCCEEDED, QUEUED]
    assert model.seal(["j1"]) == 0


def test_reopening_continues_along_jobs_that_did_not_succeed() -> None:
    model = chain("success", "success", "all")
    model.end({"0": State.BURIED})
    model.accept(dict.fromkeys("0123", CANCELLED))
    model.accept(dict.fromkeys("0123", QUEUED))
    model.end({"3": State.SUCCEEDED})
    assert model.reopen(["0"]) == ({"0", "1", "2"}, set())
    assert states(model) == [QUEUED, BLOCKED, BLOCKED, State.SUCCEEDED]


def test_queued_jobs_are_blocked_again_and_running_ones_are_not() -> None:
    queued, running = chain("all"), chain("all")
    for model in (queued, running):
        model.end({"0": State.BURIED})
    running.jobs["1"].state = State.RUNNING
    assert queued.reopen(["0"]) == ({"0"}, {"1"})
    assert running.reopen(["0"]) == ({"0"}, set())
    assert (states(queued), states(running)) == ([QUEUED, BLOCKED], [QUEUED, State.RUNNING])


def test_a_growth_takes_the_place_of_its_job() -> None:
    model = chain("all")
    place = Envelope(id="9", subject="t", body=Body(JSON, b"{}"), headers={GROUP_HEADER: "g"})
    model.grow("0", "9", Publication(envelopes=(place,)))
    assert model.results("j1") == [(0, "9", QUEUED)]
    assert model.jobs["1"].state is BLOCKED
    model.end({"9": State.SUCCEEDED})
    assert model.jobs["1"].state is QUEUED


def test_a_group_is_live_as_long_as_one_of_its_jobs() -> None:
    model = chain("all")
    assert model.is_group_live("g") is True
    model.end({"0": State.SUCCEEDED})
    model.end({"1": State.SUCCEEDED})
    assert model.is_group_live("g") is False
    model.drop("g")
    assert model.joins == {}
    assert model.reopen(["1"]) == ({"1"}, set())
    assert model.is_group_live("g") is None, "its jobs belong to no join"
