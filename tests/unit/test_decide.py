"""How a run ended, as an outcome: every ending, under every policy, in every section."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from umbel import Retry, Snooze, optional, poisonous, retry
from umbel.errors import ConfigurationError
from umbel.messages import (
    JSON,
    Body,
    BodyCodec,
    Cancelled,
    Delivery,
    Envelope,
    Failed,
    Interrupted,
    Lease,
    Outcome,
    Snoozed,
    Succeeded,
)
from umbel.messages import Retry as RetryOutcome
from umbel.tasks import Registry, running, task
from umbel.worker import decide
from umbel.worker.activation import Activator
from umbel.worker.incarnation import Incarnation
from umbel.worker.progress import ProgressNotes
from umbel.worker.runs import Activation
from umbel.worker.stops import Stop, StopCause

CODEC = BodyCodec(limit=10_000)
JOB = "01890000-0000-7000-8000-000000000001"
NOW = 1_800_000_000.0

ERRORS = [
    ValueError("no"),
    KeyError("missing"),
    RecursionError("deep"),
    ExceptionGroup("many", [ValueError("one")]),
    BaseException("base"),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    asyncio.CancelledError(),
]


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot be shown")


class Boxed(Exception):
    """Cannot be built again from its arguments."""

    def __init__(self, a: int, b: object) -> None:
        super().__init__(object())


def activated(
    policy: Retry | None = None,
    *,
    attempt: int = 1,
    sections: dict[str, int] | None = None,
    headers: dict[str, str] | None = None,
    **declared: Any,
) -> Activation:
    """A run as a worker prepares it."""

    @task(name="tests.work", retry=policy or Retry(3), **declared)
    def work() -> None: ...

    registry = Registry()
    registry.add(work)
    delivery = Delivery(
        envelope=Envelope(
            id=JOB, subject="tests.work", body=Body(JSON, b"{}"), headers=headers or {}
        ),
        lease=Lease(JOB, "life", 1),
        attempt=attempt,
        sections=sections or {},
    )
    made = Activator(
        registry,
        CODEC,
        incarnation=Incarnation("worker"),
        progress=ProgressNotes(cast(Any, None)),
    ).activate(delivery)
    assert isinstance(made, Activation), made
    return made


def run(activation: Activation, body: Callable[[], Any]) -> Outcome:
    """Run a body where sections find their run, and decide."""
    token = running.set(activation.run)
    try:
        return decide.outcome_of_return(activation, body(), CODEC)
    except BaseException as error:
        return decide.outcome_of_error(activation, error, NOW)
    finally:
        running.reset(token)


def failing(error: BaseException) -> Callable[[], Any]:
    def body() -> None:
        raise error

    return body


def failing_in(section: Any, error: BaseException) -> Callable[[], Any]:
    def body() -> None:
        with section:
            raise error

    return body


def name(error: BaseException) -> str:
    return type(error).__name__


# --- it returned -----------------------------------------------------------------------------


def test_a_returned_value_is_the_result() -> None:
    outcome = run(activated(), lambda: {"sum": 3})
    assert outcome == Succeeded(Body(JSON, b'{"sum":3}'))


def test_nothing_returned_is_a_result_too() -> None:
    assert run(activated(), lambda: None) == Succeeded(Body(JSON, b"null"))


@pytest.mark.parametrize("track", ["state", "failures"])
@pytest.mark.parametrize("value", [1, object()], ids=["plain", "without wire form"])
def test_a_result_that_is_not_tracked_is_not_encoded(track: str, value: object) -> None:
    assert run(activated(track=track), lambda: value) == Succeeded()


@pytest.mark.parametrize("value", [object(), {1j}, lambda: 0, "x" * 20_000])
def test_a_result_that_cannot_be_stored_is_final(value: object) -> None:
    outcome = run(activated(), lambda: value)
    assert isinstance(outcome, Failed)
    assert outcome.failure.message


def test_a_result_that_contains_itself_is_final() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert isinstance(run(activated(), lambda: endless), Failed)


def test_a_result_of_text_that_is_no_text_is_final() -> None:
    assert isinstance(run(activated(), lambda: "\ud800"), Failed)


# --- it raised -------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ERRORS, ids=name)
def test_any_error_is_tried_again_while_tries_are_left(error: BaseException) -> None:
    outcome = run(activated(Retry(3)), failing(error))
    assert isinstance(outcome, RetryOutcome)
    assert outcome.section is None
    assert outcome.failure.type.endswith(type(error).__qualname__)


@pytest.mark.parametrize("error", ERRORS, ids=name)
def test_any_error_is_final_when_the_tries_are_used_up(error: BaseException) -> None:
    assert isinstance(run(activated(Retry(3), attempt=4), failing(error)), Failed)


@pytest.mark.parametrize("error", ERRORS, ids=name)
def test_any_error_is_final_for_a_task_that_never_repeats(error: BaseException) -> None:
    assert isinstance(run(activated(Retry(0)), failing(error)), Failed)


@pytest.mark.parametrize("attempt", [1, 2, 3])
def test_every_try_that_was_promised_is_made(attempt: int) -> None:
    assert isinstance(run(activated(Retry(3), attempt=attempt), failing(OSError())), RetryOutcome)


def test_an_error_that_is_worth_a_try_gets_one() -> None:
    policy = Retry(3, on=OSError)
    assert isinstance(run(activated(policy), failing(ConnectionError())), RetryOutcome)


def test_an_error_that_is_not_worth_a_try_is_final() -> None:
    assert isinstance(run(activated(Retry(3, on=OSError)), failing(ValueError())), Failed)


def test_an_error_named_as_hopeless_is_final() -> None:
    assert isinstance(run(activated(Retry(3, never=OSError)), failing(ConnectionError())), Failed)


def test_never_outweighs_on() -> None:
    policy = Retry(3, on=OSError, never=ConnectionError)
    assert isinstance(run(activated(policy), failing(ConnectionResetError())), Failed)
    assert isinstance(run(activated(policy), failing(FileNotFoundError())), RetryOutcome)


@pytest.mark.parametrize("wrong", [[ValueError], "ValueError", 3, (ValueError, "KeyError")])
@pytest.mark.parametrize("field", ["on", "never"])
def test_a_policy_of_things_that_are_no_errors_is_refused_when_declared(
    field: str, wrong: Any
) -> None:
    with pytest.raises(ConfigurationError, match=field):
        Retry(3, **{field: wrong})


def test_delays_grow_up_to_their_cap() -> None:
    policy = Retry(10, first=1, factor=2, cap=20, jitter=0)
    delays = []
    for attempt in range(1, 8):
        outcome = run(activated(policy, attempt=attempt), failing(OSError()))
        assert isinstance(outcome, RetryOutcome)
        delays.append(outcome.delay)
    assert delays == [1, 2, 4, 8, 16, 20, 20]


def test_the_same_failure_is_always_decided_the_same() -> None:
    def decided() -> Outcome:
        return decide.outcome_of_error(activated(Retry(5), attempt=2), OSError("no"), NOW)

    assert decided() == decided()


@pytest.mark.parametrize("factor", [1e5, 1e100, 1e308])
def test_a_steep_policy_ends_at_its_cap(factor: float) -> None:
    policy = Retry(100, first=1, factor=factor, cap=60, jitter=0)
    outcome = run(activated(policy, attempt=90), failing(OSError()))
    assert isinstance(outcome, RetryOutcome)
    assert outcome.delay == 60


def test_a_call_brings_its_own_numbers_and_keeps_the_tasks_errors() -> None:
    headers = {"retry": '{"times": 1, "first": 7, "factor": 1, "cap": 7}'}
    policy = Retry(9, never=KeyError)
    outcome = run(activated(policy, headers=headers), failing(OSError()))
    assert isinstance(outcome, RetryOutcome)
    assert 5.6 <= outcome.delay <= 7
    assert isinstance(
        run(activated(policy, headers=headers, attempt=2), failing(OSError())), Failed
    )
    assert isinstance(run(activated(policy, headers=headers), failing(KeyError())), Failed)


@pytest.mark.parametrize("error", [Broken(), Boxed(1, 2), ValueError("\x00 \ud800 \U0001f600")])
def test_an_error_that_cannot_be_shown_or_rebuilt_is_still_reported(error: Exception) -> None:
    outcome = run(activated(Retry(0)), failing(error))
    assert isinstance(outcome, Failed)
    assert outcome.failure.type.endswith(type(error).__qualname__)
    assert outcome.failure.message.encode(), "it has to fit every store"


class Deadly(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


def test_an_error_whose_text_ends_the_interpreter_is_still_reported() -> None:
    activation = activated(Retry(0))
    try:
        outcome = decide.outcome_of_error(activation, Deadly(), NOW)
    except SystemExit:
        pytest.fail("describing the error ended the worker")
    assert isinstance(outcome, Failed)


# --- it raised inside a section --------------------------------------------------------------


def test_a_retry_section_pays_from_its_own_counter() -> None:
    section = retry(2, name="mail", first=5, factor=1)
    outcome = run(activated(Retry(0)), failing_in(section, OSError("no")))
    assert isinstance(outcome, RetryOutcome)
    assert outcome.section == "mail"
    assert 4 <= outcome.delay <= 5


def test_a_retry_section_does_not_look_at_the_tasks_attempts() -> None:
    section = retry(2, name="mail")
    outcome = run(activated(Retry(3), attempt=99), failing_in(section, OSError()))
    assert isinstance(outcome, RetryOutcome)
    assert outcome.section == "mail"


@pytest.mark.parametrize(("failed", "again"), [(0, True), (1, True), (2, False), (9, False)])
def test_a_retry_section_is_final_when_its_own_tries_are_used_up(failed: int, again: bool) -> None:
    activation = activated(Retry(9), sections={"mail": failed, "other": 5})
    outcome = run(activation, failing_in(retry(2, name="mail"), OSError()))
    assert isinstance(outcome, RetryOutcome if again else Failed)


def test_a_retry_sections_delays_grow_with_its_own_counter() -> None:
    def delay(failed: int) -> float:
        activation = activated(Retry(0), sections={"mail": failed})
        section = retry(9, name="mail", first=1, factor=10, cap=1e6)
        outcome = run(activation, failing_in(section, OSError()))
        assert isinstance(outcome, RetryOutcome)
        return outcome.delay

    assert delay(0) < delay(1) < delay(2)


def test_an_error_the_retry_section_does_not_name_is_final() -> None:
    section = retry(2, name="mail", on=OSError)
    assert isinstance(run(activated(Retry(9)), failing_in(section, ValueError())), Failed)


def test_a_section_without_a_name_is_known_by_its_place() -> None:
    def body() -> None:
        with retry(2):
            raise OSError

    first, second = run(activated(), body), run(activated(), body)
    assert isinstance(first, RetryOutcome)
    assert first.section
    assert first == second


def test_a_poisonous_section_is_final_whatever_the_policy_says() -> None:
    assert isinstance(run(activated(Retry(9)), failing_in(poisonous(), OSError())), Failed)


def test_an_optional_section_lets_the_task_go_on() -> None:
    def body() -> int:
        with optional(KeyError):
            raise KeyError("absent")
        return 7

    assert run(activated(), body) == Succeeded(Body(JSON, b"7"))


def test_an_optional_section_ignores_only_what_it_names() -> None:
    outcome = run(activated(Retry(3)), failing_in(optional(KeyError), OSError()))
    assert isinstance(outcome, RetryOutcome)


@pytest.mark.parametrize("error", [e for e in ERRORS if not isinstance(e, Exception)], ids=name)
@pytest.mark.parametrize(
    "section", [retry(2, name="mail"), poisonous()], ids=["retry", "poisonous"]
)
def test_a_request_to_exit_is_no_failure_of_a_section(section: Any, error: BaseException) -> None:
    outcome = run(activated(Retry(3)), failing_in(section, error))
    assert isinstance(outcome, RetryOutcome)
    assert outcome.section is None


def test_the_innermost_section_decides() -> None:
    def body() -> None:
        with poisonous(), retry(2, name="inner"):
            raise OSError

    outcome = run(activated(), body)
    assert isinstance(outcome, RetryOutcome)
    assert outcome.section == "inner"


def test_an_error_behind_a_section_that_went_well_is_the_tasks_own() -> None:
    def body() -> None:
        with poisonous():
            pass
        raise OSError

    outcome = run(activated(Retry(3)), body)
    assert isinstance(outcome, RetryOutcome)
    assert outcome.section is None


def test_an_error_caught_inside_the_task_leaves_no_mark_on_the_next() -> None:
    def body() -> None:
        try:
            with poisonous():
                raise ValueError("caught")
        except ValueError:
            pass
        raise OSError("its own")

    outcome = run(activated(Retry(3)), body)
    assert isinstance(outcome, RetryOutcome)


# --- how long its record is kept --------------------------------------------------------------


@pytest.mark.parametrize("track", ["result", "state"])
def test_a_success_says_how_long_it_is_kept(track: str) -> None:
    def outcome(**headers: str) -> Outcome:
        return run(activated(keep=60.0, track=track, headers=headers), lambda: 1)

    declared, called = outcome(), outcome(keep="5")
    assert isinstance(declared, Succeeded)
    assert isinstance(called, Succeeded)
    assert (declared.keep_for, called.keep_for) == (60, 5)


@pytest.mark.parametrize("text", ["", "soon", "0", "-1", "nan", "inf", "1e300"])
def test_a_message_with_a_wrong_time_is_refused_by_its_name(text: str) -> None:
    for header in ("keep", "timeout"):
        with pytest.raises(AssertionError, match=f"Rejected.*{header}"):
            activated(headers={header: text})


# --- it asked for later, or was stopped -------------------------------------------------------


@pytest.mark.parametrize("attempt", [1, 50])
def test_a_snooze_is_never_a_failure(attempt: int) -> None:
    assert run(activated(Retry(0), attempt=attempt), failing(Snooze(30))) == Snoozed(30)


@pytest.mark.parametrize(
    "section", [retry(1, name="mail"), poisonous()], ids=["retry", "poisonous"]
)
def test_a_snooze_inside_a_section_is_a_snooze(section: Any) -> None:
    assert run(activated(Retry(0)), failing_in(section, Snooze(1))) == Snoozed(1)


def test_a_snooze_inside_an_optional_section_is_a_snooze() -> None:
    assert run(activated(Retry(0)), failing_in(optional(), Snooze(1))) == Snoozed(1)


def test_a_timeout_is_a_failure_like_any_other() -> None:
    outcome = run(activated(Retry(3), timeout=2), failing(Stop(StopCause.TIMEOUT)))
    assert isinstance(outcome, RetryOutcome)
    assert outcome.failure.type == "builtins:TimeoutError"
    assert "2 s" in outcome.failure.message


def test_a_timeout_that_is_not_worth_a_try_is_final() -> None:
    policy = Retry(3, never=TimeoutError)
    assert isinstance(run(activated(policy, timeout=2), failing(Stop(StopCause.TIMEOUT))), Failed)


@pytest.mark.parametrize("cause", [StopCause.CANCEL, StopCause.DUPLICATE])
def test_a_job_that_is_no_longer_wanted_is_cancelled_with_the_reason(cause: StopCause) -> None:
    assert run(activated(), failing(Stop(cause, "not wanted"))) == Cancelled("not wanted")


@pytest.mark.parametrize("cause", [StopCause.INTERRUPT, StopCause.LOST])
@pytest.mark.parametrize("attempt", [1, 50])
def test_an_interrupted_run_goes_back_without_a_cost(cause: StopCause, attempt: int) -> None:
    outcome = run(activated(Retry(0), attempt=attempt), failing(Stop(cause)))
    assert outcome == Interrupted(cause.text)


@pytest.mark.parametrize("cause", list(StopCause))
@pytest.mark.parametrize(
    "section", [retry(1, name="mail"), poisonous()], ids=["retry", "poisonous"]
)
def test_a_stop_inside_a_section_means_what_it_means_outside(
    section: Any, cause: StopCause
) -> None:
    activation = activated(Retry(3), timeout=2)
    outside = run(activation, failing(Stop(cause)))
    assert type(run(activation, failing_in(section, Stop(cause)))) is type(outside)
