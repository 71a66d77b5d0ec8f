"""The command line inside the test's process, its streams as strict as a terminal's."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import NamedTuple

from umbel.cli.entry import run

CODES = (0, 1, 2, 3, 4, 130)
"""What the command line's help and reference promise."""


class Answer(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


@contextmanager
def environment(changes: dict[str, str]) -> Iterator[None]:
    """Only these settings of Umbel, for the time of the block."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("UMBEL")]:
        del os.environ[name]
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def command(words: Sequence[str]) -> Answer:
    """Run a command. Whatever it raises is a traceback to its user, so it comes out here."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    with redirect_stdout(out), redirect_stderr(err):
        code = run(words)
    return Answer(code, _text(out), _text(err))


def assert_good_manners(words: Sequence[str], answer: Answer) -> None:
    """A documented exit code; a failure says why, in words and on stderr."""
    assert answer.code in CODES, f"{words}: {answer}"
    assert "Traceback (most recent" not in answer.err, f"{words}: {answer.err}"
    if answer.code == 2:
        assert answer.err.strip(), f"{words}: refused without a word"


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()
