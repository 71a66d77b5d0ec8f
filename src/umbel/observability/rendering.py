"""Render the fields of a log line: as JSON for programs, or as coloured text for people."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import msgspec

from umbel.terminal import SafeText, add_style, join_texts, make_json_visible, make_visible
from umbel.urls import mask_secrets

Fields = Mapping[str, Any]
Render = Callable[[Fields], SafeText]
LogStyle = Literal["auto", "pretty", "json"]

_BLOCK_FIELDS = ("exception", "traceback", "stack")
_JOB_FIELDS = ("job", "attempt", "trace")
_SHORT_ID_LETTERS = 8
"""How many letters at the end of an id tables and brief logs show. Every command accepts them."""
_COLOURS = {"debug": "2", "info": "32", "warning": "33", "error": "31", "critical": "1;31"}


def _show(value: Any) -> str:
    try:
        return mask_secrets(repr(value))
    except Exception as error:  # noqa: BLE001 - a user's __repr__ may raise anything
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"


# --- JSON ------------------------------------------------------------------------------------

_encode = msgspec.json.Encoder(enc_hook=_show).encode


def json_line(fields: Fields) -> SafeText:
    """Return one JSON object. A value that JSON cannot encode is shown by its ``repr``."""
    stamped = dict(fields, time=_iso(fields["time"]))
    stamped.pop("about", None)  # only for the pretty format
    try:
        return make_json_visible(_encode(stamped).decode())
    except Exception:  # noqa: BLE001 - odd keys, lone surrogates, cycles
        plain = {_clean(k): _plain(v) for k, v in stamped.items()}
        return make_json_visible(_encode(plain).decode())


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float | None):
        return value
    return _clean(value if isinstance(value, str) else _show(value))


def _clean(text: Any) -> str:
    return str(text).encode("utf-8", "backslashreplace").decode()


# --- pretty ----------------------------------------------------------------------------------


def pretty(*, colours: bool, brief: bool = False) -> Render:
    """Return a renderer of time, level, text and fields, with tracebacks as a block below.

    ``brief`` leaves out the trace, the incarnation and number of a worker, and the attempt if it is
    the first, and shortens ids of jobs.
    """

    def paint(text: SafeText, code: str) -> SafeText:
        return add_style(text, code) if colours else text

    def render(fields: Fields) -> SafeText:
        level = make_visible(str(fields.get("level", "info")), lines=False)
        clock = datetime.fromtimestamp(fields["time"]).strftime("%H:%M:%S.%f")[:-3]
        hidden = _hidden_fields(fields) if brief else set()
        colour = _COLOURS.get(level, "0")
        words = [
            paint(SafeText(clock), "2"),
            paint(SafeText(f"{level:7}"), colour),
            paint(_headline(fields), "1"),
        ]
        words += [
            join_texts(
                [
                    paint(make_visible(f"{name}=", lines=False), "2"),
                    make_visible(value, lines=False),
                ]
            )
            for name, value in _pairs(fields, hidden, brief)
        ]
        blocks = [paint(_indent(str(fields[b])), "2") for b in _BLOCK_FIELDS if fields.get(b)]
        return SafeText("\n".join([" ".join(words), *blocks]))

    return render


def _hidden_fields(fields: Fields) -> set[str]:
    hidden = {"trace", "incarnation", "index"}
    return hidden if fields.get("attempt", 1) != 1 else hidden | {"attempt"}


def _headline(fields: Fields) -> SafeText:
    """Return the text and the duration; a job's event begins with the task's short name."""
    text = make_visible(str(fields.get("event", ""))).replace("\n", "\n    ")
    if fields.get("about") == "job":
        task = make_visible(str(fields.get("task", "")).rpartition(".")[2], lines=False)
        text = f"{task} {text}"
        if _has_inline_duration(fields):
            text += f" in {_duration(fields['seconds'])}"
    return SafeText(f"{text:34}")


def _has_inline_duration(fields: Fields) -> bool:
    """Return whether the duration follows the text, as in ``succeeded in 4 ms``.

    ``will be retried in 4 ms`` would be misunderstood.
    """
    return fields.get("level") == "info" and "seconds" in fields


def _pairs(fields: Fields, hidden: set[str], brief: bool) -> list[tuple[str, str]]:
    shown = {"time", "level", "event", "about", *_BLOCK_FIELDS, *_JOB_FIELDS}
    if fields.get("about") == "job":
        shown |= {"task", "seconds"} if _has_inline_duration(fields) else {"task"}
    names = [name for name in fields if name not in shown and name not in hidden]
    names += [name for name in _JOB_FIELDS if name in fields and name not in hidden]
    return [
        ("took", _duration(fields[name]))
        if name == "seconds"
        else (name, _inline(fields[name])[-_SHORT_ID_LETTERS if brief and name == "job" else 0 :])
        for name in names
    ]


def _inline(value: Any) -> str:
    if isinstance(value, tuple | list) and all(isinstance(item, str) for item in value):
        return ",".join(value) or "-"
    text = value if isinstance(value, str) else _show(value)
    bare = text.isprintable() and text != "" and '"' not in text
    return text if bare else _show(text)


def _indent(text: str) -> SafeText:
    return SafeText("\n".join(f"    {line}" for line in make_visible(text.rstrip()).split("\n")))


def _duration(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


# --- choosing --------------------------------------------------------------------------------


def choose_renderer(style: LogStyle, stream: TextIO, *, brief: bool = False) -> Render:
    """Return the renderer of a style; ``auto`` is pretty on a terminal and JSON elsewhere."""
    terminal = stream.isatty()
    if style == "json" or (style == "auto" and not terminal):
        return json_line
    dumb = os.environ.get("TERM") == "dumb" or bool(os.environ.get("NO_COLOR"))
    wanted = terminal or bool(os.environ.get("FORCE_COLOR"))
    return pretty(colours=wanted and not dumb, brief=brief)
