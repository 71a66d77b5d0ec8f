"""Each rule finds the history that breaks it, and accepts a correct one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from chaos import rules
from chaos.audit import Entry
from chaos.event_log import Event
from chaos.history import History
from umbel import State
from umbel.messages import Attempt, Body, Record

JOB = "one"
OWNER, OTHER = "worker-a", "worker-b"


def entry(seq: int, what: str, fence: int = 0, **more: Any) -> Entry:
    notes = {"published": "work|default|", "paused": "all|", "resumed": "all|"}
    known = {"job": JOB, "owner": OWNER, "note": notes.get(what, ""), **more}
    return Entry(seq, float(seq), what, known["job"], known["owner"], fence, "", known["note"])


def event(at: float, what: str, fence: int = 0, **more: Any) -> Event:
    known: dict[str, Any] = {"job": JOB, "owner": OWNER, "pid": 7, "kind": "coroutine", "clock": at}
    return Event(at=at, what=what, fence=fence, **(known | more))


def record(state: State = State.SUCCEEDED, result: bytes | None = b"1", **more: Any) -> Record:
    ended = (Attempt(1, "w", 3.0, 5.0, "succeeded"),)
    known: dict[str, Any] = {"attempts": ended, **more}
    body = Body("application/json", b"{}")
    answer = None if result is None else Body("application/json", result)
    return Record(
        id=JOB,
        task="work",
        namespace="n",
        queue="default",
        state=state,
        created=1.0,
        body=body,
        result=answer,
        **known,
    )


MEANT = [event(0.5, "meant"), event(1.5, "published")]
RUN = [event(3.1, "start", 1), event(4.9, "end", 1), event(5.5, "settled", 1)]
ENTRIES = [
    entry(1, "published"),
    entry(3, "claimed", 1),
    entry(5, "recorded", 1),
    entry(6, "left", 1),
]
TAKEN = [
    entry(1, "published"),
    entry(3, "claimed", 1),
    entry(10, "released", 1),
    entry(11, "claimed", 2, owner=OTHER),
    entry(15, "recorded", 2),
    entry(16, "left", 2, owner=OTHER),
]


def found(
    rule: rules.Rule,
    events: Sequence[Event] = (),
    entries: Sequence[Entry] = (),
    records: Sequence[Record] = (),
    fence: int = 1,
    business: set[str] | None = None,
) -> list[str]:
    fences = {one.id: fence for one in records}
    return [what for _, what in rule(History(events, entries, records, fences, business))]


def test_a_correct_history_breaks_no_rule() -> None:
    assert rules.broken(History([*MEANT, *RUN], ENTRIES, [record()], {JOB: 1})) == []


def test_a_job_that_was_not_stored_or_left_without_a_record_is_lost() -> None:
    assert found(rules.nothing_is_lost, MEANT) != []
    assert found(rules.nothing_is_lost, [*MEANT, *RUN], [*ENTRIES[:2], ENTRIES[3]]) != []
    assert found(rules.nothing_is_lost, [event(0.5, "meant"), event(1.5, "unsure")]) == []


def test_a_job_that_keeps_no_record_may_leave_after_its_run() -> None:
    meant = [event(0.5, "meant", kind="forgotten"), event(1.5, "published")]
    left = [*ENTRIES[:2], ENTRIES[3]]
    assert found(rules.nothing_is_lost, [*meant, *RUN], left) == []
    assert found(rules.nothing_is_lost, meant, left) != []


def test_a_job_that_was_rolled_back_is_neither_stored_nor_run() -> None:
    events = [event(0.5, "meant"), event(1.5, "rolled back")]
    assert found(rules.nothing_runs_that_was_rolled_back, events) == []
    assert found(rules.nothing_runs_that_was_rolled_back, [*events, RUN[0]]) != []
    assert found(rules.nothing_runs_that_was_rolled_back, events, ENTRIES) != []


@pytest.mark.parametrize(("entries", "business"), [([], {JOB}), (ENTRIES, set())])
def test_half_a_transaction_is_found(entries: list[Entry], business: set[str]) -> None:
    events = [event(0.5, "meant", note="in a transaction")]
    rule = rules.nothing_runs_that_was_rolled_back
    assert found(rule, events, entries, business=business) != []


@pytest.mark.parametrize(
    "more",
    [
        [entry(4, "claimed", 2)],  # while it is held
        [entry(4, "stolen", 2)],
        [entry(7, "recorded", 1)],  # a second time
        [entry(7, "claimed", 2)],  # after its end
        [entry(7, "published"), entry(8, "claimed", 1), entry(9, "released", 1)],  # an old fence
    ],
)
def test_a_second_holder_or_a_second_record_is_found(more: list[Entry]) -> None:
    entries = sorted([*ENTRIES, *more], key=lambda one: one.seq)
    assert found(rules.each_lease_ends_before_the_next, (), entries) != []


def test_a_job_that_is_unfinished_at_the_end_is_found() -> None:
    assert found(rules.each_lease_ends_before_the_next, (), ENTRIES[:2]) != []
    assert found(rules.each_lease_ends_before_the_next, (), TAKEN) == []


def test_an_id_that_was_published_twice_without_a_replay_is_found() -> None:
    rule = rules.each_lease_ends_before_the_next
    second = [entry(7, "published"), entry(8, "recorded"), entry(9, "left")]
    assert found(rule, [event(6.5, "replayed")], [*ENTRIES, *second]) == []
    assert found(rule, (), [*ENTRIES, *second]) != []


def test_a_run_without_a_claim_or_twice_under_one_is_found() -> None:
    assert found(rules.every_run_has_its_claim, [event(3.1, "start", 2)], ENTRIES) != []
    assert (
        found(rules.every_run_has_its_claim, [event(3.1, "start", 1, owner=OTHER)], ENTRIES) != []
    )
    assert found(rules.every_run_has_its_claim, [RUN[0], RUN[0]], ENTRIES) != []


FREEZE = [event(3.05, "frozen", job=""), event(12.0, "woken", job="")]


def test_a_start_under_a_lost_lease_is_found_unless_its_process_was_frozen() -> None:
    late = event(12.5, "start", 1)
    rule = rules.nothing_starts_under_a_lost_lease
    assert found(rule, [late], TAKEN) != []
    assert found(rule, [*FREEZE, late], TAKEN) == []


def test_two_runs_at_once_are_found_unless_the_first_was_frozen_or_killed() -> None:
    rule = rules.no_two_runs_of_coroutines_overlap
    both = [event(3.1, "start", 1), event(11.1, "start", 2, owner=OTHER, pid=8)]
    assert found(rule, both, TAKEN) != []
    assert found(rule, [*both, event(9.0, "stopped", 1)], TAKEN) == []
    assert found(rule, [event(5.0, "killed", job=""), *both], TAKEN) == []
    assert found(rule, [*FREEZE, *both], TAKEN) == []


def test_an_outcome_under_an_old_fence_is_found() -> None:
    rule = rules.no_outcome_under_an_old_fence
    runs = [*RUN[:2], event(11.1, "start", 2), event(14.0, "end", 2)]
    assert found(rule, runs, TAKEN, [record(result=b"2")], fence=2) == []
    assert found(rule, runs, TAKEN, [record(result=b"1")], fence=2) != []
    assert found(rule, [*runs, event(14.5, "settled", 1)], TAKEN, [record(result=b"2")], 2) != []
    assert found(rule, runs[:3], TAKEN, [record(result=b"2")], fence=2) != []


def test_only_a_job_that_keeps_no_record_may_have_a_record_without_its_result() -> None:
    rule = rules.no_outcome_under_an_old_fence
    forgotten = [event(0.5, "meant", kind="forgotten"), *RUN]
    assert found(rule, forgotten, ENTRIES, [record(result=None)]) == []
    assert found(rule, forgotten, ENTRIES, [record(result=b"2")]) != []
    assert found(rule, forgotten[:2], ENTRIES, [record(result=None)]) != [], "it did not finish"
    assert found(rule, [*MEANT, *RUN], ENTRIES, [record(result=None)]) != []


def test_a_start_after_a_confirmed_cancellation_is_found() -> None:
    rule = rules.a_cancelled_job_does_not_start
    cancelled = event(2.0, "cancelled")
    entries = [entry(1, "published"), entry(2, "recorded"), entry(3, "left")]
    gone = record(State.CANCELLED, None)
    assert found(rule, [cancelled], entries, [gone]) == []
    assert found(rule, [cancelled, RUN[0]], entries, [gone]) != []
    assert found(rule, [cancelled], entries, [record()]) != []


def test_a_claim_by_a_worker_that_confirmed_a_pause_is_found() -> None:
    rule = rules.no_worker_claims_after_it_confirmed_a_pause
    pause = [entry(2, "paused", job=""), entry(3, "epoch", 5, job="")]
    before = [entry(1, "published"), *pause, entry(4, "claimed", 1)]
    confirmed = entry(5, "confirmed", 5, job="")
    claim, resume = entry(6, "claimed", 2), entry(7, "resumed", job="")
    assert found(rule, (), [*before, confirmed, resume]) == []
    assert found(rule, (), [*before, confirmed, claim, resume]) != []
    assert found(rule, (), [*before, entry(5, "confirmed", 4, job=""), claim, resume]) == []
    assert found(rule, (), [*before, confirmed, resume, entry(8, "claimed", 2)]) == []
    other = entry(6, "claimed", 2, owner=OTHER)
    assert found(rule, (), [*before, confirmed, other, resume]) == []


def test_two_live_jobs_with_one_key_are_found() -> None:
    first = entry(1, "published", note="work|default|key")
    second = entry(3, "published", note="work|default|key", job="two")
    rule = rules.one_live_job_a_unique_key
    assert found(rule, (), [first, second]) != []
    assert found(rule, (), [first, entry(2, "left"), second]) == []


def test_a_start_long_after_its_expiry_is_found() -> None:
    rule = rules.nothing_starts_after_it_expired
    meant = event(0.5, "meant", until=0.9)
    assert found(rule, [meant, event(3.1, "start", 1)], ENTRIES) != []
    slow = event(3.1, "start", 1, clock=0.8)
    assert found(rule, [meant, slow], ENTRIES) != [], "a slow clock is no excuse"
    assert [*rule(History([meant, slow], ENTRIES, one_clock=True))] == [], (
        "unless it is the store's"
    )


def test_a_start_before_its_time_is_found() -> None:
    rule = rules.nothing_starts_before_it_is_due
    assert found(rule, [event(0.5, "meant", due=3.0), RUN[0]], ENTRIES) == []
    assert found(rule, [event(0.5, "meant", due=3.5), RUN[0]], ENTRIES) != []


def test_an_expiry_before_its_time_is_found() -> None:
    rule = rules.nothing_expires_before_its_time
    expired = record(State.EXPIRED, None, finished=5.0)
    assert found(rule, [event(0.5, "meant", until=5.0)], ENTRIES, [expired]) == []
    assert found(rule, [event(0.5, "meant", until=9.0)], ENTRIES, [expired]) != []


def test_a_call_that_outlasts_its_deadline_is_found() -> None:
    rule = rules.no_call_outlasts_its_deadline
    assert found(rule, MEANT) == []
    assert found(rule, [event(0.5, "meant"), event(11.5, "unsure")]) != []


def test_an_end_that_does_not_fit_the_kind_is_found() -> None:
    rule = rules.each_job_ends_as_its_kind_says
    buried = record(State.BURIED, None)
    assert found(rule, MEANT, ENTRIES, [buried]) != []
    assert found(rule, [event(0.5, "meant", kind="fails")], ENTRIES, [buried]) == []
    assert found(rule, [event(0.5, "meant", kind="poison")], ENTRIES, [buried]) != [], "no death"


def test_a_process_that_ends_by_itself_is_found() -> None:
    rule = rules.no_process_ends_by_itself
    for fine in ("worker-1 0", "publisher-0 -9", "worker-2 3"):
        assert found(rule, [event(3.0, "gone", job="", note=fine)]) == []
    for wrong in ("worker-1 1", "publisher-0 3", "worker-0 75"):
        assert found(rule, [event(3.0, "gone", job="", note=wrong)]) != []
    assert found(rule, [event(3.0, "odd", job="", note="TypeError")]) != []


def test_attempts_and_deaths_that_do_not_add_up_are_found() -> None:
    rule = rules.attempts_are_counted_right
    assert found(rule, MEANT, ENTRIES, [record(attempt=2)]) != []
    assert found(rule, MEANT, ENTRIES, [record(deaths=1)]) != []
    lost = (Attempt(1, "w", 1.0, 2.0, "lost"), Attempt(1, "w", 3.0, 5.0, "succeeded"))
    assert found(rule, MEANT, ENTRIES, [record(deaths=1, attempts=lost)]) == []
    assert found(rule, MEANT, ENTRIES, [record(deaths=0, attempts=lost)]) == [], (
        "the death was revoked"
    )
    killed = [event(3.5, "killed", job="")]
    assert found(rule, [*MEANT, RUN[0], *killed], ENTRIES, [record(deaths=0, attempts=lost)]) != []
    fragile = [event(0.5, "meant", kind="fragile")]
    assert found(rule, fragile, ENTRIES, [record(deaths=1, attempts=lost)]) != []
