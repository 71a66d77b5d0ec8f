"""The configuration file: what it sets, what it wins over, and how its errors are named."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from umbel import Limit, Rate, Retry, Umbel, task
from umbel.configuration import ConfigFile, Settings, read_config_file
from umbel.errors import ConfigurationError
from umbel.tasks import Task, TaskOptions, Track
from umbel.tasks.tables import FILE_OPTIONS, TaskTables


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(text: str, **environment: str) -> ConfigFile:
    Path("umbel.toml").write_text(text)
    return read_config_file(environment)


def settings(text: str, given: dict[str, Any] | None = None, **environment: str) -> Settings:
    return Settings.resolve(given or {}, environment, read(text, **environment))


def tables(text: str) -> TaskTables:
    return TaskTables("umbel.toml", read(text).tasks)


def declared(name: str, text: str, **options: Any) -> TaskOptions:
    """The options of a task after the file was applied."""

    @task(name=name, **options)
    def work(user: str = "") -> None: ...

    tables(text).apply(work)
    return work.declared


# --- the file --------------------------------------------------------------------------------


def test_without_a_file_nothing_is_set() -> None:
    assert read_config_file({}) == ConfigFile()
    assert Settings.resolve({}, {}, read_config_file({})) == Settings()


def test_the_variable_names_another_file(folder: Path) -> None:
    (folder / "other.toml").write_text("keep_days = 2")
    assert read("keep_days = 1").settings == {"keep_days": 1}
    assert read("keep_days = 1", UMBEL_CONFIG="").settings == {"keep_days": 1}
    found = read("keep_days = 1", UMBEL_CONFIG="other.toml")
    assert (found.settings, found.source) == ({"keep_days": 2}, "UMBEL_CONFIG=other.toml")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"keep_days = = 1", "umbel.toml: this is not TOML: Invalid value (at line 1, column 13)"),
        (b"namespace = '\xff'", "umbel.toml: this is not TOML"),
        (b"x = " + b"[" * 5000, "umbel.toml: this is not TOML"),
        (b"tasks = 3", 'umbel.toml: tasks: give tables, as in [tasks."mail.*"]'),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(folder: Path, content: bytes, text: str) -> None:
    (folder / "umbel.toml").write_bytes(content)
    with pytest.raises(ConfigurationError) as refused:
        read_config_file({})
    assert str(refused.value).startswith(text)


def test_a_folder_or_a_broken_link_in_place_of_the_file_is_refused(folder: Path) -> None:
    """A container runtime creates a folder if the file to mount is missing."""
    (folder / "umbel.toml").mkdir()
    with pytest.raises(ConfigurationError, match=r"^umbel.toml: Is a directory; give the path"):
        read_config_file({})
    (folder / "umbel.toml").rmdir()
    (folder / "umbel.toml").symlink_to(folder / "missing.toml")
    with pytest.raises(ConfigurationError, match=r"^umbel.toml: No such file or directory; give"):
        read_config_file({})


def test_a_file_may_begin_with_a_byte_order_mark(folder: Path) -> None:
    (folder / "umbel.toml").write_bytes(b"\xef\xbb\xbfkeep_days = 2")
    assert read_config_file({}).settings == {"keep_days": 2}


@pytest.mark.parametrize("path", ["missing.toml", "."])
def test_a_variable_that_names_no_file_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^UMBEL_CONFIG=.*; give the path of a TOML"):
        read_config_file({"UMBEL_CONFIG": path})


# --- settings --------------------------------------------------------------------------------


def test_arguments_and_the_environment_win_over_the_file_and_the_file_over_defaults() -> None:
    text = 'keep_days = 30\ndeadline = 5\nnamespace = "shop"\n[brokers]\nmail = "nats://host"'
    found = settings(text, {"deadline": 9.0}, UMBEL_NAMESPACE="test")
    assert (found.keep_days, found.deadline, found.namespace) == (30, 9, "test")
    assert found.brokers == {"mail": "nats://host"}
    assert found.keep_count == Settings().keep_count


def test_the_url_of_the_environment_wins_over_the_broker_of_the_file() -> None:
    text = 'broker = "redis://file"'
    assert settings(text).broker == "redis://file"
    assert settings(text, UMBEL_URL="redis://environment").broker == "redis://environment"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("keep_day = 3", "umbel.toml: keep_day: not a setting; did you mean keep_days?"),
        ("colour = 3", "umbel.toml: colour: not a setting; the settings are broker, "),
        ("[task]", "umbel.toml: task: not a setting; did you mean tasks?"),
        ('keep_days = "3"', "umbel.toml: keep_days: give a number"),
        ("keep_count = 1.5", "umbel.toml: keep_count: give a whole number"),
        ("namespace = 3", "umbel.toml: namespace: give a text"),
        ("brokers = 3", "umbel.toml: brokers: give a table, as in [brokers]"),
        ("[brokers]\nmail = 3", "umbel.toml: brokers: give the URL of a broker"),
        ("deadline = 0", "umbel.toml: deadline=0.0: give seconds above 0"),
        ("max_message = 5", "umbel.toml: max_message=5: give 1,024 or more bytes"),
        ("keep_days = nan", "umbel.toml: keep_days=nan: give a number of days above 0"),
        ("keep_count = -1", "umbel.toml: keep_count=-1: give 0 to 1,000,000,000,000,000 records"),
        (f"keep_count = {10**18}", "umbel.toml: keep_count=1000000000000000000: give 0 to"),
        ('broker = "x://me:hush@h"', "umbel.toml: broker='x://***@h': no backend has"),
    ],
)
def test_a_wrong_setting_names_file_and_field(text: str, error: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        settings(text)
    assert str(refused.value).startswith(error)


# --- options of tasks ------------------------------------------------------------------------


def test_the_file_wins_over_the_code_and_leaves_the_rest_of_it() -> None:
    found = declared("mail.send", '[tasks."mail.send"]\nqueue = "mail"', queue="x", timeout=5)
    assert (found.queue, found.timeout) == ("mail", 5)
    assert declared("other", '[tasks."mail.send"]\nqueue = "mail"', queue="x").queue == "x"


def test_every_option_of_a_file_is_set() -> None:
    text = """
        [tasks."*"]
        queue = "mail"
        priority = 3
        delay = 4
        expires = 2030-01-01T00:00:00Z
        timeout = 5.5
        retry = 6
        track = "state"
        keep = 7
        limit = 8
        rate = "9/s"
        max_deaths = 1
    """
    found = declared("any", text)
    assert all(getattr(found, name) != getattr(TaskOptions(), name) for name in FILE_OPTIONS)
    assert (found.queue, found.priority, found.timeout, found.keep) == ("mail", 3, 5.5, 7)
    assert (found.retry.times, found.track, found.max_deaths) == (6, Track.STATE, 1)
    assert (found.limit[0].capacity, found.rate[0].count) == (8, 9)


@pytest.mark.parametrize("reverse", [False, True])
def test_the_most_specific_pattern_wins_for_each_option(reverse: bool) -> None:
    parts = [
        '[tasks."*"]\nqueue = "all"\npriority = 1\ntimeout = 1\n',
        '[tasks."mail.*"]\nqueue = "mail"\npriority = 2\n',
        '[tasks."mail.send.*"]\nqueue = "long"\n',
        '[tasks."mail.send.one"]\nqueue = "one"\n',
    ]
    text = "".join(reversed(parts) if reverse else parts)

    def told(name: str) -> tuple[str, int, float | None]:
        found = declared(name, text)
        return found.queue, found.priority, found.timeout

    assert told("mail.send.one") == ("one", 2, 1)
    assert told("mail.send.two") == ("long", 2, 1)
    assert told("mail.list") == ("mail", 2, 1)
    assert told("email.list") == ("all", 1, 1)


def test_a_pattern_matches_whole_names_and_only_stars_are_special() -> None:
    text = '[tasks."a.[x]?*.z"]\nqueue = "found"'
    names = {
        "a.[x]?b.z": "found",
        "a.[x]?.z": "found",
        "a.xyb.z": "default",
        "a.[x]?b.zz": "default",
    }
    assert {name: declared(name, text).queue for name in names} == names


def test_of_equally_specific_patterns_the_later_wins() -> None:
    text = '[tasks."mail.*"]\nqueue = "first"\n[tasks."*.send"]\nqueue = "second"'
    assert declared("mail.send", text).queue == "second"


def test_a_retry_of_the_file_changes_its_numbers_only() -> None:
    code = Retry(3, first=7, factor=3, cap=70, on=OSError, never=FileNotFoundError)
    text = '[tasks."*"]\nretry = {cap = 60}\n[tasks."mail"]\nretry = 10'
    found = declared("mail", text, retry=code).retry
    assert found.numbers() == code.numbers() | {"times": 10, "cap": 60}
    assert (found.on, found.never) == (OSError, FileNotFoundError)


def test_limits_and_rates_may_be_numbers_tables_and_lists() -> None:
    text = """
        [tasks."*"]
        limit = [5, {capacity = 1, token = "user", per = "worker"}]
        rate = {rate = "10/m", burst = 3}
    """
    found = declared("mail", text, limit=9)
    first, second = found.limit
    assert (first.capacity, first.token) == (5, None)
    assert (second.capacity, second.token, second.per) == (1, "user", "worker")
    assert (found.rate[0].count, found.rate[0].burst) == (10, 3)
    assert declared("mail", '[tasks."*"]\nrate = []', rate="1/s").rate == ()


def test_the_gates_of_a_task_are_those_of_the_file() -> None:
    @task(name="mail", limit=Limit(1), rate=Rate("1/s"))
    def work() -> None: ...

    tables("[tasks.mail]\nlimit = 7\nrate = []").apply(work)
    (rule,) = work.gate_set.rules()
    assert rule.capacity == 7


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ('qeue = "x"', "qeue: not an option of a task in a file; did you mean queue?"),
        ("unique = true", "unique: not an option of a task in a file; the options are queue,"),
        ("retries = 3", "retries: not an option of a task in a file; write instead: retry=3"),
        ("queue = 5", "queue=5: give a name"),
        ("timeout = '5'", "timeout='5': give seconds"),
        ("priority = true", "priority=True: give an integer"),
        ("expires = 2030-01-01", "expires=datetime.date(2030, 1, 1): give seconds"),
        ("retry = {tmies = 3}", "tmies: not an option of retry; did you mean times?"),
        ("retry = {first = 'x'}", "retry: first='x': give a number"),
        ("retry = 'often'", "retry: times='often': give a number"),
        ("retry = 2.5", "times=2.5: give how often"),
        ("limit = {token = 'user'}", "limit: give capacity, too"),
        (
            "limit = {capacity = 1, tokn = 'user'}",
            "tokn: not an option of limit; did you mean token",
        ),
        ("limit = {capacity = 1, per = ['x']}", "per=['x']: give"),
        ("limit = 'many'", "limit='many': give a whole number"),
        ("rate = 5", "rate=5: give how many"),
        ("keep = 5\ntrack = 'failures'", "keep and track="),
        (
            "send.queue = 'x'",
            'send: give the whole name of a task in quotes, as in [tasks."mail.*.send"]',
        ),
    ],
)
def test_a_wrong_option_names_file_table_and_field_even_if_no_task_has_it(
    table: str, error: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        tables(f'[tasks."mail.*"]\n{table}')
    assert str(refused.value).startswith(f'umbel.toml: [tasks."mail.*"] {error}')


def test_what_does_not_fit_a_task_names_file_and_table() -> None:
    with pytest.raises(
        ConfigurationError, match=r'^umbel\.toml: \[tasks\."\*"\] token=.*it has user'
    ):
        declared("mail", '[tasks."*"]\nlimit = {capacity = 1, token = "usr"}')
    with pytest.raises(ConfigurationError, match=r'^umbel\.toml: \[tasks\."\*"\] keep and track='):
        declared("mail", '[tasks."*"]\nkeep = 5', track="failures")
    with pytest.raises(ConfigurationError, match=r'^umbel\.toml: \[tasks\."mail"\] give a table'):
        tables("[tasks]\nmail = 3")


def test_origins_and_unused_tables_are_known() -> None:
    found = tables('[tasks."*"]\nqueue = "a"\ntimeout = 1\n[tasks.mail]\nqueue = "b"\n[tasks.mial]')
    assert found.origins("mail") == {
        "queue": 'umbel.toml [tasks."mail"]',
        "timeout": 'umbel.toml [tasks."*"]',
    }
    assert found.unused(["mail", "x"]) == ['umbel.toml [tasks."mial"]']


def test_an_application_applies_the_file_to_its_own_and_to_included_tasks(folder: Path) -> None:
    (folder / "umbel.toml").write_text('namespace = "shop"\n[tasks."*"]\nqueue = "file"')

    @task(name="free")
    def free() -> None: ...

    module = ModuleType("free_tasks")
    module.free = free  # type: ignore[attr-defined]
    app = Umbel("sqlite:///:memory:")

    @app.task(queue="code")
    def own() -> None: ...

    app.include(module)
    assert isinstance(own, Task)
    assert (own.declared.queue, free.declared.queue) == ("file", "file")
    assert (app.settings.namespace, app.registry.queues()) == ("shop", ["default", "file"])
