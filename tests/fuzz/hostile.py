"""What senders get wrong, as Hypothesis strategies, and what a good refusal looks like."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from umbel.errors import BadMessage

READABLE = 1_000
"""Characters a reason may have. More of it nobody reads, and every store has to keep it."""

ODD_TEXT = (
    "",
    "\x00",
    "a\x00b",
    "\ud800",
    "\udcff",
    "\u202eevil",
    "\x1b[31m",
    "e\u0301" * 20,
    "🌱" * 70,
    "x" * 300,
    "1" * 5_000,
    "null",
    "NaN",
    "-0",
    "²",
)
ODD_NUMBERS = (
    *(0, -0.0, -1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400),
    *(float("nan"), float("inf"), float("-inf"), 1e308, -1e308, 5e-324, 253402300800.0),
)

texts = st.sampled_from(ODD_TEXT) | st.text(st.characters(), max_size=40)
kept_texts = texts.map(lambda text: text.encode("utf-8", "replace").decode())
"""Text that a database may hold."""
numbers = st.sampled_from(ODD_NUMBERS) | st.integers() | st.floats()
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def nested(depth: int, opening: str = "[", closing: str = "]") -> str:
    """JSON that is nothing but deep."""
    return opening * depth + "0" + closing * depth


depths = st.sampled_from([1, 10, 500, 100_000]) | st.integers(800, 1_000)
deep = st.builds(nested, depths) | st.builds(nested, depths, st.just('{"a":'), st.just("}"))


def written(value: Any) -> str:
    """A value as sloppy JSON: NaN, infinities and lone surrogates go through."""
    return json.dumps(value, ensure_ascii=True)


documents = values.map(written) | deep | st.text(max_size=30)
"""JSON text of any shape, and some that is none."""


def an_object(pairs: list[tuple[str, str]]) -> str:
    """A JSON object of written values. Keys may repeat."""
    return "{" + ", ".join(f"{written(key)}: {value}" for key, value in pairs) + "}"


def storable(text: str) -> bool:
    """Whether every store takes it."""
    try:
        return b"\x00" not in text.encode()
    except UnicodeEncodeError:
        return False


def assert_readable(reason: str) -> None:
    """A reason can be kept, shown and read."""
    assert reason.strip(), "a refusal without a reason"
    assert len(reason) <= READABLE, f"a reason of {len(reason):,} characters: {reason[:80]!r}"
    assert storable(reason), f"a reason that no store takes: {reason[:200]!r}"


def assert_refusal(error: BadMessage) -> None:
    """A refusal names the field, in a text that can be read."""
    assert error.field.strip(), f"a refusal that names no field: {error}"
    assert str(error).startswith(f"{error.field}: "), error
    assert str(error).removeprefix(f"{error.field}: ").strip(), f"no reason: {error}"
    assert_readable(str(error))
