"""Charts as SVG, drawn on the server, so that they work without scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from umbel.dashboard.chart_axes import Axis, duration_axis, linear_axis, short_number

_BAR_WIDTH = 1_000
_PART_STYLES = {
    **dict.fromkeys(("retry", "failed", "lost", "rejected"), "buried"),
    **{name: name for name in ("wait", "running", "waiting", "scheduled", "queued", "blocked")},
    "succeeded": "succeeded",
}
Line = tuple[str, str, Sequence[float | None]]
"""A name, a CSS class, and values; None is a gap."""
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 480, 136, 72, 110, 8
_MAX_ROWS = 30


class _Span(NamedTuple):
    text: str
    seconds: int


_SPANS = {
    "15m": _Span("15 min ago", 900),
    "1h": _Span("1 h ago", 3_600),
    "24h": _Span("24 h ago", 86_400),
    "7d": _Span("7 days ago", 604_800),
}


class _Row(NamedTuple):
    """The mean values of a part of the time."""

    ago: str
    start: int
    end: int
    values: list[float | None]


def draw_chart(
    title: str,
    lines: Sequence[Line],
    unit: str = "",
    since: str = "15m",
    is_duration: bool = False,
) -> Markup:
    """Return lines over time in one picture, with a legend.

    Durations, in seconds, get a logarithmic axis: 10 ms and 10 min are both readable then.
    """
    known = [v for _, _, values in lines for v in values if v is not None]
    axis = duration_axis(known) if is_duration else linear_axis(known, unit)
    drawn = [
        Markup('<path class="line {}" d="{}"/>').format(style, path)
        for _, style, values in lines
        for path in _paths(values, axis)
    ]
    rows = _rows(lines, _SPANS[since].seconds)
    legend = [
        Markup('<span class="key {}">{}</span>').format(style, name) for name, style, _ in lines
    ]
    return Markup(
        '<figure class="chart"><figcaption>{} {}</figcaption>'
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}{}</svg>{}</figure>'
    ).format(
        title,
        Markup("").join(legend),
        _WIDTH,
        _HEIGHT,
        _describe(title, lines, unit),
        _draw_axis(axis, _SPANS[since].text),
        Markup("").join(drawn),
        _hover(rows, lines, unit),
        _table(title, rows, lines, unit),
    )


def _rows(lines: Sequence[Line], seconds: int) -> list[_Row]:
    """Return the means of at most so many periods, the newest first."""
    points = max((len(values) for _, _, values in lines), default=0)
    size = -(-points // _MAX_ROWS) or 1
    found = []
    for end in range(points, 0, -size):
        start = max(end - size, 0)
        ago = _ago((points - end) * seconds / points)
        found.append(_Row(ago, start, end, [_mean(values[start:end]) for _, _, values in lines]))
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _ago(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s ago" if seconds else "now"
    for unit, size in (("min", 60), ("h", 3_600)):
        if seconds < 120 * size:
            return f"{round(seconds / size, 1):g} {unit} ago"
    return f"{round(seconds / 86_400, 1):g} d ago"


def _hover(rows: Sequence[_Row], lines: Sequence[Line], unit: str) -> Markup:
    """Return an area for each row, which shows its values under the pointer."""
    points = max((row.end for row in rows), default=1)
    step = (_WIDTH - _LEFT) / points
    areas = []
    for row in rows:
        known = [
            f"{name} {short_number(value)} {unit}".strip()
            for (name, _, _), value in zip(lines, row.values, strict=True)
            if value is not None
        ]
        if known:
            area = '<rect class="hit" x="{:.1f}" y="{}" width="{:.1f}" height="{}">'
            areas.append(
                Markup(area + "<title>{}</title></rect>").format(
                    _LEFT + row.start * step,
                    _TOP,
                    (row.end - row.start) * step,
                    _BOTTOM - _TOP,
                    f"{row.ago}: {', '.join(known)}",
                )
            )
    return Markup("").join(areas)


def _table(title: str, rows: Sequence[_Row], lines: Sequence[Line], unit: str) -> Markup:
    head = [Markup('<th scope="col" class="num">{}').format(name) for name, _, _ in lines]
    body = [
        Markup('<tr><th scope="row">{}{}').format(
            row.ago,
            Markup("").join(
                Markup('<td class="num">{}').format("" if value is None else short_number(value))
                for value in row.values
            ),
        )
        for row in rows
    ]
    return Markup(
        "<details><summary>Numbers</summary><table><caption>{}</caption>"
        '<thead><tr><th scope="col">Time{}</thead><tbody>{}</tbody></table></details>'
    ).format(
        f"{title}{f' in {unit}' if unit else ''}", Markup("").join(head), Markup("").join(body)
    )


def _describe(title: str, lines: Sequence[Line], unit: str) -> str:
    """Return the chart in words, for screen readers."""
    words = []
    for name, _, values in lines:
        known = [value for value in values if value is not None]
        if known:
            low, high, last = map(short_number, (min(known), max(known), known[-1]))
            words.append(f"{name} from {low} to {high}, now {last} {unit}".strip())
    return f"{title}: {'; '.join(words) or 'no data yet'}"


def _paths(values: Sequence[float | None], axis: Axis) -> list[str]:
    """Return one path for each run of values without a gap. A lone point becomes a dot."""
    step = (_WIDTH - _LEFT) / max(1, len(values) - 1)
    runs: list[list[str]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append(f"{_LEFT + place * step:.1f} {_y(axis.height(value)):.1f}")
    return [f"M{run[0]}L{'L'.join(run[1:] or run)}" for run in runs if run]


def _y(height: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * height


def _draw_axis(axis: Axis, since: str) -> Markup:
    tick = '<path class="axis" d="M{} {:.1f}H{}"/><text class="tick" x="{}" y="{:.1f}">{}</text>'
    ticks = [
        Markup(tick).format(_LEFT, y := _y(at), _WIDTH, _LEFT - 6, y + 4, text)
        for at, text in axis.ticks
    ]
    return Markup(
        '{}<text class="tick first" x="{}" y="{}">{}</text>'
        '<text class="tick" x="{}" y="{}">now</text>'
    ).format(Markup("").join(ticks), _LEFT, _BOTTOM + 18, since, _WIDTH, _BOTTOM + 18)


def draw_timeline(parts: Sequence[Mapping[str, Any]]) -> Markup:
    """Return the waits and runs of a job as one bar. Short parts are drawn longer than they are."""
    drawn = [part for part in parts if "seconds" in part or "since" in part]
    shares = [max(part.get("seconds", 0.0), 0.0) ** 0.5 for part in drawn]
    whole = sum(shares) or 1.0
    least = _BAR_WIDTH / 50
    widths = [least + share / whole * (_BAR_WIDTH - least * len(drawn)) for share in shares]
    if not drawn or least * len(drawn) > _BAR_WIDTH:
        return Markup("")
    bars, left = [], 0.0
    for part, width in zip(drawn, widths, strict=True):
        style = _PART_STYLES.get(part.get("ended", part["what"]), "cancelled")
        state = "open" if "since" in part else part["what"]
        bars.append(
            Markup('<rect class="{} {}" x="{:.1f}" y="0" width="{:.1f}" height="14"/>').format(
                style, state, left, max(1.0, width - 2)
            )
        )
        left += width
    return Markup(
        '<svg class="drawing" viewBox="0 0 {} 14" preserveAspectRatio="none" aria-hidden="true">{}'
        "</svg>"
    ).format(_BAR_WIDTH, Markup("").join(bars))
