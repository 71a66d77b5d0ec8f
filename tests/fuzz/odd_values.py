"""Odd values for the columns of rows that tests write by hand."""

from __future__ import annotations

from typing import Any

from bench import Sql
from hostile import nested
from hypothesis import Phase, settings

from umbel.messages import fresh_id

DEEP = nested(900)
HUGE = 2**63 - 1
EVER = float("inf")

JSON_COLUMN = (
    *("[]", "5", "null", '"x"', DEEP, '{"a": 1, "a": 2}', '{"": null}', '{"x": [1, {"y": 1e300}]}'),
    '{"n": 99999999999999999999999999}',
)
HEADERS = (
    *('{"timeout": "nan"}', '{"timeout": -1}', '{"track": {}}', '{"malformed": "x"}'),
    *('{"retry": 5}', '{"retry": "{\\"times\\": -1}"}', '{"retry": {"times": 1, "first": 1e300}}'),
)
STORIES = (
    '[{"number": 1, "worker": "w", "started": 1e300, "finished": -1e300, "ended": "retry"}]',
    '[{"number": 1, "worker": null, "started": null, "finished": null, "ended": "lost"}]',
    *("[[]]", "{}", f"[{', '.join(['{}'] * 150)}]"),
)
BODIES = (
    *(b"", b"\x00", b"\xff\xfe", b"[", b"null", b"[1]", b'{"args": 5}', b'{"kwargs": [1]}'),
    *(b'{"args": [], "kwargs": {"\\u0000": 1}}', DEEP.encode(), b'{"args": [1, 2]}'),
    b'{"args": ["' + b"x" * 1_100_000 + b'"]}',
)
ANY: dict[str, tuple[Any, ...]] = {
    "task": ("nobody", "🌱" * 255, "\x1b[31m", "work ", "' or 1=1 --"),
    "type": ("umbel.event", "umbel.document"),
    "kind": ("io", "cpu"),
    "content_type": ("", "x" * 5_000, "application/msgpack", "application/x-umbel-pickle", "\x1b"),
    "body": BODIES,
    "deaths": (-1, 2**31 - 1, -(2**31)),
    "blame": (-1, 2**31 - 1, -(2**31)),
    "max_deaths": (0, -1, 2**31 - 1, -(2**31)),
    "attempt": (0, -1, 2**31 - 1, -(2**31)),
    "unique_key": ("", "x" * 2_000, "\x1b"),
    "traceparent": ("", "-", "---", "a-b-c-d", "x" * 5_000),
    "headers": (*JSON_COLUMN, *HEADERS),
    "sections": JSON_COLUMN,
    "attempts": (*JSON_COLUMN, *STORIES),
    "fence": (-1, HUGE - 2, HUGE),
    "worker": ("", "x" * 2_000),
    "cancel_reason": ("", "x" * 2_000),
}
"""Odd values by column, as both databases take them."""
FILE: dict[str, tuple[Any, ...]] = {
    "id": ("x" * 36, "é" * 36, "'" * 36, fresh_id().upper()),
    "task": ("a\x00b", Sql("cast(x'ff41' as text)")),
    "content_type": ("\x00",),
    "priority": (HUGE, -HUGE),
    "created": (EVER, -EVER, 1e300, -1.0, 0.0),
    "not_before": (EVER, -EVER, 1e300),
    "expires": (EVER, -EVER, 1e300, 0.0),
    "attempt": (HUGE, -HUGE),
    "deaths": (HUGE, -HUGE),
    "unique_key": ("a\x00b",),
    "traceparent": ("\x00",),
    "claimed": (EVER, 1e300),
    "progress_done": (EVER, -1e300),
}
MOMENTS = tuple(
    Sql(f"'{moment}'") for moment in ("infinity", "-infinity", "294276-12-31", "4714-11-24 BC")
)
SERVER: dict[str, tuple[Any, ...]] = {
    "id": (Sql("'00000000-0000-0000-0000-000000000000'"),),
    "priority": (32767, -32768),
    **dict.fromkeys(("created", "not_before", "expires", "claimed"), MOMENTS),
    "progress_done": (EVER, float("nan")),
    "progress_of": (EVER, float("nan")),
}


def odd(own: dict[str, tuple[Any, ...]], column: str) -> tuple[Any, ...]:
    """The odd values that a database takes in a column."""
    return (*ANY.get(column, ()), *own.get(column, ()))


briefly = settings(max_examples=6, phases=(Phase.explicit, Phase.generate))
"""Few examples: each runs real jobs."""
