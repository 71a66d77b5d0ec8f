"""Pages as HTML, from templates that escape everything."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from umbel.clock import iso_time
from umbel.dashboard.chart_drawing import draw_chart, draw_timeline
from umbel.dashboard.visibility import visible, visible_lines
from umbel.graphs import Box, Graph, svg
from umbel.graphs.svg import short_duration
from umbel.terminal import make_json_visible

_MAX_JSON = 64_000
"""Characters of a value that are shown."""


def make_environment() -> Environment:
    """Return the templates with their filters."""
    environment = Environment(
        loader=PackageLoader("umbel.dashboard"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "text": _text,
        "plain": lambda text: visible(text, 300),
        "lines": visible_lines,
        "segment": lambda name: quote(str(name), safe=""),
        "time": _time,
        "duration": duration,
        "number": lambda value: f"{value:,}",
        "plural": plural,
        "short": lambda job: str(job)[-8:],
        "pretty": _pretty,
        "json": _json,
        "chart": draw_chart,
        "drawing": draw_timeline,
        "graph": _graph,
        "rates": _rates,
        "depths": _depths,
        "compact": lambda value: msgspec.json.encode(value, enc_hook=repr).decode(),
    }
    return environment


def _text(value: object, limit: int = 200) -> Markup:
    """Return foreign text that cannot change the direction of what follows."""
    return Markup("<bdi>{}</bdi>").format(visible(value, limit))


def _time(seconds: float | str | None) -> Markup:
    """Return a time, which the browser shows as an age."""
    text = seconds if isinstance(seconds, str) else iso_time(seconds)
    if not text:
        return Markup("")
    return Markup('<time datetime="{0}" title="{0}" tabindex="0">{1}</time>').format(
        text, text[:19].replace("T", " ")
    )


def duration(seconds: float | None) -> str:
    """Return a duration with its unit, as in the drawing of a graph."""
    return "" if seconds is None else short_duration(seconds)


def plural(number: int, one: str, many: str) -> str:
    """Return a number with its word: 1 job, 2 jobs."""
    return f"{number:,} {one if number == 1 else many}"


def _graph(graph: Graph, root: str, selected: str = "") -> Markup:
    """Return the drawing of a graph. The boxes of one that was published are links."""

    def link(number: int, box: Box) -> str:
        chosen = f"box={number}" if box.is_many else f"node={quote(box.first.job)}"
        return f"{root}/graphs/{quote(graph.id)}?{chosen}#panel"

    return Markup(svg(graph, link=link if graph.id else None, selected=selected))


def _rates(points: list[dict[str, Any]], name: str) -> list[float | None]:
    """Return a number of each point per second. The last point has not ended."""
    return [None if one[name] is None else one[name] / one["seconds"] for one in points[:-1]]


def _depths(points: list[dict[str, Any]], name: str) -> list[float | None]:
    return [one["depths"] and one["depths"][name] for one in points]


def _pretty(value: Any) -> str:
    """Return a value as JSON in several lines."""
    text = _json(value)
    return text if len(text) <= _MAX_JSON else text[:_MAX_JSON] + "\n… cut here"


def _json(value: Any) -> str:
    """Return a value as JSON in several lines, without characters that are not seen."""
    encoded = msgspec.json.encode(value, enc_hook=repr)
    return make_json_visible(msgspec.json.format(encoded, indent=2).decode())
