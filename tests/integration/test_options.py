"""Options reach the job, those of a call override those of the task, and mistakes are named.

Also, ``import umbel`` does not import certain modules.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from integration.conftest import HANG, Place, working
from umbel import Retry, State, Umbel, Unique, current, task
from umbel.errors import ConfigurationError
from umbel.tasks.options import CallOptions, TaskOptions, Track


def any_task(app: Umbel, **options: Any) -> Any:
    @app.task(name="any", **options)
    def anything() -> int:
        return 1

    return anything


# --- they reach the job -----------------------------------------------------------------------


def test_a_task_without_options_has_the_defaults(place: Place) -> None:
    record = any_task(place.app()).delay().record()
    assert (record.queue, record.priority, record.attempt) == ("default", 0, 1)
    assert (record.not_before, record.expires, record.unique) == (None, None, None)
    assert record.headers == {}
    assert record.state is State.QUEUED
    assert record.traceparent is not None


def test_what_the_task_declares_reaches_the_job(place: Place) -> None:
    declared = any_task(place.app(), queue="mail", priority=5, delay=60, expires=3600, unique="k")
    record = declared.delay().record()
    assert (record.queue, record.priority, record.unique) == ("mail", 5, "k")
    assert record.state is State.SCHEDULED
    assert record.not_before == pytest.approx(record.created + 60, abs=0.001)
    assert record.expires == pytest.approx(record.created + 3600, abs=0.001)


def test_the_option_of_a_call_overrides_that_of_the_task(place: Place) -> None:
    declared = any_task(place.app(), queue="mail", priority=5, delay=60, expires=3600, unique="k")
    moment = datetime(2090, 1, 1, tzinfo=UTC)
    call = declared.options(
        queue="other", priority=0, not_before=moment, expires=moment, unique="own"
    )
    record = call.delay().record()
    assert (record.queue, record.priority, record.unique) == ("other", 0, "own")
    assert record.not_before == record.expires == moment.timestamp()


def test_delay_zero_undoes_the_tasks_delay(place: Place) -> None:
    declared = any_task(place.app(), delay=60)
    assert declared.options(delay=0).delay().state is State.QUEUED


def test_options_add_up_and_leave_the_task_alone(place: Place) -> None:
    plain = any_task(place.app())
    both = plain.options(queue="a").options(priority=3)
    record = both.delay().record()
    assert (record.queue, record.priority) == ("a", 3)
    record = plain.delay().record()
    assert (record.queue, record.priority) == ("default", 0)
    signature = both.s()
    assert (signature.call_options.queue, signature.call_options.priority) == ("a", 3)
    assert both() == 1, "a plain call is still a plain call"


def test_timeout_and_retry_of_a_call_travel_with_it(place: Place) -> None:
    app = place.app()
    tries: list[int] = []

    @app.task(retry=Retry(0))
    def fail() -> None:
        tries.append(current.job.attempt)
        raise ValueError("no")

    call = fail.options(retry=Retry(2, first=0.02, factor=1), timeout=30)
    with working(app):
        handle = call.delay()
        with pytest.raises(ValueError, match="no"):
            handle.get(HANG)
    assert tries == [1, 2, 3]


def test_a_number_of_retries_is_short_for_a_policy(place: Place) -> None:
    app = place.app()

    @app.task(retry=0)
    def fail() -> None:
        raise ValueError("no")

    with working(app):
        handle = fail.delay()
        with pytest.raises(ValueError, match="no"):
            handle.get(HANG)
    assert len(handle.record().attempts) == 1


def test_a_job_published_by_a_task_carries_its_trace_on(place: Place) -> None:
    app = place.app()
    traces: list[str | None] = []
    done = threading.Event()

    @app.task
    def inner() -> None:
        traces.append(current.job.traceparent)
        done.set()

    @app.task
    def outer() -> None:
        traces.append(current.job.traceparent)
        inner.delay()

    with working(app):
        outer.delay()
        assert done.wait(HANG)
    first, second = (str(trace).split("-") for trace in traces)
    assert first[1] == second[1]
    assert first[2] != second[2]


def test_a_free_task_is_bound_by_include(place: Place) -> None:
    module = ModuleType("a_library")

    @task(name="library.triple", queue="lib")
    def triple(number: int) -> int:
        return 3 * number

    module.triple = triple  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match=r"app\.include"):
        triple.delay(1)
    app = place.app()
    app.include(module)
    with working(app):
        assert triple.delay(7).get(HANG) == 21


def test_namespaces_do_not_see_each_other(place: Place) -> None:
    mine, theirs = place.app(), place.app(namespace=f"{place.namespace}x")
    unique = [any_task(app).options(unique="k").delay() for app in (mine, theirs)]
    assert unique[0].id != unique[1].id
    assert place.ids() == [unique[0].id]


# --- mistakes are named -----------------------------------------------------------------------


@pytest.mark.parametrize("where", [TaskOptions, CallOptions])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("queue", ""),
        ("queue", "x" * 256),
        ("queue", "a\x00b"),
        ("queue", "\ud800"),
        ("priority", 40_000),
        ("priority", 1.5),
        ("priority", True),
        ("delay", -1),
        ("delay", float("nan")),
        ("delay", float("inf")),
        ("delay", 1e300),
        ("delay", "5"),
        ("expires", 0),
        ("expires", 1e300),
        ("expires", -1),
        ("timeout", 0),
        ("timeout", -1),
        ("timeout", "soon"),
        ("retry", "often"),
        ("retry", -1),
        ("track", "everything"),
        ("unique", ""),
        ("unique", "x" * 256),
    ],
)
def test_a_wrong_option_is_refused_when_it_is_given(where: Any, field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        where(**{field: value})
    assert field in str(refused.value) or "times" in str(refused.value)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"loop": "twisted"}, "loop"),
        ({"max_deaths": 0}, "max_deaths"),
        ({"retry": True}, "retry"),
    ],
)
def test_a_wrong_option_of_a_task_is_refused_when_it_is_declared(
    options: dict[str, Any], names: str
) -> None:
    with pytest.raises(ConfigurationError, match=names):
        any_task(Umbel("sqlite:///:memory:"), **options)


def test_delay_and_not_before_exclude_each_other() -> None:
    with pytest.raises(ConfigurationError, match="delay and not_before"):
        any_task(Umbel("sqlite:///:memory:")).options(delay=1, not_before=datetime(2090, 1, 1))


@pytest.mark.parametrize("value", [12.5, "2090-01-01", 4_000_000_000])
def test_not_before_that_is_no_datetime_is_refused(value: Any) -> None:
    declared = any_task(Umbel("sqlite:///:memory:"))
    with pytest.raises(ConfigurationError, match="not_before"):
        declared.options(not_before=value).delay()


def test_an_unknown_option_is_refused_and_the_known_ones_listed() -> None:
    declared = any_task(Umbel("sqlite:///:memory:"))
    with pytest.raises(ConfigurationError, match=r"prioritty.*priority"):
        declared.options(prioritty=1)
    with pytest.raises((ConfigurationError, TypeError), match="prioritty"):
        any_task(Umbel("sqlite:///:memory:"), prioritty=1)


def test_a_unique_policy_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="on_conflict"):
        Unique("k", on_conflict="explode")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "mysql://x"},
        {"url": "umbel.db"},
        {"url": "sqlite://two/slashes.db"},
        {"url": "sqlite:///x.db?synchronous=never"},
        {"url": "sqlite:///x.db?mode=memory"},
        {"url": "postgresql://x/y?schema=Bad-Name"},
        {"url": "sqlite:///x.db", "broker": "sqlite:///y.db"},
        {"url": "sqlite:///x.db", "store": "sqlite:///y.db"},
        {"url": "sqlite:///x.db", "namespace": "no spaces"},
        {"url": "sqlite:///x.db", "deadline": 0},
        {"url": "sqlite:///x.db", "max_message": 10},
        {"url": "sqlite:///x.db", "format": "yaml"},
        {"url": "sqlite:///x.db", "format": "pickle"},
        {"url": "sqlite:///x.db", "keep_days": 0},
    ],
    ids=str,
)
def test_wrong_settings_are_refused_when_the_application_is_made(settings: dict[str, Any]) -> None:
    url = settings.pop("url")
    with pytest.raises(ConfigurationError):
        Umbel(url, **settings)


def test_settings_come_from_the_environment_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMBEL_URL", "sqlite:///:memory:")
    monkeypatch.setenv("UMBEL_DEADLINE", "7.5")
    assert Umbel().settings.broker == "sqlite:///:memory:"
    assert Umbel().settings.deadline == 7.5
    assert Umbel("sqlite:///x.db", deadline=3).settings.deadline == 3
    monkeypatch.setenv("UMBEL_DEADLINE", "soon")
    with pytest.raises(ConfigurationError, match="UMBEL_DEADLINE"):
        Umbel()


def test_every_kind_of_tracking_has_a_word() -> None:
    assert [TaskOptions(track=track.value).track for track in Track] == list(Track)  # type: ignore[arg-type]


# --- what importing costs ---------------------------------------------------------------------

NOT_IMPORTED = (
    "psycopg",
    "sqlite3",
    "sqlalchemy",
    "rich",
    "click",
    "structlog",
    "trio",
    "uvloop",
    "pydantic",
    "greenlet",
    "pytest",
)


def loaded_after(code: str, folder: Path) -> set[str]:
    show = "import sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", f"{textwrap.dedent(code)}\n{show}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    )
    return set(done.stdout.split())


def test_importing_umbel_imports_no_driver_and_nothing_for_terminals(tmp_path: Path) -> None:
    loaded = loaded_after("import umbel", tmp_path)
    assert "umbel" in loaded
    assert loaded.isdisjoint(NOT_IMPORTED)


def test_importing_umbel_opens_and_creates_nothing(tmp_path: Path) -> None:
    code = """
        import threading
        from umbel import Umbel
        app = Umbel("sqlite:///umbel.db")
        @app.task
        def add(a: int, b: int) -> int:
            return a + b
        add.s(1, 2)
        assert threading.active_count() == 1
    """
    loaded = loaded_after(code, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert loaded.isdisjoint(set(NOT_IMPORTED) - {"sqlite3"})


def test_publishing_on_sqlite_needs_no_driver_of_another_database(tmp_path: Path) -> None:
    code = """
        from umbel import Umbel
        app = Umbel("sqlite:///umbel.db")
        @app.task(name="add")
        def add(a: int, b: int) -> int:
            return a + b
        add.delay(1, 2)
    """
    loaded = loaded_after(code, tmp_path)
    assert loaded.isdisjoint(set(NOT_IMPORTED) - {"sqlite3"})
