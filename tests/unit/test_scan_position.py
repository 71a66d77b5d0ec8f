"""Scans of a queue on PostgreSQL that continue where the last one ended."""

from __future__ import annotations

from umbel.backends.postgres.scan_cursor import ScanPosition

ROW = (7, "job", "io", None, 0)


def test_a_slow_scan_is_repeated_after_a_multiple_of_its_duration() -> None:
    position = ScanPosition()
    position.record_full_scan(0.1, 50.0, [ROW], None)
    assert position.begin(51.9) is not None
    assert position.begin(52.1) is None


def test_a_very_slow_scan_delays_nodes_of_graphs_by_at_most_ten_seconds() -> None:
    position = ScanPosition()
    position.record_full_scan(5.0, 50.0, [ROW], None)
    assert position.begin(59.9) is not None
    assert position.begin(60.1) is None


def test_a_fast_scan_begins_at_the_start_each_time() -> None:
    position = ScanPosition()
    position.record_full_scan(0.001, 50.0, [ROW], None)
    assert position.begin(50.0) is None
