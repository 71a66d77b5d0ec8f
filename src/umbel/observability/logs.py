"""Log lines: telemetry, the user's own ``logging`` and structlog, all in one form on stdout.

Only the command line calls ``configure_logs``; an application that uses Umbel as a library keeps
the logging it has.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any, Literal, TextIO

from umbel.clock import Clock, SystemClock
from umbel.observability.late import WhenImported
from umbel.observability.rendering import Fields, Render, json_line, pretty
from umbel.observability.writer import Writer
from umbel.tasks import running
from umbel.telemetry import events
from umbel.urls import masked

Style = Literal["auto", "pretty", "json"]

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Logs:
    """Where every line goes. Nothing here raises into whoever logs."""

    def __init__(self, render: Render, writer: Writer, clock: Clock) -> None:
        self._render = render
        self._writer = writer
        self._clock = clock
        self._unrendered = 0
        self.structlog: WhenImported | None = None

    @property
    def lost(self) -> int:
        """Lines that could not be rendered or written; each was told on stderr if possible."""
        return self._unrendered + self._writer.lost

    def write(self, fields: dict[str, Any]) -> None:
        """Render and write one line; ``time`` is added when missing."""
        try:
            time = fields.pop("time", None) or self._clock.now()
            fields = {"time": time, **{name: _masked(value) for name, value in fields.items()}}
            line = self._render(fields)
        except Exception as error:  # noqa: BLE001 - a line must not break what it tells of
            self._unrendered += 1
            self._writer.complain([_anyhow(fields)], error)
        else:
            self._writer.put(line)

    def flush(self, timeout: float = 2.0) -> bool:
        """Wait until everything is written. False when that took too long."""
        return self._writer.flush(timeout)

    def close(self) -> None:
        """Write what is left and give logging back as it was before."""
        root = logging.getLogger()
        for handler in [h for h in root.handlers if isinstance(h, Handler) and h.logs is self]:
            root.removeHandler(handler)
        if self.structlog is not None:
            self.structlog.forget()
        if "structlog" in sys.modules:
            sys.modules["structlog"].reset_defaults()
        self._writer.close()

    def subscriber(self, level: str = "info") -> Callable[[events.Event], None]:
        """A subscriber of telemetry that writes a line for every event of this level or above."""
        least = LEVELS[level]

        def hear(event: events.Event) -> None:
            if LEVELS[event.level] >= least:
                self.write(fields_of(event))
            if isinstance(event, events.Stalled):
                self.flush(1.0)  # the process may end itself right after it

        return hear


def fields_of(event: events.Event) -> dict[str, Any]:
    """An event as the fields of a line."""
    fields: dict[str, Any] = {"level": event.level, "event": event.text}
    if isinstance(event, events.JobEvent):
        fields["about"] = "job"
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if value is not None and value != "":
            fields[name] = value
    return fields


def _masked(value: Any) -> Any:
    """The value without secrets of URLs. What else it may be is masked when it is shown."""
    if isinstance(value, str):
        return masked(value)
    if type(value) is dict:
        return {name: _masked(one) for name, one in value.items()}
    if type(value) in (list, tuple):
        return [_masked(one) for one in value]
    return value


def _anyhow(fields: Fields) -> str:
    try:
        return masked(repr(fields))
    except Exception:  # noqa: BLE001 - a user's __repr__ may raise anything
        return f"<fields {', '.join(map(str, fields))}>"


def job_fields() -> dict[str, Any]:
    """Which job the calling code belongs to: in a coroutine, in a thread, or none."""
    run = running.get()
    if run is None:
        return {}
    job = run.job
    parts = (job.traceparent or "").split("-")
    trace = {"trace": parts[1]} if len(parts) == 4 else {}
    return {"task": job.task, "job": job.id, "attempt": job.attempt, **trace}


# --- the user's own logging ------------------------------------------------------------------


class _NoLock:
    """A lock that is none: writing needs none, and one left behind would silence everybody."""

    def acquire(self) -> None: ...
    def release(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


class Handler(logging.Handler):
    """Takes records of the standard library's logging."""

    def __init__(self, logs: Logs) -> None:
        super().__init__()
        self.logs = logs

    def createLock(self) -> None:  # noqa: N802 - the standard library's name
        self.lock = _NoLock()  # type: ignore[assignment]  # all that is asked of it

    def emit(self, record: logging.LogRecord) -> None:
        try:
            fields = _fields_of_record(record)
        except Exception as error:  # noqa: BLE001 - arguments that do not fit the format
            fields = {
                "level": record.levelname.lower(),
                "event": f"{record.msg!s} {_anyhow({'args': record.args})}",
                "unformatted": repr(error),
                "logger": record.name,
            }
        self.logs.write({"time": record.created, **fields})


def _fields_of_record(record: logging.LogRecord) -> dict[str, Any]:
    fields = {
        "level": record.levelname.lower(),
        "event": record.getMessage(),
        "logger": record.name,
        **job_fields(),
    }
    extra = {k: v for k, v in vars(record).items() if k not in _STANDARD and k not in fields}
    fields |= extra
    if record.exc_info:
        fields["exception"] = "".join(traceback.format_exception(*record.exc_info)).rstrip()
    if record.stack_info:
        fields["stack"] = record.stack_info
    return fields


def _set_up_structlog(logs: Logs, level: str, structlog: Any) -> None:
    """structlog's loggers hand their lines over to us."""
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
    """The end of structlog's chain: the line is ours from here."""

    def hand_over(_: Any, method: str, given: MutableMapping[str, Any]) -> Any:
        level = {"warn": "warning", "exception": "error", "fatal": "critical"}.get(method, method)
        fields = {"level": level, "event": given.pop("event", ""), **job_fields(), **given}
        error = fields.pop("exc_info", None)
        if error:
            fields["exception"] = _traceback(error)
        fields.pop("time", None)
        logs.write(fields)
        raise drop

    return hand_over


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
    style: Style = "auto",
    level: str = "info",
    *,
    brief: bool = False,
    stream: TextIO | None = None,
    clock: Clock | None = None,
) -> Logs:
    """Send every line of this process through one renderer.

    Call it before the application is imported: an application that then configures logging
    itself has the last word. ``auto`` is pretty on a terminal and JSON elsewhere; ``brief`` makes
    pretty lines shorter.
    """
    stream = stream or sys.stdout
    render = _renderer(style, stream, brief)
    clock = clock or SystemClock()

    def dropped(lines: int) -> str:
        text = "log lines were lost: nobody read them in time"
        return render({"time": clock.now(), "level": "warning", "event": text, "lines": lines})

    logs = Logs(render, Writer(stream, dropped=dropped), clock)
    root = logging.getLogger()
    root.addHandler(Handler(logs))
    root.setLevel(LEVELS[level])
    logs.structlog = WhenImported("structlog", partial(_set_up_structlog, logs, level))
    return logs


def _renderer(style: Style, stream: TextIO, brief: bool) -> Render:
    terminal = stream.isatty()
    if style == "json" or (style == "auto" and not terminal):
        return json_line
    dumb = os.environ.get("TERM") == "dumb" or bool(os.environ.get("NO_COLOR"))
    wanted = terminal or bool(os.environ.get("FORCE_COLOR"))
    return pretty(colours=wanted and not dumb, brief=brief)
