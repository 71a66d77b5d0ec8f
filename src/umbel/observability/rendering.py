"""One line of text for one set of fields: JSON for programs, colours for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from umbel.terminal import Shown, joined, styled, visible, visible_json
from umbel.urls import masked

Fields = Mapping[str, Any]
Render = Callable[[Fields], Shown]

_BLOCKS = ("exception", "traceback", "stack")
_JOB = ("job", "attempt", "trace")
_COLOURS = {"debug": "2", "info": "32", "warning": "33", "error": "31", "critical": "1;31"}


def _shown(value: Any) -> str:
    try:
        return masked(repr(value))
    except Exception as error:  # noqa: BLE001 - a user's __repr__ may raise anything
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"


# --- JSON ------------------------------------------------------------------------------------

_encode = msgspec.json.Encoder(enc_hook=_shown).encode


def json_line(fields: Fields) -> Shown:
    """One JSON object. A value without a JSON form is shown as Python shows it."""
    stamped = dict(fields, time=_iso(fields["time"]))
    stamped.pop("about", None)  # a hint for the pretty form only
    try:
        return visible_json(_encode(stamped).decode())
    except Exception:  # noqa: BLE001 - odd keys, lone surrogates, cycles: show what can be shown
        plain = {_clean(k): _plain(v) for k, v in stamped.items()}
        return visible_json(_encode(plain).decode())


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float | None):
        return value
    return _clean(value if isinstance(value, str) else _shown(value))


def _clean(text: Any) -> str:
    return str(text).encode("utf-8", "backslashreplace").decode()


# --- for people ------------------------------------------------------------------------------


def pretty(*, colours: bool, brief: bool = False) -> Render:
    """Time, level, what happened, then the fields; tracebacks as a block below.

    ``brief`` leaves out the trace, and the attempt when it is the first.
    """

    def paint(text: Shown, code: str) -> Shown:
        return styled(text, code) if colours else text

    def render(fields: Fields) -> Shown:
        level = visible(str(fields.get("level", "info")), lines=False)
        clock = datetime.fromtimestamp(fields["time"]).strftime("%H:%M:%S.%f")[:-3]
        hidden = _brief(fields) if brief else set()
        colour = _COLOURS.get(level, "0")
        words = [
            paint(Shown(clock), "2"),
            paint(Shown(f"{level:7}"), colour),
            paint(_headline(fields), "1"),
        ]
        words += [
            joined([paint(visible(f"{name}=", lines=False), "2"), visible(value, lines=False)])
            for name, value in _pairs(fields, hidden)
        ]
        blocks = [paint(_indented(str(fields[b])), "2") for b in _BLOCKS if fields.get(b)]
        return Shown("\n".join([" ".join(words), *blocks]))

    return render


def _brief(fields: Fields) -> set[str]:
    return {"trace"} if fields.get("attempt", 1) != 1 else {"trace", "attempt"}


def _headline(fields: Fields) -> Shown:
    """What happened, and how long it took; a job's event begins with the task's short name."""
    text = visible(str(fields.get("event", ""))).replace("\n", "\n    ")
    if fields.get("about") == "job":
        task = visible(str(fields.get("task", "")).rpartition(".")[2], lines=False)
        text = f"{task} {text}"
        if _took_inline(fields):
            text += f" in {_duration(fields['seconds'])}"
    return Shown(f"{text:34}")


def _took_inline(fields: Fields) -> bool:
    """``succeeded in 4 ms`` reads well; ``will be tried again in 4 ms`` would say another thing."""
    return fields.get("level") == "info" and "seconds" in fields


def _pairs(fields: Fields, hidden: set[str]) -> list[tuple[str, str]]:
    told = {"time", "level", "event", "about", *_BLOCKS, *_JOB}
    if fields.get("about") == "job":
        told |= {"task", "seconds"} if _took_inline(fields) else {"task"}
    names = [name for name in fields if name not in told]
    names += [name for name in _JOB if name in fields and name not in hidden]
    return [
        ("took", _duration(fields[name])) if name == "seconds" else (name, _inline(fields[name]))
        for name in names
    ]


def _inline(value: Any) -> str:
    if isinstance(value, tuple | list) and all(isinstance(item, str) for item in value):
        return ",".join(value) or "-"
    text = value if isinstance(value, str) else _shown(value)
    bare = text.isprintable() and text != "" and '"' not in text
    return text if bare else _shown(text)


def _indented(text: str) -> Shown:
    return Shown("\n".join(f"    {line}" for line in visible(text.rstrip()).split("\n")))


def _duration(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
