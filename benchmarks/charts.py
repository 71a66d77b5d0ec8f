"""Charts as SVG, readable on light and on dark: text and lines take a grey that both show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH = 760
_LEFT, _RIGHT, _TOP, _BAR, _GAP = 250, 90, 44, 22, 10
_PLOT = WIDTH - _LEFT - _RIGHT
_STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #768390 }
.title { font-weight: 600; font-size: 15px }
.ours { fill: #1a9e7c } .peer { fill: #8b98a5 } .line { stroke: #8b98a5; stroke-opacity: .35 }
path.ours { fill: none; stroke: #1a9e7c; stroke-width: 2 }
path.peer { fill: none; stroke: #8b98a5; stroke-width: 2 }
</style>"""


def bars(title: str, unit: str, values: Mapping[str, float], ours: str = "umbel") -> str:
    """A bar for each value, in the order given; those whose name begins with ``ours`` stand out."""
    lengths = scaled(list(values.values()), _PLOT)
    parts = [_title(f"{title} ({unit})")]
    for index, ((name, value), length) in enumerate(zip(values.items(), lengths, strict=True)):
        y = _TOP + index * (_BAR + _GAP)
        kind = "ours" if name.startswith(ours) else "peer"
        place = f'x="{_LEFT}" y="{y}" width="{length:.1f}" height="{_BAR}"'
        parts += [
            _text(_LEFT - 10, y + 16, name, anchor="end"),
            f'<rect class="{kind}" {place} rx="3"/>',
            _text(_LEFT + length + 8, y + 16, number(value)),
        ]
    return _picture(_TOP + len(values) * (_BAR + _GAP), parts)


def lines(title: str, unit: str, curves: Mapping[str, Mapping[int, float]]) -> str:
    """A curve for each name over counts that grow tenfold; both scales begin at nothing."""
    height = 220
    counts = sorted({count for curve in curves.values() for count in curve})
    top = max((value for curve in curves.values() for value in curve.values()), default=1.0)
    across = dict(zip(counts, positions(counts, _PLOT), strict=True))
    parts = [_title(f"{title} ({unit})")]
    for share in (0.0, 0.5, 1.0):
        y = _TOP + height * (1 - share)
        parts.append(f'<line class="line" x1="{_LEFT}" x2="{_LEFT + _PLOT}" y1="{y}" y2="{y}"/>')
        parts.append(_text(_LEFT - 10, y + 4, number(top * share), anchor="end"))
    for count in counts:
        label = number(count)
        parts.append(_text(_LEFT + across[count], _TOP + height + 20, label, anchor="middle"))
    for index, (name, curve) in enumerate(curves.items()):
        kind = "ours" if index == 0 else "peer"
        points = [
            (_LEFT + across[count], _TOP + height * (1 - value / top))
            for count, value in sorted(curve.items())
        ]
        parts.append(_curve(points, kind))
        y = _TOP + 18 * index + 14
        parts.append(f'<circle class="{kind}" cx="16" cy="{y - 4}" r="5"/>')
        parts.append(_text(28, y, name))
    return _picture(_TOP + height + 30, parts)


def scaled(values: Sequence[float], room: float) -> list[float]:
    """Lengths in proportion, the largest taking the whole room."""
    top = max(values, default=0.0)
    return [room * value / top if top > 0 else 0.0 for value in values]


def positions(counts: Sequence[int], room: float) -> list[float]:
    """Where counts stand on a scale of tenfold steps; nothing stands a step before the first."""
    steps = [math.log10(count) if count > 0 else None for count in counts]
    known = [step for step in steps if step is not None]
    if not known:
        return [0.0 for _ in counts]
    low = min(known) - (1 if len(known) < len(steps) else 0)
    span = max(known) - low
    return [room * ((low if s is None else s) - low) / span if span else 0.0 for s in steps]


def number(value: float) -> str:
    """As people read it: three digits that count, thousands apart."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _curve(points: Sequence[tuple[float, float]], kind: str) -> str:
    path = " L ".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path class="{kind}" d="M {path}"/>'


def _title(text: str) -> str:
    return f'<text class="title" x="0" y="20">{escape(text)}</text>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _picture(height: float, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img">'
    return "\n".join([head, _STYLE, *parts, "</svg>", ""])
