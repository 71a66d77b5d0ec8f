"""Draws graphs as SVG: for a page, whose style sheet colors it, or as a file of its own."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from xml.sax.saxutils import quoteattr

from umbel.graphs.boxes import Box, boxes, critical_edges, edges
from umbel.graphs.layout import Layout, lay_out
from umbel.messages.graphs import Graph
from umbel.terminal import make_visible

MAX_DRAWN_NODES = 300
"""A graph with more nodes is drawn with one box for many nodes."""
_WIDTH, _HEIGHT = 192, 48
_ACROSS, _DOWN = (54, 14), (18, 40)
"""The gaps between layers and in them: layers from left to right, and from top to bottom."""
_MARGIN = 8
_TIP = 8
_MAX_LAYERS_ACROSS, _MAX_BOXES_DOWN = 5, 5.5
_NAME_LETTERS, _NOTE_LETTERS, _TITLE_LETTERS = 21, 27, 300
_MAX_PATH_LETTERS = 6
_ICONS = {
    "succeeded": "✓",
    "running": "▶",
    "buried": "✗",
    "cancelled": "⊘",
    "expired": "⊘",
    "skipped": "↷",
    "queued": "•",
    "waiting": "◦",
    "scheduled": "◷",
    "blocked": "○",
}
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1a1d23; }
.name { font-weight: 600; } .note { font-size: 11px; }
rect { fill: #ffffff; stroke: #7a8394; stroke-width: 1.2; } .page { stroke: none; }
.edge { fill: none; stroke: #7a8394; stroke-width: 1.2; } .tip { fill: #7a8394; }
.edge.critical { stroke-width: 3; stroke: #1a1d23; } .tip.critical { fill: #1a1d23; }
.critical rect { stroke-width: 3; } .handler rect { stroke-dasharray: 5 4; }
.succeeded rect { fill: #e3f4e9; stroke: #1b7340; } .succeeded .note { fill: #1b7340; }
.running rect { fill: #e6effc; stroke: #1d5fbf; } .running .note { fill: #1d5fbf; }
.buried rect { fill: #fce8e6; stroke: #b3261e; } .buried .note { fill: #b3261e; }
.expired rect { fill: #fcebe0; stroke: #9a3f0b; } .expired .note { fill: #9a3f0b; }
.waiting rect { fill: #fbf1dc; stroke: #8a5a00; } .waiting .note { fill: #8a5a00; }
.scheduled rect { fill: #f0ebfc; stroke: #6b46c1; } .scheduled .note { fill: #6b46c1; }
.queued rect { fill: #e9ecf1; stroke: #4a5568; } .queued .note { fill: #4a5568; }
.cancelled rect, .skipped rect { fill: #f0ebe6; stroke: #6b5b4e; }
.blocked .note, .cancelled .note, .skipped .note { fill: #596273; }
"""
Link = Callable[[int, Box], str]
"""Returns the address of a box, by its number."""


def svg(graph: Graph, *, link: Link | None = None, selected: str = "", alone: bool = False) -> str:
    """Return a graph as an SVG element.

    ``link`` gives the address of a box. ``selected`` is the job of a node that is marked. With
    ``alone``, it is a file with its own colors.
    """
    drawn = boxes(graph, MAX_DRAWN_NODES)
    arrows = edges(graph, drawn)
    drawing = _Drawing(lay_out(len(drawn), tuple(arrows)))
    is_declared = not graph.id
    critical = set() if is_declared else critical_edges(graph, drawn)
    on_path = {number for pair in critical for number in pair}
    width, height = drawing.size
    head = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    label = _attribute(f"{graph.label}: {len(drawn):,} boxes, {len(arrows):,} arrows")
    parts = [
        f'<svg class="graph" {head} role="group" aria-label={label}'
        + (' xmlns="http://www.w3.org/2000/svg">' if alone else ">")
    ]
    if alone:
        parts.append(f"<style>{_STYLE}</style>")
        parts.append(f'<rect class="page" width="{width:g}" height="{height:g}"/>')
    # Thick edges are drawn last, above the others.
    numbers = sorted(range(len(arrows)), key=lambda at: arrows[at] in critical)
    parts += [_arrow(*drawing.edge(*arrows[at], at), arrows[at] in critical) for at in numbers]
    for number, box in enumerate(drawn):
        x, y = drawing.corner(number)
        is_selected = any(node.job == selected for node in box.nodes)
        style = _style_of(box, number in on_path, is_selected)
        shape = _box(box, x, y, is_declared)
        if link is None:
            parts.append(f'<g class="{style}">{shape}</g>')
        else:
            where = _attribute(link(number, box), limit=4_000)
            mark = ' aria-current="true"' if is_selected else ""
            parts.append(
                f'<a class="{style}" href={where} aria-label={_attribute(_title(box))}{mark}>'
                f"{shape}</a>"
            )
    return "\n".join([*parts, "</svg>"])


class _Drawing:
    """Turns the layout into points: layers go right, or down if there are many narrow ones."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._is_down = layout.depth > _MAX_LAYERS_ACROSS and layout.width <= _MAX_BOXES_DOWN
        between, inside = (_DOWN[1], _DOWN[0]) if self._is_down else _ACROSS
        thick, wide = (_HEIGHT, _WIDTH) if self._is_down else (_WIDTH, _HEIGHT)
        self._thick = thick
        self._layer_step = thick + between
        self._place_step = wide + inside
        self._inside = inside
        self._between = between

    @property
    def size(self) -> tuple[float, float]:
        deep = max(self._layout.depth * self._layer_step - self._between, 0) + 2 * _MARGIN
        wide = max(self._layout.width * self._place_step - self._inside, 0) + 2 * _MARGIN
        return self._point(deep, wide)

    def _point(self, deep: float, wide: float) -> tuple[float, float]:
        return (
            (round(wide, 1), round(deep, 1)) if self._is_down else (round(deep, 1), round(wide, 1))
        )

    def _middle(self, layer: int, place: float) -> tuple[float, float]:
        """Return where a layer begins, and the middle of a place in it."""
        deep = _MARGIN + layer * self._layer_step
        return deep, _MARGIN + place * self._place_step - self._inside / 2

    def corner(self, number: int) -> tuple[float, float]:
        """Return the upper left corner of a box."""
        deep, wide = self._middle(self._layout.layers[number], self._layout.places[number])
        half = (self._place_step - self._inside) / 2
        return self._point(deep, wide - half)

    def edge(self, first: int, second: int, number: int) -> tuple[str, str]:
        """Return the path of an edge, and that of its tip."""
        layout = self._layout
        start, wide = self._middle(layout.layers[first], layout.places[first])
        end, last = self._middle(layout.layers[second], layout.places[second])
        if end <= start:
            return self._back(start, wide, end, last)
        at = start + self._thick
        path = f"M{self._text(at, wide)}"
        for layer, place in layout.routes[number]:
            deep, other = self._middle(layer, place)
            path += f"{self._curve(at, wide, deep, other)}L{self._text(deep + self._thick, other)}"
            at, wide = deep + self._thick, other
        tip = [self._text(end - _TIP, last + side) for side in (-_TIP / 2, _TIP / 2)]
        path += self._curve(at, wide, end - _TIP / 2, last)
        return path, f"M{self._text(end, last)}L{tip[0]}L{tip[1]}Z"

    def _back(self, start: float, wide: float, end: float, last: float) -> tuple[str, str]:
        """Return an edge of a cycle, between the sides of its boxes."""
        half = (self._place_step - self._inside) / 2
        begin, arrive = start + self._thick / 2, end + self._thick / 2
        low = max(wide, last) + half + self._inside
        first, second = self._text(begin, low), self._text(arrive, low)
        side = last + half
        path = f"M{self._text(begin, wide + half)}C{first} {second} {self._text(arrive, side)}"
        tip = [self._text(arrive + one, side + _TIP) for one in (-_TIP / 2, _TIP / 2)]
        return path, f"M{self._text(arrive, side)}L{tip[0]}L{tip[1]}Z"

    def _curve(self, deep: float, wide: float, end: float, last: float) -> str:
        middle = (deep + end) / 2
        return f"C{self._text(middle, wide)} {self._text(middle, last)} {self._text(end, last)}"

    def _text(self, deep: float, wide: float) -> str:
        x, y = self._point(deep, wide)
        return f"{x:g} {y:g}"


def _arrow(path: str, tip: str, is_critical: bool) -> str:
    style = " critical" if is_critical else ""
    return f'<path class="edge{style}" d="{path}"/><path class="tip{style}" d="{tip}"/>'


def _style_of(box: Box, is_critical: bool, is_selected: bool) -> str:
    words = ["node", box.state]
    words += ["critical"] * is_critical + ["selected"] * is_selected
    words += ["handler"] * box.first.handler + ["many"] * box.is_many
    return " ".join(words)


def _box(box: Box, x: float, y: float, is_declared: bool) -> str:
    """Return the shape of a box and its texts. That of a declaration has no state."""
    radius = _HEIGHT / 2 if box.first.kind in ("signal", "sleep") else 7
    name, note = _name(box), _note(box) if not is_declared else box.first.path
    texts = [f'<text class="name" x="{x + 14:g}" y="{y + 20:g}">{_escape(name)}</text>']
    texts.append(
        f'<text class="note" x="{x + 14:g}" y="{y + 37:g}">'
        f"{_escape(_cut(note, _NOTE_LETTERS))}</text>"
    )
    return (
        f"<title>{_escape(_title(box))}</title>"
        f'<rect x="{x:g}" y="{y:g}" width="{_WIDTH}" height="{_HEIGHT}" rx="{radius:g}"/>'
        + "".join(texts)
    )


def _name(box: Box) -> str:
    task = box.first.task
    if len({node.task for node in box.nodes}) > 1:
        return f"other tasks × {len(box.nodes):,}"
    end = f" × {len(box.nodes):,}" if box.is_many else ""
    room = _NAME_LETTERS - len(end)
    if _width(task) > room and "." in task:
        task = f"…{task.rpartition('.')[2]}"
    return _cut(task, room) + end


def _note(box: Box) -> str:
    if box.is_many:
        return f"{_ICONS.get(box.state, '•')} {box.counts}"
    node = box.first
    words = [f"{_ICONS.get(box.state, '•')} {box.state}"]
    if node.seconds is not None and node.kind not in ("signal", "sleep"):
        words.append(short_duration(node.seconds))
    if node.path[:1].isdigit() and len(node.path) <= _MAX_PATH_LETTERS:
        words.append(node.path)
    return " · ".join(words)


def _title(box: Box) -> str:
    node = box.first
    if box.is_many:
        return f"{_name(box)}: {box.counts}"
    took = "" if node.seconds is None else f", {short_duration(node.seconds)}"
    error = f": {node.error}" if node.error else ""
    return f"{node.path or '-'} {node.task}, {node.state}{took}{error}"


def short_duration(seconds: float) -> str:
    """Return a duration with its unit, short enough for a box."""
    for limit, size, unit in ((1e-3, 1e-6, "µs"), (1, 1e-3, "ms"), (60, 1, "s")):
        if seconds < limit:
            return f"{seconds / size:.{1 if unit == 's' else 0}f} {unit}"
    for limit, size, unit in ((3_600, 60, "min"), (86_400, 3_600, "h")):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 86_400:.3g} d"


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text)


def _cut(text: str, room: int) -> str:
    """Return text that fits into so many letters; some letters are twice as wide."""
    text = make_visible(text[: 4 * room], lines=False)
    if _width(text) <= room:
        return text
    shown = ""
    for one in text:
        if _width(shown) + _width(one) > room - 1:
            break
        shown += one
    return f"{shown}…"


def _escape(text: str) -> str:
    """Return text for an element. What XML does not allow is shown by its number."""
    shown = make_visible(text[:_TITLE_LETTERS], lines=False).replace("\t", " ")
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _attribute(text: str, limit: int = _TITLE_LETTERS) -> str:
    return quoteattr(make_visible(text[:limit], lines=False).replace("\t", " "))
