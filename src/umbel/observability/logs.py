"""Log lines: telemetry, the application's ``logging`` and structlog, in one format on stdout.

Only the command line calls ``configure_logs``. An application that uses Umbel as a library keeps
its own logging.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any, TextIO

from umbel.clock import Clock, SystemClock
from umbel.observability.late import WhenImported
from umbel.observability.rendering import Fields, LogStyle, Render, choose_renderer
from umbel.observability.writer import Writer
from umbel.tasks import running
from umbel.telemetry import events
from umbel.urls import mask_secrets

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}

_RECORD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Logs:
    """Renders and writes log lines. Its methods never raise into the code that logs."""

    def __init__(self, render: Render, writer: Writer, clock: Clock) -> None:
        self._render = render
        self._writer = writer
        self._clock = clock
        self._render_failures = 0
        self.structlog: WhenImported | None = None

    @property
    def lost(self) -> int:
        """Lines that could not be rendered or written. Each is reported on stderr if possible."""
        return self._render_failures + self._writer.lost

    def write(self, fields: dict[str, Any]) -> None:
        """Render and write one line. The current time is added if ``time`` is missing."""
        try:
            time = fields.pop("time", None) or self._clock.now()
            fields = {"time": time, **{name: _mask(value) for name, value in fields.items()}}
            line = self._render(fields)
        except Exception as error:  # noqa: BLE001 - logging must not break its caller
            self._render_failures += 1
            self._writer.report_failure([_describe(fields)], error)
        else:
            self._writer.put(line)

    def flush(self, timeout: float = 2.0) -> bool:
        """Wait until all lines are written; return False if that took too long."""
        return self._writer.flush(timeout)

    def close(self) -> None:
        """Write the remaining lines and restore the logging configuration."""
        root = logging.getLogger()
        for handler in [h for h in root.handlers if isinstance(h, Handler) and h.logs is self]:
            root.removeHandler(handler)
        if self.structlog is not None:
            self.structlog.cancel()
        if "structlog" in sys.modules:
            sys.modules["structlog"].reset_defaults()
        self._writer.close()

    def subscriber(self, level: str = "info") -> Callable[[events.Event], None]:
        """Return a telemetry subscriber that writes a line for each event at or above a level."""
        minimum = LEVELS[level]

        def write_event(event: events.Event) -> None:
            if LEVELS[event.level] >= minimum:
                self.write(_to_fields(event))
            if isinstance(event, events.WorkerStalled):
                self.flush(1.0)  # the process may exit right after this event

        return write_event


def _to_fields(event: events.Event) -> dict[str, Any]:
    """Return an event as the fields of a line."""
    fields: dict[str, Any] = {"level": event.level, "event": event.text}
    if isinstance(event, events.JobEvent):
        fields["about"] = "job"
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if value is not None and value != "":
            fields[name] = value
    return fields


def _mask(value: Any) -> Any:
    """Return a value with secrets of URLs masked. Other types are masked when they are rendered."""
    if isinstance(value, str):
        return mask_secrets(value)
    if type(value) is dict:
        return {name: _mask(one) for name, one in value.items()}
    if type(value) in (list, tuple):
        return [_mask(one) for one in value]
    return value


def _describe(fields: Fields) -> str:
    try:
        return mask_secrets(repr(fields))
    except Exception:  # noqa: BLE001 - a user's __repr__ may raise anything
        return f"<fields {', '.join(map(str, fields))}>"


def _job_fields() -> dict[str, Any]:
    """Return the fields of the job that the calling coroutine or thread runs; empty if none."""
    run = running.get()
    if run is None:
        return {}
    job = run.job
    parts = (job.traceparent or "").split("-")
    trace = {"trace": parts[1]} if len(parts) == 4 else {}
    return {"task": job.task, "job": job.id, "attempt": job.attempt, **trace}


# --- logging and structlog -------------------------------------------------------------------


class _NoLock:
    """A lock that does nothing. None is needed, and one that is never released would stop logs."""

    def acquire(self) -> None: ...
    def release(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


class Handler(logging.Handler):
    """Writes the records of the standard library's logging."""

    def __init__(self, logs: Logs) -> None:
        super().__init__()
        self.logs = logs

    def createLock(self) -> None:  # noqa: N802 - the standard library's name
        self.lock = _NoLock()  # type: ignore[assignment]  # it has all methods that logging calls

    def emit(self, record: logging.LogRecord) -> None:
        try:
            fields = _record_to_fields(record)
        except Exception as error:  # noqa: BLE001 - arguments that do not fit the format
            fields = {
                "level": record.levelname.lower(),
                "event": f"{record.msg!s} {_describe({'args': record.args})}",
                "unformatted": repr(error),
                "logger": record.name,
            }
        self.logs.write({"time": record.created, **fields})


def _record_to_fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = {
        "level": record.levelname.lower(),
        "event": record.getMessage(),
        "logger": record.name,
        **_job_fields(),
    }
    extra = {
        k: v for k, v in vars(record).items() if k not in _RECORD_ATTRIBUTES and k not in fields
    }
    fields |= extra
    if record.exc_info:
        fields["exception"] = "".join(traceback.format_exception(*record.exc_info)).rstrip()
    if record.stack_info:
        fields["stack"] = record.stack_info
    return fields


def _set_up_structlog(logs: Logs, level: str, structlog: Any) -> None:
    """Make structlog's loggers write through ``logs``."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _structlog_processor(logs, structlog.DropEvent),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
    )


def _structlog_processor(
    logs: Logs, drop: type[BaseException]
) -> Callable[[Any, str, MutableMapping[str, Any]], Any]:
    """Return the last processor of structlog's chain, which writes the line."""

    def write_line(_: Any, method: str, values: MutableMapping[str, Any]) -> Any:
        level = {"warn": "warning", "exception": "error", "fatal": "critical"}.get(method, method)
        fields = {"level": level, "event": values.pop("event", ""), **_job_fields(), **values}
        error = fields.pop("exc_info", None)
        if error:
            fields["exception"] = _traceback(error)
        fields.pop("time", None)
        logs.write(fields)
        raise drop

    return write_line


def _traceback(error: Any) -> str:
    if isinstance(error, BaseException):
        found: Any = error
    elif isinstance(error, tuple) and len(error) == 3:
        found = error[1]
    else:
        found = sys.exception()
    return "" if found is None else "".join(traceback.format_exception(found)).rstrip()


# --- set-up ----------------------------------------------------------------------------------


def configure_logs(
    style: LogStyle = "auto",
    level: str = "info",
    *,
    brief: bool = False,
    stream: TextIO | None = None,
    clock: Clock | None = None,
) -> Logs:
    """Write every log line of this process in one format.

    Call it before the application is imported: an application that configures logging itself then
    overrides it. ``auto`` is ``pretty`` on a terminal and JSON elsewhere. ``brief`` makes pretty
    lines shorter.
    """
    stream = stream or sys.stdout
    render = choose_renderer(style, stream, brief=brief)
    clock = clock or SystemClock()

    def render_loss(lines: int) -> str:
        text = "log lines were lost because they were not read in time"
        return render({"time": clock.now(), "level": "warning", "event": text, "lines": lines})

    logs = Logs(render, Writer(stream, render_loss=render_loss), clock)
    root = logging.getLogger()
    root.addHandler(Handler(logs))
    root.setLevel(LEVELS[level])
    logs.structlog = WhenImported("structlog", partial(_set_up_structlog, logs, level))
    return logs
