"""The time by which records in a file are old follows a wrong clock only as fast as time passes."""

from __future__ import annotations

from umbel.backends.sqlite.file_time import FileTime

DAY = 86_400.0


def test_a_clock_that_goes_on_as_it_should_is_believed() -> None:
    time = FileTime(monotonic=0.0)
    known = 1000.0
    for minute in range(1, 100):
        now = 1000.0 + 60 * minute
        trusted, known = time.read(known, now, 60.0 * minute)
        assert trusted == known == now


def test_a_clock_that_is_ahead_from_the_beginning_is_not_believed() -> None:
    trusted, known = FileTime(monotonic=5.0).read(1000.0, 1000.0 + 30 * DAY, 5.0)
    assert trusted < 1000.0 + 120
    assert known == 1000.0


def test_a_clock_that_jumps_is_not_believed() -> None:
    time = FileTime(monotonic=0.0)
    _, known = time.read(1000.0, 1001.0, 1.0)
    trusted, known = time.read(known, 1000.0 + 30 * DAY, 61.0)
    assert trusted < 1000.0 + 1000


def test_time_in_which_nothing_ran_is_made_up_for() -> None:
    time, known, now = FileTime(monotonic=0.0), 1000.0, 1000.0 + 30 * DAY
    for hour in range(4 * 24):
        trusted, known = time.read(known, now + 3600 * hour, 3600.0 * hour)
    assert trusted == now + 3600 * (4 * 24 - 1)


def test_several_processes_together_are_no_faster_than_one() -> None:
    times, known = [FileTime(monotonic=0.0) for _ in range(10)], 1000.0
    for minute in range(10):
        for time in times:
            trusted, known = time.read(known, 1000.0 + 30 * DAY, 60.0 * minute)
    assert trusted <= 1000.0 + 10 * 600 + 60


def test_a_clock_that_is_behind_makes_nothing_old_and_sets_nothing_back() -> None:
    trusted, known = FileTime(monotonic=0.0).read(1000.0 + DAY, 1000.0, 60.0)
    assert (trusted, known) == (1000.0, 1000.0 + DAY)
