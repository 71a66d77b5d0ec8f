"""The parts of ``umbel top`` that need no terminal: keys, lines, numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.messages import BodyCodec
from umbel.top import Frame, Glyphs, Screen, draw
from umbel.top.drawing import share_lines
from umbel.top.glyphs import number, rate, span
from umbel.top.keyboard import Keyboard


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1bOB", ["up", "down"]),
        (b"\t\x1b[Z\r", ["tab", "back tab", "enter"]),
        (b"\x03", ["q"]),
        ("ö世".encode(), ["ö", "世"]),
        (b"\x1b[1;5C", []),  # a key that has no meaning here
        (b"\x1bxq", ["escape", "x", "q"]),
        (b"\xff\xfe", []),
        (b"\x1b[" + b"1" * 100 + b"mq", ["1"] * 86 + ["m", "q"]),
    ],
)
def test_bytes_are_keys(data: bytes, keys: list[str]) -> None:
    assert Keyboard().feed(data) == keys


@given(st.lists(st.sampled_from([b"\x1b[A", b"\x1b[6~", b"a", "é".encode(), b"\t"])), st.data())
def test_a_sequence_may_arrive_in_parts(parts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(parts)
    cut = data.draw(st.integers(0, len(whole)))
    keyboard = Keyboard()
    assert keyboard.feed(whole[:cut]) + keyboard.feed(whole[cut:]) == Keyboard().feed(whole)


def test_an_escape_alone_is_a_key_after_a_moment() -> None:
    keyboard = Keyboard()
    assert keyboard.feed(b"\x1b") == []
    assert keyboard.is_waiting
    assert keyboard.flush() == ["escape"]
    assert not keyboard.is_waiting


@pytest.mark.parametrize(
    ("needs", "total", "shares"),
    [
        ([2, 2, 2], 20, [2, 2, 2]),
        ([3, 100, 3], 20, [3, 14, 3]),
        ([100, 100, 100], 20, [7, 7, 6]),
        ([1, 1, 100], 20, [1, 1, 18]),
    ],
)
def test_panes_share_lines_by_need(needs: list[int], total: int, shares: list[int]) -> None:
    assert share_lines(needs, total) == shares


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1204, "1,204"), (12_345, "12.3k"), (123_456, "123k"), (2e6, "2.0M")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


@given(st.floats(0, 1e12))
def test_numbers_and_durations_fit_into_their_columns(value: float) -> None:
    assert len(span(min(value, 1e8))) <= 7
    assert len(number(min(value, 1e9))) <= 7
    assert len(rate(min(value, 1e8))) <= 7


@given(st.text())
def test_foreign_text_is_one_harmless_line(text: str) -> None:
    shown = Glyphs().foreign(text)
    assert "\n" not in shown
    assert "\x1b" not in shown
    assert Glyphs(ascii_only=True).foreign(text).isascii()


@pytest.mark.parametrize("size", [(80, 24), (40, 12), (39, 12), (1, 1), (200, 60)])
def test_a_screen_has_the_size_of_the_terminal(size: tuple[int, int]) -> None:
    frame = Frame(*size, title="x" * 100, seconds=1.0, trouble="The store is away", since=0.0)
    lines = draw(Screen(Glyphs()), None, frame, BodyCodec())
    assert len(lines) == size[1]
    assert {line.cell_len for line in lines} == {size[0]}
