"""The state table and the one match over outcomes agree."""

from __future__ import annotations

import os
import typing
import uuid

import pytest

from umbel.messages import (
    LIVE,
    TERMINAL,
    TRANSITIONS,
    Failed,
    Finish,
    Outcome,
    Rejected,
    Requeue,
    State,
    disposition,
    fresh_id,
    random_hex,
)
from umbel.testing.actions import FAILURE, OUTCOMES


def test_the_examples_cover_every_outcome() -> None:
    assert {type(outcome) for outcome in OUTCOMES} == set(typing.get_args(Outcome))


def test_every_state_is_live_or_final_and_has_a_row() -> None:
    assert LIVE | TERMINAL == set(State) == set(TRANSITIONS)
    assert not LIVE & TERMINAL
    assert {state for state in State if state.finished} == TERMINAL


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
def test_the_table_allows_what_an_outcome_does_to_a_running_job(outcome: Outcome) -> None:
    match disposition(outcome):
        case Finish(state):
            assert state in TERMINAL
            assert state in TRANSITIONS[State.RUNNING]
        case Requeue(delay):
            state = State.SCHEDULED if delay > 0 else State.QUEUED
            assert state in TRANSITIONS[State.RUNNING]


def test_only_a_replay_or_reopening_leads_out_of_a_final_state() -> None:
    for state in TERMINAL:
        assert TRANSITIONS[state] == {State.QUEUED, State.BLOCKED}


def test_only_what_is_queued_starts_to_run() -> None:
    assert [state for state in State if State.RUNNING in TRANSITIONS[state]] == [State.QUEUED]


def test_only_a_retry_outside_a_section_costs_an_attempt() -> None:
    costly = [o for o in OUTCOMES if getattr(disposition(o), "costs_attempt", False)]
    assert [(type(o).__name__, getattr(o, "section", "?")) for o in costly] == [("Retry", None)]


def test_a_burial_records_the_reason() -> None:
    assert disposition(Failed(FAILURE)) == Finish(
        State.BURIED, failure=FAILURE, reason=FAILURE.message
    )
    assert disposition(Rejected("why")) == Finish(State.BURIED, reason="why")


def test_fresh_ids_are_version_7_uuids_in_order_of_time() -> None:
    made = [fresh_id() for _ in range(1000)]
    assert {uuid.UUID(one).version for one in made} == {7}
    assert len(set(made)) == 1000
    assert [one[:13] for one in made] == sorted(one[:13] for one in made)


def test_a_forked_child_makes_other_ids_than_its_parent() -> None:
    """They share the generator's state at the moment of the fork."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, random_hex(16).encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs, ours = os.read(reading, 100).decode(), random_hex(16)
    assert len(theirs) == len(ours) == 32
    assert theirs != ours
