"""The progress of a long deletion."""

from __future__ import annotations

import pytest

from umbel.cli.progress import DeletionProgress
from umbel.testing import FakeClock


def test_progress_is_printed_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    clock.stop()
    progress = DeletionProgress(clock, "row")
    for deleted in (10, 20, 12_000, 12_001, 30_000):
        progress(deleted)
        clock.advance(1.5)
    out, error = capsys.readouterr()
    assert out == "", "the result is on stdout, for programs"
    assert error.splitlines() == ["12,000 rows deleted so far", "30,000 rows deleted so far"]
