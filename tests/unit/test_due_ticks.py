"""Which ticks are due: late, missed and caught up, changed plans, and clocks that jump."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.errors import ConfigurationError
from umbel.messages import Body, Envelope
from umbel.schedules import Definition, Plan, make_timing
from umbel.schedules.due import Decision, ScheduleState, decide
from umbel.schedules.ticks import manual_tick, tick, tick_id
from umbel.schedules.timing import next_function

START = int(datetime(2026, 6, 1, tzinfo=UTC).timestamp())
YEAR = 366 * 86_400


def plan(**options: Any) -> Plan:
    timing = {name: options.pop(name) for name in ("cron", "every", "at") if name in options}
    return Plan(timing=make_timing(**(timing or {"every": 60})), **options)


def step(state: ScheduleState | None, now: float, which: Plan, **times: float) -> Decision:
    find_next = next_function(which.timing)
    return decide(state, which, find_next, now=now, since=times.pop("since", START), **times)


def test_a_new_schedule_waits_for_its_first_time() -> None:
    first = step(None, START + 1, plan())
    assert first.publish == ()
    assert first.state.next == START + 60


def test_a_tick_is_published_once() -> None:
    state = step(None, START, plan()).state
    due = step(state, START + 60, plan())
    assert due.publish == (START + 60,)
    assert step(due.state, START + 61, plan()).publish == ()
    assert due.state.next == START + 120


@pytest.mark.parametrize("catch_up", ["none", "last", "all"])
def test_a_late_tick_is_always_published(catch_up: str) -> None:
    state = step(None, START, plan()).state
    due = step(state, START + 60 + 59, plan(catch_up=catch_up))
    assert due.publish == (START + 60,)
    assert due.missed == 0


@pytest.mark.parametrize(
    ("catch_up", "published"),
    [("none", []), ("last", [4]), ("all", [1, 2, 3, 4])],
)
def test_missed_ticks_are_caught_up_as_the_plan_says(catch_up: str, published: list[int]) -> None:
    hourly = plan(every=3_600, catch_up=catch_up)
    state = step(None, START, hourly).state
    due = step(state, START + 4 * 3_600 + 61, hourly)
    assert due.publish == tuple(START + one * 3_600 for one in published)
    assert due.missed == 4
    assert due.state.missed == 4 - len(published)
    assert due.state.next == START + 5 * 3_600


def test_only_the_late_ticks_are_published_if_there_are_some() -> None:
    state = step(None, START, plan()).state
    due = step(state, START + 3_600, plan())
    assert due.publish == (START + 3_540, START + 3_600)
    assert due.missed == 58


def test_of_many_missed_ticks_the_last_hundred_are_caught_up_and_the_others_counted() -> None:
    every = plan(every=60, catch_up="all")
    state = step(None, START, every).state
    due = step(state, START + 60 * 500 + 30, every)
    assert len(due.publish) == 100 + 1
    assert due.missed == 499
    assert due.state.missed == 399
    assert due.state.history[-1].missed == 0 or due.state.history[0].missed == 0


@pytest.mark.parametrize(
    ("timing", "exact"),
    [
        ({"every": 1}, True),
        ({"cron": "* * * * * *"}, False),
        ({"cron": "*/5 * * * *"}, False),
        ({"cron": "* * 29 2 *"}, False),
        ({"cron": "0 3 * * *"}, False),
        ({"cron": "0 0 1 1 *"}, True),
    ],
)
@pytest.mark.parametrize("catch_up", ["none", "last", "all"])
def test_ten_years_of_missed_ticks_are_decided_quickly(
    timing: dict[str, Any], exact: bool, catch_up: str
) -> None:
    which = plan(**timing, catch_up=catch_up)
    state = step(None, START, which).state
    began = time.process_time()
    now = START + 10 * YEAR + 7
    due = step(state, now, which)
    assert time.process_time() - began < 5
    late = [one for one in due.publish if one >= now - 60]
    assert len(due.publish) - len(late) <= {"none": 0, "last": 1, "all": 100}[catch_up]
    assert due.missed >= 9
    assert due.is_exact is exact
    if timing == {"every": 1}:
        assert due.missed == 10 * YEAR + 7 - 60 - 1
    assert due.state.next is not None
    assert due.state.next > now


def test_a_change_of_the_plan_never_fires_by_itself() -> None:
    state = step(None, START, plan(every=3_600)).state
    changed = step(state, START + 1_800, plan(every=60), since=START + 1_795)
    assert changed.publish == (START + 1_800,)  # a time of the new plan after the change
    changed = step(state, START + 1_799, plan(every=600), since=START + 1_795)
    assert changed.publish == ()
    assert changed.state.next == START + 1_800


def test_a_tick_that_was_due_before_a_change_is_published_by_the_plan_before_it() -> None:
    state = step(None, START, plan(every=3_600)).state
    changed = step(state, START + 3_602, plan(every=86_400), since=START + 3_601)
    assert changed.publish == (START + 3_600,)
    assert changed.state.next == START + 86_400


def test_an_old_plan_that_is_in_force_again_does_not_fire_for_the_past() -> None:
    new = step(None, START + 10, plan(every=86_400), since=START + 10).state
    back = step(new, START + 5_000, plan(every=600), since=START)
    assert back.publish == ()
    assert back.state.next == START + 5_400


def test_the_stored_next_time_is_published_even_if_it_is_computed_differently_now() -> None:
    """Two hosts may have different data of time zones."""
    state = ScheduleState(
        cursor=START, next=START + 90, timing=step(None, START, plan()).state.timing
    )
    due = step(state, START + 91, plan())
    assert due.publish == (START + 90,)
    assert due.state.next == START + 120


def test_times_before_a_resume_are_not_missed() -> None:
    state = step(None, START, plan()).state
    resumed = step(state, START + 7_201, plan(catch_up="all"), resumed=START + 7_199)
    assert resumed.publish == (START + 7_200,)
    assert resumed.missed == 0
    later = step(resumed.state, START + 7_260, plan(), resumed=START + 7_199)
    assert later.publish == (START + 7_260,)


def test_after_the_clock_was_set_back_a_schedule_continues_from_the_present() -> None:
    state = step(None, START + 86_400, plan(), since=START + 86_400).state
    back = step(state, START, plan(), since=START + 86_400)
    assert back.publish == ()
    assert back.set_back == 86_400
    assert back.state.next == START + 60


def test_a_clock_that_was_set_back_a_little_publishes_nothing_twice() -> None:
    state = step(None, START, plan()).state
    state = step(state, START + 60, plan()).state
    back = step(state, START + 30, plan())
    assert (back.publish, back.set_back, back.state.next) == ((), 0, START + 120)


def test_a_date_fires_once_even_if_it_is_late() -> None:
    once = plan(at=datetime.fromtimestamp(START + 100, UTC))
    state = step(None, START, once).state
    due = step(state, START + 130, once)
    assert due.publish == (START + 100,)
    assert due.state.next is None
    assert step(due.state, START + 10_000, once).publish == ()


@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=30),
    st.integers(1, 90),
    st.sampled_from(["none", "last", "all"]),
)
def test_each_time_is_decided_once(steps: list[int], every: int, catch_up: str) -> None:
    """However the rounds fall: each time is published or missed, in order, and never twice."""
    which, now = plan(every=every, catch_up=catch_up), START
    state, published, dropped = None, [], 0
    for seconds in steps:
        now += seconds
        due = step(state, now, which)
        published += due.publish
        state = due.state
    assert published == sorted({*published})
    dropped = state.missed if state else 0
    first = -(-(START + 1) // every) * every
    expected = len(range(first, now + 1, every))
    assert len(published) + dropped == expected
    assert state is not None
    assert state.published == len(published)


# --- jobs of ticks -----------------------------------------------------------------------------


def definition(**fields: Any) -> Definition:
    template = Envelope(
        id="", subject="tasks.report", body=Body("application/json", b"{}"), **fields
    )
    return Definition(plan=plan(), template=template)


def test_the_id_of_a_tick_depends_on_schedule_and_nominal_time_only() -> None:
    def make(now: float, **options: Any) -> Envelope:
        return tick("nightly", definition(), plan(**options), START, namespace="ns", now=now)

    first = make(START)
    assert first.id == make(START + 50).id == make(START, jitter=30, overlap="allow").id
    assert first.id == tick_id("ns", "nightly", START)
    others = {
        tick_id("ns", "nightly", START + 1),
        tick_id("ns", "x", START),
        tick_id("n", "nightly", START),
    }
    assert first.id not in others
    assert manual_tick("nightly", definition(), plan(), namespace="ns", now=START).id != first.id


def test_the_ids_of_ticks_do_not_change_between_releases() -> None:
    assert tick_id("umbel", "nightly", 1_800_000_000) == "2a2644aa-1786-5d8a-aa00-e3594193a335"


def test_jitter_is_a_delay_that_is_the_same_each_time_and_counts_from_the_nominal_time() -> None:
    def delay(nominal: int, now: float) -> float:
        made = tick(
            "n", definition(), plan(every=3_600, jitter=600), nominal, namespace="", now=now
        )
        return made.delay or 0.0

    delays = {delay(START + one * 3_600, START + one * 3_600) for one in range(50)}
    assert len(delays) > 30
    assert all(0 <= one < 600 for one in delays)
    nominal = next(
        START + one * 3_600
        for one in range(50)
        if delay(START + one * 3_600, START + one * 3_600) > 10
    )
    assert delay(nominal, nominal + 4) == delay(nominal, nominal) - 4
    assert delay(nominal, nominal + 3_000) == 0


def test_overlap_is_kept_by_a_unique_key_or_a_limit() -> None:
    def make(overlap: str, **fields: Any) -> Envelope:
        which = plan(overlap=overlap)
        return tick("n", definition(**fields), which, START, namespace="", now=START)

    assert make("skip").unique == "schedule:n"
    assert make("skip", unique="own").unique == "own"
    assert make("allow").unique is None
    assert make("queue", gates=("limit:a",)).gates == ("limit:@schedule/n", "limit:a")
    assert make("queue").unique is None


def test_a_tick_carries_its_schedule_and_nominal_time() -> None:
    made = tick("n", definition(headers={"timeout": "5"}), plan(), START, namespace="", now=START)
    assert made.headers == {"timeout": "5", "schedule": "n", "nominaltime": str(START)}


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"overlap": "maybe"}, "overlap='maybe'"),
        ({"catch_up": "some"}, "catch_up='some'"),
        ({"every": 60, "jitter": 60}, "jitter=60"),
        ({"jitter": -1}, "jitter=-1"),
        ({"jitter": 0.5}, "jitter=0.5"),
        ({"cron": "0 3 * * *", "jitter": 90_000}, "jitter=90000"),
    ],
)
def test_a_wrong_option_is_refused_with_the_remedy(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError, match=field):
        plan(**options)


def test_all_missed_ticks_with_overlap_skip_are_warned_of() -> None:
    assert "only the first runs" in (plan(catch_up="all").warning or "")
    assert plan(catch_up="all", overlap="queue").warning is None
