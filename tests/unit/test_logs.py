"""Log lines: one form for telemetry, the user's logging and structlog; none lost in silence."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextvars import copy_context
from typing import Any

import pytest
import structlog

from umbel.messages import Lease
from umbel.observability.logs import Handler, Logs, configure_logs
from umbel.observability.rendering import json_line, pretty
from umbel.observability.writer import Writer
from umbel.tasks import Job, Run, running
from umbel.telemetry import Telemetry, events

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
WHO: dict[str, Any] = {"job": "j-1", "task": "shop.orders.pay", "attempt": 2, "trace": TRACE}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


class Stuck(io.StringIO):
    """A pipe that is not read."""

    def __init__(self) -> None:
        super().__init__()
        self.read = threading.Event()  # type: ignore[assignment]
        self.entered = threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        self.read.wait()  # type: ignore[attr-defined]
        return super().write(text)


class Sink:
    """Logs configured on a stream of the test's own."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.logs: Logs | None = None

    def start(self, style: Any = "json", level: str = "info", stream: Any = None) -> Logs:
        self.stream = stream or io.StringIO()
        self.logs = configure_logs(style, level, stream=self.stream)
        return self.logs

    def text(self) -> str:
        assert self.logs is not None
        assert self.logs.flush()
        return self.stream.getvalue()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text().splitlines()]


@pytest.fixture
def sink() -> Iterator[Sink]:
    level = logging.getLogger().level
    made = Sink()
    yield made
    if made.logs is not None:
        made.logs.close()
    logging.getLogger().setLevel(level)


@pytest.fixture
def in_job() -> Iterator[None]:
    job = Job(
        id="j-1",
        task="shop.orders.pay",
        queue="q",
        attempt=2,
        traceparent=f"00-{TRACE}-{'1' * 16}-01",
    )
    token = running.set(Run(job, Lease("j-1", "me", 1), lambda done, of: None))
    yield
    running.reset(token)


def test_an_event_is_one_json_object_on_one_line(sink: Sink) -> None:
    telemetry = Telemetry(sink.start().subscriber("info"))
    telemetry.emit(events.JobSucceeded(**WHO, seconds=0.25))
    (line,) = sink.lines()
    assert line["event"] == "succeeded"
    assert line["level"] == "info"
    assert (line["task"], line["job"], line["attempt"]) == ("shop.orders.pay", "j-1", 2)
    assert line["trace"] == TRACE
    assert line["seconds"] == 0.25
    assert line["time"].endswith("Z")


def test_every_event_of_the_catalogue_can_be_logged(sink: Sink) -> None:
    hear = sink.start(level="debug").subscriber("debug")
    samples: dict[Any, Any] = {str: "x", int: 1, float: 1.0}
    kinds = [
        kind
        for kind in vars(events).values()
        if isinstance(kind, type) and issubclass(kind, events.Event) and kind.text
    ]
    for kind in kinds:
        fields = {
            name: samples.get(hint, ("a", "b") if "tuple" in str(hint) else "x")
            for name, hint in _hints(kind).items()
        }
        hear(kind(**fields))
    assert [line["event"] for line in sink.lines()] == [kind.text for kind in kinds]


def _hints(kind: type[events.Event]) -> dict[str, Any]:
    import typing

    found = typing.get_type_hints(kind)
    return {name: found[name] for name in kind.__struct_fields__}


def test_an_event_below_the_level_is_not_logged(sink: Sink) -> None:
    telemetry = Telemetry(sink.start().subscriber("info"))
    telemetry.emit(events.JobStarted(**WHO))
    assert sink.text() == ""


def test_a_traceback_is_a_block_for_people_and_a_field_for_programs(sink: Sink) -> None:
    trouble = events.JobBuried(
        **WHO, seconds=1.5, error="ValueError: no", traceback="Traceback:\n  line 1\nValueError: no"
    )
    sink.start("pretty").subscriber()(trouble)
    first, *block = sink.text().splitlines()
    assert "pay failed permanently and was buried" in first
    assert "job=j-1" in first
    assert f"trace={TRACE}" in first
    assert block == ["    Traceback:", "      line 1", "    ValueError: no"]
    assert sink.logs is not None
    sink.logs.close()
    sink.start("json").subscriber()(trouble)
    assert sink.lines()[0]["traceback"].startswith("Traceback:\n")


def test_a_brief_line_has_the_short_id_and_fits_a_terminal() -> None:
    job = "01a1edf6-f32c-7abc-ab6b-381a6f357487"
    fields = {"time": 0.0, "event": "succeeded", "about": "job", "task": "shop.send_mail"}
    line = pretty(colours=False, brief=True)(fields | {"job": job, "attempt": 1, "seconds": 0.004})
    assert line.endswith("job=6f357487")
    assert len(line) <= 80
    assert pretty(colours=False)(fields | {"job": job}).endswith(f"job={job}")


def test_a_terminal_gets_colours_and_anything_else_json(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    sink.start("auto", stream=Terminal()).write({"level": "info", "event": "hello"})
    assert "\x1b[" in sink.text()
    sink.logs.close()  # type: ignore[union-attr]
    sink.start("auto").write({"level": "info", "event": "hello"})
    assert sink.lines()[0]["event"] == "hello"


def test_no_color_is_respected(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    sink.start("auto", stream=Terminal()).write({"level": "info", "event": "hello"})
    assert "\x1b" not in sink.text()
    assert "hello" in sink.text()


@pytest.mark.usefixtures("in_job")
def test_the_users_own_logging_names_the_job_it_belongs_to(sink: Sink) -> None:
    sink.start()
    logging.getLogger("shop").warning("charged %d", 7, extra={"card": "visa"})
    (line,) = sink.lines()
    assert line["event"] == "charged 7"
    assert line["logger"] == "shop"
    assert line["card"] == "visa"
    assert (line["job"], line["task"], line["attempt"]) == ("j-1", "shop.orders.pay", 2)
    assert line["trace"] == TRACE


@pytest.mark.usefixtures("in_job")
def test_logging_in_a_thread_of_a_task_names_the_job(sink: Sink) -> None:
    sink.start()
    context = copy_context()
    thread = threading.Thread(target=context.run, args=(logging.getLogger("t").info, "in there"))
    thread.start()
    thread.join()
    assert sink.lines()[0]["job"] == "j-1"


def test_structlog_is_set_up_when_it_is_imported_and_not_loaded_before() -> None:
    code = """
import json, sys
from umbel.observability.logs import configure_logs
logs = configure_logs("json", "info")
assert "structlog" not in sys.modules
import structlog
structlog.get_logger().info("charged", amount=7)
logs.close()
assert structlog.__loader__ is structlog.__spec__.loader and structlog.is_configured() is False
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    line = json.loads(done.stdout)
    assert (line["event"], line["amount"], line["level"]) == ("charged", 7, "info")


@pytest.mark.usefixtures("in_job")
def test_structlogs_own_loggers_go_the_same_way(sink: Sink) -> None:
    sink.start()
    log = structlog.get_logger()
    log.debug("too quiet")
    log.info("charged", amount=7)
    try:
        raise KeyError("card")
    except KeyError:
        log.exception("refused")
    charged, refused = sink.lines()
    assert (charged["event"], charged["amount"], charged["job"]) == ("charged", 7, "j-1")
    assert refused["level"] == "error"
    assert "KeyError: 'card'" in refused["exception"]


def test_an_exception_in_the_users_logging_keeps_its_traceback(sink: Sink) -> None:
    sink.start()
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("shop").exception("it failed")
    assert "ValueError: boom" in sink.lines()[0]["exception"]


def test_arguments_that_do_not_fit_the_format_lose_no_line_and_raise_nothing(sink: Sink) -> None:
    record = logging.makeLogRecord({"msg": "%d apples", "args": ("seven",), "name": "shop"})
    Handler(sink.start()).handle(record)
    (line,) = sink.lines()
    assert "%d apples" in line["event"]
    assert "seven" in line["event"]
    assert "TypeError" in line["unformatted"]


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


@pytest.mark.parametrize("style", ["json", "pretty"])
@pytest.mark.parametrize(
    "value",
    [Unshowable(), "\ud800", {Unshowable(): 1}, float("nan"), {1, 2}, b"\xff", object()],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_cannot_be_shown_loses_no_line(sink: Sink, style: str, value: Any) -> None:
    logs = sink.start(style)
    logs.write({"level": "info", "event": "odd", "value": value})
    assert "odd" in sink.text()
    assert logs.lost == 0


def test_a_line_that_cannot_be_rendered_goes_to_stderr_and_is_counted(
    sink: Sink, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = sink.start()
    logs.write({"level": "info", "event": "hello", "time": "not a time"})
    assert logs.lost == 1
    assert "hello" in capsys.readouterr().err


def test_a_line_that_cannot_be_written_goes_to_stderr_and_is_counted(
    sink: Sink, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = sink.start(stream=Broken())
    logs.write({"level": "info", "event": "hello"})
    logs.flush()
    assert logs.lost == 1
    told = capsys.readouterr().err
    assert "hello" in told
    assert "No space left" in told


def test_a_log_line_that_cannot_be_reported_anywhere_is_no_error() -> None:
    writer = Writer(Broken(), Broken())
    writer.put("hello")
    assert writer.flush(5)
    assert writer.lost == 1


def test_a_stalled_reader_blocks_no_logger_and_the_loss_is_reported() -> None:
    pipe = Stuck()
    writer = Writer(pipe, max_waiting=10)
    writer.put("first")
    assert pipe.entered.wait(10)
    for number in range(25):
        writer.put(f"line {number}")
    assert writer.lost == 15
    pipe.read.set()  # type: ignore[attr-defined]
    assert writer.flush(10)
    text = pipe.getvalue()
    assert "line 9\n" in text
    assert "line 10\n" not in text
    assert "15 log lines were lost" in text


def test_escape_sequences_in_data_never_reach_a_terminal() -> None:
    line = pretty(colours=False)({"time": 0.0, "event": "a\x1b[31mb", "who": "c\x1b]0;d\x07"})
    assert "\x1b" not in line
    assert "\x07" not in line


def test_a_newline_in_a_message_stays_within_one_json_line() -> None:
    assert "\n" not in json_line({"time": 0.0, "event": "a\nb"})


def test_using_umbel_as_a_library_leaves_logging_alone() -> None:
    import subprocess
    import sys

    code = (
        "import logging, sys; from umbel import Umbel; app = Umbel('sqlite:///:memory:');"
        "app.telemetry; sys.exit(bool(logging.getLogger().handlers) or 'structlog' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_closing_gives_logging_back(sink: Sink) -> None:
    before = list(logging.getLogger().handlers)
    sink.start().close()
    assert logging.getLogger().handlers == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_still_writes_its_log_lines() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        writer = Writer(stream)
        writer.put("parent")
        assert writer.flush(10)
        child = os.fork()
        if child == 0:
            writer.put("child")
            os._exit(0)
        os.waitpid(child, 0)
    with os.fdopen(reading) as reader:
        assert reader.read() == "parent\nchild\n"
