"""Draws graphs as SVG: for a page, whose style sheet colors it, or as a file of its own."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from xml.sax.saxutils import quoteattr

from umbel.graphs.boxes import Box, boxes, critical_edges, edges, nestings
from umbel.graphs.picture import HEIGHT, WIDTH, Arrow, Picture, Size, picture
from umbel.graphs.subgraphs import summaries
from umbel.messages.graphs import Graph
from umbel.terminal import make_visible

MAX_DRAWN_NODES = 300
"""A graph with more nodes is drawn with one box for many nodes."""
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
.subgraph rect { fill: #f6f7f9; stroke-width: 1.6; }
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
    is_declared = not graph.id
    critical = set() if is_declared else critical_edges(graph, drawn)
    whole = picture(nestings(graph, drawn), arrows, critical)
    whole.arrange()
    on_path = {number for pair in critical for number in pair}
    width, height = whole.size
    head = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    label = _attribute(f"{graph.label}: {len(drawn):,} boxes, {len(arrows):,} arrows")
    parts = [
        f'<svg class="graph" {head} role="group" aria-label={label}'
        + (' xmlns="http://www.w3.org/2000/svg">' if alone else ">")
    ]
    if alone:
        parts.append(f"<style>{_STYLE}</style>")
        parts.append(f'<rect class="page" width="{width:g}" height="{height:g}"/>')
    frames = summaries(graph)

    def draw_box(number: int, x: float, y: float) -> str:
        box = drawn[number]
        is_selected = any(node.job == selected for node in box.nodes)
        style = _style_of(box, number in on_path, is_selected)
        shape = _box(box, x, y, is_declared)
        if link is None:
            return f'<g class="{style}">{shape}</g>'
        where = _attribute(link(number, box), limit=4_000)
        mark = ' aria-current="true"' if is_selected else ""
        label = _attribute(_title(box))
        return f'<a class="{style}" href={where} aria-label={label}{mark}>{shape}</a>'

    def draw(one: Picture, corner: tuple[float, float]) -> None:
        parts.extend(map(_arrow, one.arrows(corner)))
        for item, (x, y) in one.placed(corner):
            if isinstance(item, Picture):
                box = Box((frames[item.inside],))
                parts.append(_frame(box, (x, y), item.size, is_declared))
                draw(item, (x, y))
            else:
                parts.append(draw_box(item, x, y))

    draw(whole, (0.0, 0.0))
    return "\n".join([*parts, "</svg>"])


def _arrow(one: Arrow) -> str:
    style = " critical" if one.is_critical else ""
    return f'<path class="edge{style}" d="{one.line}"/><path class="tip{style}" d="{one.tip}"/>'


def _frame(box: Box, corner: tuple[float, float], size: Size, is_declared: bool) -> str:
    """Return the frame of a subgraph, with its name and state."""
    return f'<g class="subgraph {box.state}">{_box(box, *corner, is_declared, size)}</g>'


def _style_of(box: Box, is_critical: bool, is_selected: bool) -> str:
    words = ["node", box.state]
    words += ["critical"] * is_critical + ["selected"] * is_selected
    words += ["handler"] * box.first.handler + ["many"] * box.is_many
    return " ".join(words)


def _box(box: Box, x: float, y: float, is_declared: bool, size: Size = (WIDTH, HEIGHT)) -> str:
    """Return the shape of a box and its texts. That of a declaration has no state."""
    radius = HEIGHT / 2 if box.first.kind in ("signal", "sleep") else 7
    name, note = _name(box), _note(box) if not is_declared else box.first.path
    texts = [f'<text class="name" x="{x + 14:g}" y="{y + 20:g}">{_escape(name)}</text>']
    texts.append(
        f'<text class="note" x="{x + 14:g}" y="{y + 37:g}">'
        f"{_escape(_cut(note, _NOTE_LETTERS))}</text>"
    )
    return (
        f"<title>{_escape(_title(box))}</title>"
        f'<rect x="{x:g}" y="{y:g}" width="{size[0]:g}" height="{size[1]:g}" rx="{radius:g}"/>'
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
