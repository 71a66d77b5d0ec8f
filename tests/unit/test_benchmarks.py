"""The comparison with peers: its arithmetic, its verdicts, its charts, its command line."""

from __future__ import annotations

import json
import math
import threading
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import (
    charts,
    drawing,
    figures,
    meters,
    options,
    plan,
    probe,
    report,
    scales,
    targets,
)
from benchmarks.figures import Measures
from benchmarks.runner import Failure, Results, run
from benchmarks.systems import SYSTEMS

values = st.lists(st.floats(0, 1e9), min_size=1)


def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed() -> None:
    hundred = [float(n) for n in range(100, 0, -1)]
    assert figures.percentile(hundred, 50) == 50
    assert figures.percentile(hundred, 99) == 99
    assert figures.percentile(hundred, 100) == 100
    assert figures.percentile([7.0], 1) == 7


def test_a_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        figures.percentile([], 50)


@given(values, st.floats(1, 100))
def test_a_percentile_is_one_of_the_values(seen: list[float], percent: float) -> None:
    found = figures.percentile(seen, percent)
    assert found in seen
    assert sum(value <= found for value in seen) >= len(seen) * percent / 100 - 1e-9


def test_a_rate_leaves_out_what_came_before_the_skipped_and_may_end_later() -> None:
    moments = [0, 10**9, 2 * 10**9, 3 * 10**9, 4 * 10**9]
    assert figures.rate(moments, 0) == pytest.approx(1.0)
    assert figures.rate([0, 9 * 10**9, 10**10], 1) == pytest.approx(1.0)
    assert figures.rate(moments, 0, end=8 * 10**9) == pytest.approx(0.5)


def test_the_middle_is_the_median_but_of_the_log_the_least() -> None:
    rounds: list[Measures] = [{"rate": 1, "log": 9}, {"rate": 100, "log": 5}, {"rate": 3}]
    assert figures.middle(rounds) == {"rate": 3, "log": 5}


def test_a_cost_that_cannot_be_known_is_none() -> None:
    assert figures.per_job(None, 1.0, 10) is None
    assert figures.per_job(1.0, 2.0, 0) is None
    assert figures.per_job(1.0, 2.0, 10) == pytest.approx(0.1)
    assert figures.known({"a": 1.0, "b": None}) == {"a": 1.0}


def test_processor_time_is_counted_for_each_process_alone() -> None:
    before, after = {1: 5.0, 2: 1.0}, {2: 1.5, 3: 0.25}
    assert meters.spent(before, after) == 0.75, "1 has ended, 3 is new"
    assert meters.spent(None, after) is None
    assert meters.spent({}, {}) == 0


def test_a_ratio_to_nothing_is_endless_unless_both_are() -> None:
    assert figures.ratio(3, 2) == 1.5
    assert figures.ratio(0, 0) == 1
    assert math.isinf(figures.ratio(1, 0))


def _verdicts(rows: Mapping[str, Mapping[str, Measures]]) -> dict[str, targets.Verdict]:
    found = targets.judge(lambda row: rows.get(row, {}))
    return {f"{verdict.target.label}, {verdict.target.database}": verdict for verdict in found}


def test_umbel_is_compared_with_the_best_peer_on_the_same_database() -> None:
    one = "publish, one by one"
    found = _verdicts(
        {
            one: {
                "umbel · PostgreSQL": {"rate": 1200},
                "slow · PostgreSQL": {"rate": 10},
                "fast · PostgreSQL": {"rate": 1000},
                "faster · SQLite": {"rate": 99_999},
            }
        }
    )
    verdict = found[f"{one}, PostgreSQL"]
    assert (verdict.peer, verdict.ratio, verdict.met) == ("fast · PostgreSQL", 1.2, True)
    assert f"{one}, SQLite" not in found


def test_of_one_and_two_processes_the_better_counts() -> None:
    found = _verdicts(
        {
            plan.drain_row("async", 1): {
                "umbel · PostgreSQL": {"rate": 30, "worker": 3, "server": 1},
                "pgqueuer · PostgreSQL": {"rate": 20, "worker": 2, "server": 2},
            },
            plan.drain_row("async", 2): {
                "umbel · PostgreSQL": {"rate": 20, "worker": 9, "server": 9},
                "pgqueuer · PostgreSQL": {"rate": 10, "worker": 9, "server": 9},
            },
        }
    )
    assert found["drain, async def, PostgreSQL"].ratio == 1.5
    assert found["drain, async def, PostgreSQL"].met
    cost = found["drain, async def: CPU a job, PostgreSQL"]
    assert (cost.ours, cost.theirs, cost.met) == (4, 4, False)


def test_less_is_better_for_times() -> None:
    row = "start of a lone job"
    peers = {"a · SQLite": {"p50": 10.0}, "b · SQLite": {"p50": 20.0}}
    fast = _verdicts({row: {"umbel · SQLite": {"p50": 6.0}, **peers}})[f"{row}, p50, SQLite"]
    slow = _verdicts({row: {"umbel · SQLite": {"p50": 6.1}, **peers}})[f"{row}, p50, SQLite"]
    assert (fast.peer, fast.met, slow.met) == ("a · SQLite", True, False)


def test_a_bound_on_the_figure_itself_needs_no_peer() -> None:
    row = "round trip"
    found = _verdicts({row: {"umbel · PostgreSQL": {"p50": 5.0}}})
    assert found["round trip, p50, ms, PostgreSQL"].met
    assert not _verdicts({"publish, in bulk": {"umbel · PostgreSQL": {"rate": 1.0}}})


def test_the_longest_bar_takes_the_room() -> None:
    assert charts.scaled([1, 4, 2], 100) == [25, 100, 50]
    assert charts.scaled([0, 0], 100) == [0, 0]
    assert charts.scaled([], 100) == []


def test_counts_stand_at_equal_steps_for_tenfold_growth() -> None:
    assert charts.positions([10, 100, 1000], 100) == pytest.approx([0, 50, 100])
    assert charts.positions([0, 100, 1000], 100) == pytest.approx([0, 50, 100])
    assert charts.positions([0], 100) == [0]
    assert charts.positions([10], 100) == [0]


def test_numbers_are_short() -> None:
    shown = [charts.number(value) for value in (12345.6, 99.96, 12.34, 1.2345, 0.0)]
    assert shown == ["12,346", "100", "12.3", "1.23", "0"]


@given(st.dictionaries(st.text(st.characters(exclude_categories=["C"])), st.floats(0, 1e12)))
def test_a_chart_is_xml_whatever_the_names(found: dict[str, float]) -> None:
    picture = ET.fromstring(charts.bars("<title>", "jobs/s", found))
    assert len(picture.findall("{*}rect")) == len(found)


def test_lines_have_a_curve_for_each_name() -> None:
    curves = {"umbel": {0: 5.0, 1000: 4.0}, "other": {1000: 2.0}}
    assert len(ET.fromstring(charts.lines("growth", "jobs/s", curves)).findall("{*}path")) == 2


def test_every_start_is_noted_though_threads_note_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "FOLDER", str(tmp_path))
    monkeypatch.setattr(probe, "_notes", {})

    def note(first: int) -> None:
        for number in range(first, first + 2_000):
            probe.started({"sent": number})

    threads = [threading.Thread(target=note, args=(1 + 2_000 * index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert probe.count(tmp_path) == 16_000
    assert sorted(sent for sent, _ in probe.starts(tmp_path)) == list(range(1, 16_001))


def test_another_system_begins_each_round() -> None:
    assert plan.rotated([1, 2, 3], 0) == [1, 2, 3]
    assert plan.rotated([1, 2, 3], 4) == [2, 3, 1]
    assert plan.rotated([], 1) == []


def _some_results() -> Results:
    results = Results()
    results.add("publish, one by one", "umbel · SQLite", {"rate": 100.0, "server": 0.0})
    results.add("publish, one by one", "huey · SQLite", {"rate": 200.0, "server": 0.0})
    results.add("round trip", "a · SQLite", {"p50": 2.0})
    results.add("round trip", "b · SQLite", {"p50": 1.0})
    results.add("growth: history, 1,000", "umbel · SQLite", {"rate": 50.0})
    return results


def test_the_report_says_what_was_missed_and_puts_the_best_first() -> None:
    results = _some_results()
    (line,) = report.ratios(targets.judge(results.middle)).lines
    assert line[2:] == ("100", "huey", "200", "0.50×", "≥ 1.2×", "missed")
    publish, trip, growth = report.grids(results)
    assert [line[0] for line in trip.lines] == ["b · SQLite", "a · SQLite"]
    assert [line[0] for line in publish.lines] == ["huey · SQLite", "umbel · SQLite"]
    assert growth.lines[0][:2] == ("history, 1,000", "umbel · SQLite")


def test_tables_on_a_page_have_as_many_cells_as_heads() -> None:
    lines = report.markdown(_some_results(), {"machine": "small"}).splitlines()
    tables = "\n".join(lines).split("### ")[1:]
    assert len(tables) == 4
    for table in tables:
        assert len({line.count("|") for line in table.splitlines() if "|" in line}) == 1


def test_a_page_says_what_failed_but_not_the_last_words() -> None:
    results = _some_results()
    results.failures.append(Failure("round trip", "a · SQLite", "Failed('/home/me: gone')"))
    page = report.markdown(results, {})
    assert "- failed: round trip: a · SQLite\n" in page
    assert "gone" not in page


def test_figures_come_back_from_json_and_every_row_that_compares_is_drawn(tmp_path: Path) -> None:
    results = _some_results()
    content = json.loads(report.as_json(results, {}))
    assert content["figures"] == results.figures
    assert [verdict["met"] for verdict in content["verdicts"]] == [False]
    drawn = {file.name for file in drawing.draw(results, tmp_path)}
    assert drawn == {
        "bench-publish-one-by-one.svg",
        "bench-round-trip.svg",
        "bench-growth-history.svg",
    }


def test_a_step_that_fails_costs_only_its_own_figures() -> None:
    def fail() -> Mapping[str, Measures | None]:
        raise ValueError("broken")

    told: list[str] = []
    steps = [
        plan.Step("row", "bad", fail),
        plan.Step("row", "without", lambda: {"row": None}),
        plan.Step("row", "good", lambda: {"row": {"rate": 2.0}}),
    ]
    results = run(steps, lambda step: told.append(step.system))
    assert told == ["bad", "without", "good"]
    assert results.middle("row") == {"good": {"rate": 2.0}}
    assert results.failures == [Failure("row", "bad", "ValueError('broken')")]


def test_results_over_rounds_are_their_medians() -> None:
    results = Results()
    for value in (1.0, 9.0, 2.0):
        results.add("row", "system", {"rate": value})
    assert results.middle("row") == {"system": {"rate": 2.0}}


def test_only_names_peers_or_databases() -> None:
    assert options.read([]).systems == SYSTEMS
    assert {s.database for s in options.read(["--only", "sqlite"]).systems} == {"sqlite"}
    chosen = options.read(["--only", "huey,pgqueuer", "--rows", "drain"])
    assert [system.peer for system in chosen.systems] == ["pgqueuer", "huey"]
    assert chosen.groups == ("drain",)


def test_a_name_that_nobody_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options.read(["--only", "celery"])
    assert "celery: give some of" in capsys.readouterr().err


def test_rounds_replace_those_of_the_scale() -> None:
    assert options.read(["--quick", "--rounds", "7"]).scale == replace(scales.QUICK, rounds=7)
    assert options.read(["--full"]).scale == scales.FULL
