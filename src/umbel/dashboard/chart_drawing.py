"""Charts as SVG, drawn on the server, so that they work without scripts."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

Line = tuple[str, str, Sequence[float | None]]
"""A name, a CSS class, and values; None is a gap."""
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 560, 120, 52, 104, 8


def draw_chart(title: str, lines: Sequence[Line], unit: str = "") -> Markup:
    """Return lines over time in one picture, with a legend."""
    highest = max((v for _, _, values in lines for v in values if v is not None), default=0.0)
    top = _round_up(highest)
    drawn = [
        Markup('<path class="line {}" d="{}"/>').format(style, path)
        for _, style, values in lines
        for path in _paths(values, top)
    ]
    legend = [
        Markup('<span class="key {}">{}</span>').format(style, name) for name, style, _ in lines
    ]
    return Markup(
        '<figure class="chart"><figcaption>{} {}</figcaption>'
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}</svg></figure>'
    ).format(
        title,
        Markup("").join(legend),
        _WIDTH,
        _HEIGHT,
        _describe(title, lines, unit),
        _axis(top, unit),
        Markup("").join(drawn),
    )


def _describe(title: str, lines: Sequence[Line], unit: str) -> str:
    """Return the chart in words, for screen readers."""
    words = []
    for name, _, values in lines:
        known = [value for value in values if value is not None]
        if known:
            low, high, last = map(_number, (min(known), max(known), known[-1]))
            words.append(f"{name} from {low} to {high}, now {last} {unit}".strip())
    return f"{title}: {'; '.join(words) or 'no data yet'}"


def _paths(values: Sequence[float | None], top: float) -> list[str]:
    """Return one path for each run of values without a gap. A lone point becomes a dot."""
    step = (_WIDTH - _LEFT) / max(1, len(values) - 1)
    runs: list[list[str]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            y = _BOTTOM - (_BOTTOM - _TOP) * value / top
            runs[-1].append(f"{_LEFT + place * step:.1f} {y:.1f}")
    return [f"M{run[0]}L{'L'.join(run[1:] or run)}" for run in runs if run]


def _axis(top: float, unit: str) -> Markup:
    return Markup(
        '<path class="axis" d="M{0} {1}H{2}M{0} {3}H{2}"/>'
        '<text class="tick" x="{4}" y="{5}">{6}</text><text class="tick" x="{4}" y="{3}">0</text>'
    ).format(_LEFT, _TOP, _WIDTH, _BOTTOM, _LEFT - 6, _TOP + 4, f"{_number(top)} {unit}".strip())


def _round_up(value: float) -> float:
    """Return the next number of the form 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 1e-6
    while power * 10 <= value:
        power *= 10
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= value)


def _number(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:,.1f}k"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
