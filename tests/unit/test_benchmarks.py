"""The comparison with peers: its arithmetic, its verdicts, its charts, its command line."""

from __future__ import annotations

import json
import math
import os
import socket
import struct
import threading
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import (
    charts,
    drawing,
    environments,
    figures,
    meters,
    options,
    pages,
    plan,
    probe,
    report,
    scales,
    sizes,
    targets,
)
from benchmarks.entrants import SYSTEMS
from benchmarks.figures import Measures
from benchmarks.places import OnSqlite
from benchmarks.rows import canvas
from benchmarks.rows.drain import crews
from benchmarks.runner import Failure, Results, run
from benchmarks.stand import Stand

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


def test_a_pair_is_compared_with_those_whose_jobs_the_same_server_carries() -> None:
    row = "start of a lone job"
    found = _verdicts(
        {
            row: {
                "umbel · Redis": {"p50": 1.0},
                "umbel · RabbitMQ + Redis": {"p50": 3.0},
                "umbel · RabbitMQ + PostgreSQL": {"p50": 1.5},
                "umbel · PostgreSQL": {"p50": 0.1},
                "huey · Redis": {"p50": 1.25},
                "dramatiq · RabbitMQ": {"p50": 1.5},
                "chancy · PostgreSQL": {"p50": 4.0},
            }
        }
    )
    redis = found[f"{row}, p50, Redis"]
    assert (redis.peer, redis.ratio, redis.met) == ("huey · Redis", 0.8, True)
    pair = found[f"{row}, p50, RabbitMQ + Redis"]
    assert (pair.peer, pair.ours, pair.ratio, pair.met) == ("dramatiq · RabbitMQ", 3.0, 2, False)
    assert found[f"{row}, p50, RabbitMQ + PostgreSQL"].met
    assert found[f"{row}, p50, PostgreSQL"].peer == "chancy · PostgreSQL"


def test_on_a_broker_coroutines_meet_the_best_there_is_and_functions_meet_functions() -> None:
    found = _verdicts(
        {
            plan.drain_row("async", 2): {
                "umbel · Redis": {"rate": 100},
                "repid · Redis": {"rate": 40},
            },
            plan.drain_row("sync", 2): {
                "umbel · Redis": {"rate": 60},
                "huey · Redis": {"rate": 55},
            },
        }
    )
    coroutines, functions = found["drain, async def, Redis"], found["drain, def, Redis"]
    assert (coroutines.peer, coroutines.theirs, coroutines.met) == ("huey · Redis", 55, False)
    assert (functions.peer, functions.theirs, functions.met) == ("huey · Redis", 55, False)


def test_publishing_to_rabbitmq_is_compared_where_all_have_a_confirm() -> None:
    found = _verdicts(
        {
            "publish, one by one": {
                "umbel · RabbitMQ + Redis": {"rate": 10},
                "dramatiq · RabbitMQ": {"rate": 99},
            },
            "publish, one by one, confirmed": {
                "umbel · RabbitMQ + Redis": {"rate": 10},
                "dramatiq · RabbitMQ": {"rate": 9},
            },
        }
    )
    (verdict,) = found.values()
    assert (verdict.target.label, verdict.theirs) == ("publish, one by one, confirmed", 9)
    assert verdict.met


def test_a_drain_has_the_processes_that_a_system_chose_and_the_scale_leaves() -> None:
    both, two = (replace(SYSTEMS[0], processes=choice) for choice in ((1, 2), (2,)))
    one = replace(SYSTEMS[0], processes=(1,))
    assert [crews(system, scales.NORMAL) for system in (both, two, one)] == [(1, 2), (2,), (1,)]
    assert [crews(system, scales.QUICK) for system in (both, two, one)] == [(2,), (2,), (1,)]


def test_growth_is_measured_where_rows_can_be_made_out_of_nothing(tmp_path: Path) -> None:
    ours = [system for system in SYSTEMS if system.peer == "umbel"]
    stands = [Stand(system, OnSqlite(tmp_path), tmp_path, tmp_path) for system in ours]
    try:
        steps = plan.steps(stands, {}, scales.QUICK, ["growth"])
    finally:
        for stand in stands:
            stand.close()
    assert {step.system for step in steps} == {"umbel · PostgreSQL", "umbel · SQLite"}


def test_a_set_up_besides_the_usual_one_has_a_name_and_only_its_rows(tmp_path: Path) -> None:
    (usual, special) = (one for one in SYSTEMS if (one.peer, one.database) == ("taskiq", "nats"))
    assert (usual.name, special.name) == ("taskiq · NATS", "taskiq in batches · NATS")
    stands = [Stand(system, OnSqlite(tmp_path), tmp_path, tmp_path) for system in (usual, special)]
    try:
        steps = plan.steps(stands, {}, scales.QUICK, plan.GROUPS)
    finally:
        for stand in stands:
            stand.close()
    rows = {step.row for step in steps if step.system == special.name}
    assert rows == {plan.drain_row(kind, n) for kind in ("async", "sync") for n in (1, 2)}
    assert {step.row for step in steps if step.system == usual.name} > rows


def test_the_process_that_listens_on_a_local_port_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert [process.pid for process in meters.listening(port)] == [os.getpid()]
    assert meters.listening(port) == []


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
    assert len(tables) == 5
    for table in tables:
        assert len({line.count("|") for line in table.splitlines() if "|" in line}) == 1


def test_a_page_names_what_failed_without_the_error_text() -> None:
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


def _with_brokers() -> Results:
    results = _some_results()
    results.add("round trip", "umbel · Redis", {"p50": 1.0})
    results.add("round trip", "umbel · RabbitMQ + Redis", {"p50": 3.0})
    results.add("round trip", "celery · RabbitMQ", {"p50": 0.5})
    results.failures.append(Failure("idle", "taskiq · NATS", "gone"))
    return results


def test_those_that_meet_stand_together_the_best_of_them_first() -> None:
    (grid,) = (grid for grid in report.grids(_with_brokers()) if grid.title == "round trip")
    assert [line[0] for line in grid.lines] == [
        *("b · SQLite", "a · SQLite", "umbel · Redis"),
        *("celery · RabbitMQ", "umbel · RabbitMQ + Redis"),
    ]


def test_results_where_one_server_carries_the_jobs() -> None:
    found = _with_brokers().on("RabbitMQ")
    assert found.figures == {
        "round trip": {
            "umbel · RabbitMQ + Redis": [{"p50": 3.0}],
            "celery · RabbitMQ": [{"p50": 0.5}],
        }
    }
    assert found.failures == []
    assert [one.row for one in _with_brokers().on("NATS").failures] == ["idle"]


def test_each_server_has_charts_of_its_own_and_databases_theirs_together(tmp_path: Path) -> None:
    drawn = {file.name: file.read_text() for file in drawing.draw(_with_brokers(), tmp_path)}
    trips = {name for name in drawn if "round-trip" in name}
    assert trips == {f"bench-round-trip{end}.svg" for end in ("", "-redis", "-rabbitmq")}
    assert "a · SQLite" in drawn["bench-round-trip.svg"]
    assert "Redis" not in drawn["bench-round-trip.svg"]
    assert "umbel · RabbitMQ + Redis" in drawn["bench-round-trip-rabbitmq.svg"]


def test_figures_of_one_server_leave_those_of_the_others_on_the_page() -> None:
    before = "# Page\n\n<!-- figures -->\nold\n<!-- end of figures -->\n\nafter\n"
    page = pages.written(before, _with_brokers().on("Redis"), {"machine": "small"})
    assert page.startswith(before.rstrip())
    assert page.count("<!-- figures on Redis -->") == 1
    assert "umbel · Redis" in page

    again = Results()
    again.add("round trip", "huey · Redis", {"p50": 7.0})
    page = pages.written(page + "\nlast words\n", again, {})
    assert "huey · Redis" in page
    assert "umbel · Redis" not in page
    assert page.startswith(before.rstrip())
    assert page.endswith("last words\n")

    whole = pages.written(page, _some_results(), {})
    assert "old" not in whole
    assert "huey · Redis" in whole
    headings = [line for line in whole.splitlines() if line.startswith("#")]
    assert len(headings) == len(set(headings))


def test_figures_of_canvases_leave_all_others_on_the_page() -> None:
    page = pages.written("# Page\n", _with_brokers(), {})
    canvases = Results()
    row = plan.canvas_row("chord", 10_000)
    canvases.add(row, "umbel · Redis", {"seconds": 1.5, "bytes": 4.0, "memory": 100.0})
    canvases.add(row, "celery · Redis", {"seconds": 3.0, "bytes": 40.0, "memory": 200.0})
    canvases.failures.append(Failure("chords nested 5 deep", "celery · Redis", "timeout"))
    written = pages.written(page, canvases, {})
    assert written.startswith(page.rstrip())
    part = written.partition("<!-- figures of canvases -->")[2]
    assert "0.50×" in part
    assert "0.10×" in part
    assert "failed: chords nested 5 deep: celery · Redis" in part
    headings = [line for line in written.splitlines() if line.startswith("#")]
    assert len(headings) == len(set(headings))


def test_the_report_says_how_each_was_set_up_and_who_is_missing() -> None:
    results = _with_brokers()
    lines = {line[0]: line for line in report.entrants(results).lines}
    assert "confirms" in lines["celery · RabbitMQ"][2]
    assert "celery · Redis" not in lines
    assert any("Repid" in note for note in report.notes(results))
    assert report.notes(_some_results()) == []


def test_every_peer_has_its_adapter_and_its_pinned_versions() -> None:
    for system in SYSTEMS:
        pins = environments.requirements(system.peer)
        assert pins.with_suffix(".py").is_file()
        assert all("==" in line or line[0] == "-" for line in pins.read_text().splitlines())


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
    assert [system.name for system in chosen.systems] == [
        *("pgqueuer · PostgreSQL", "huey · SQLite", "huey · Redis")
    ]
    assert chosen.groups == ("drain",)


def test_on_names_what_carries_the_jobs() -> None:
    chosen = options.read(["--on", "redis,nats", "--only", "umbel,huey"])
    assert [system.name for system in chosen.systems] == [
        *("umbel · Redis", "huey · Redis"),
        *("umbel · NATS + Redis", "umbel · NATS + PostgreSQL"),
    ]
    assert set(chosen.servers) == {"redis", "nats", "postgresql"}
    assert set(options.read(["--on", "sqlite"]).servers) == set()
    assert options.read(["--on", "redis", "--redis", "redis://there"]).servers == {
        "redis": "redis://there"
    }


def test_results_of_round_trips_need_their_server_too() -> None:
    assert set(options.read(["--on", "rabbitmq", "--only", "dramatiq"]).servers) == {
        *("rabbitmq", "redis")
    }


def test_a_selection_without_any_candidate_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options.read(["--on", "nats", "--only", "huey"])
    assert "nothing in common" in capsys.readouterr().err


def test_figures_go_into_a_folder_that_has_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert options.read([]).page is None
    assert options.read(["--write-docs"]).page == options.DOCS / options.PAGE
    with pytest.raises(SystemExit):
        options.read(["--write-docs", str(tmp_path)])
    assert "there is no page" in capsys.readouterr().err
    page = tmp_path / options.PAGE
    page.parent.mkdir()
    page.touch()
    chosen = options.read(["--write-docs", str(tmp_path)])
    assert (chosen.page, chosen.charts) == (page, tmp_path / options.ASSETS)


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options.read(["--only", "resque"])
    assert "resque: give some of" in capsys.readouterr().err


def test_rounds_replace_those_of_the_scale() -> None:
    assert options.read(["--quick", "--rounds", "7"]).scale == replace(scales.QUICK, rounds=7)
    assert options.read(["--full"]).scale == scales.FULL


def test_the_largest_message_and_the_bytes_of_all_are_read_from_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "FOLDER", str(tmp_path))
    assert sizes.read(tmp_path) == (0, 0)
    for size in (10, 30, 20):
        sizes.note(size)
    (tmp_path / "another").write_bytes(struct.pack("qq", 25, 40))
    assert sizes.read(tmp_path) == (30, 100)


def test_a_canvas_is_measured_only_where_it_is_compared() -> None:
    def measured(peer: str, database: str, *, alone: bool) -> bool:
        stand = SimpleNamespace(system=SimpleNamespace(peer=peer, database=database, store=None))
        try:
            return canvas.run(stand, scales.QUICK, "chord", 10, alone=alone) is not None  # type: ignore[arg-type]
        except AttributeError:  # it went on: this stand cannot do more
            return True

    assert measured("umbel", "redis", alone=True)
    assert measured("celery", "redis", alone=False)
    assert not measured("celery", "redis", alone=True)
    assert not measured("umbel", "sqlite", alone=False)
    assert not measured("dramatiq", "redis", alone=False)


def test_the_peak_of_a_process_is_at_least_what_it_has_now() -> None:
    here = psutil.Process()
    assert meters.peak([here]) >= 0.9 * here.memory_info().rss
