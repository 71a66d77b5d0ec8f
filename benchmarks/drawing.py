"""Charts of what was found."""

from __future__ import annotations

from pathlib import Path

from benchmarks import charts
from benchmarks.report import SECTIONS, columns, less_is_better
from benchmarks.runner import Results

_GROWTH = {
    "history": "drain, with finished jobs remembered",
    "waiting": "drain, with jobs waiting",
    "published and drained": "drain of so many jobs",
}


def draw(results: Results, folder: Path) -> list[Path]:
    """A chart for each row that compares, where its systems meet, and one for each growth."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = _growth(results)
    for carriers in SECTIONS:
        found = results.on(*carriers)
        for row in filter(_compared, found.figures):
            pictures[_file(row, carriers)] = _bars(row, found)
    for name, picture in pictures.items():
        (folder / name).write_text(picture)
    return [folder / name for name in pictures]


def _compared(row: str) -> bool:
    return not row.startswith(("growth", "raw limit", "idle", "chord", "chain"))


def _file(row: str, carriers: tuple[str, ...]) -> str:
    where = f" {carriers[0].lower()}" if len(carriers) == 1 else ""
    return f"bench-{row.replace(',', '')}{where}.svg".replace(" ", "-")


def _bars(row: str, results: Results) -> str:
    column = columns(row)[0]
    values = {name: column.value(measures) for name, measures in results.middle(row).items()}
    found = {name: value for name, value in values.items() if value is not None}
    order = sorted(found.items(), key=lambda item: item[1], reverse=not less_is_better(row))
    return charts.bars(row, column.head, dict(order))


def _growth(results: Results) -> dict[str, str]:
    curves: dict[str, dict[str, dict[int, float]]] = {}
    for row in results.figures:
        kind, _, count = row.removeprefix("growth: ").partition(", ")
        if row.startswith("growth"):
            for system, measures in results.middle(row).items():
                curve = curves.setdefault(kind, {}).setdefault(system, {})
                curve[int(count.replace(",", ""))] = measures["rate"]
    return {
        f"bench-growth-{kind.replace(' ', '-')}.svg": charts.lines(_GROWTH[kind], "jobs/s", found)
        for kind, found in curves.items()
    }
