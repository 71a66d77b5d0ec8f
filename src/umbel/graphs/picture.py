"""Where everything in a drawing is: boxes, the frames of subgraphs around them, and arrows.

Each frame is laid out by itself, and then placed like a box among those around it. So nothing else
is in it. An arrow to or from a box in a frame ends at that frame, unless both ends are in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate

import msgspec

from umbel.graphs.boxes import shared
from umbel.graphs.layout import lay_out
from umbel.graphs.subgraphs import Nesting

WIDTH, HEIGHT = 192, 48
"""Of a box."""
_ACROSS, _DOWN = (54, 14), (18, 40)
"""The gaps between layers and in them: layers from left to right, and from top to bottom."""
_MARGIN = 8
_PADDING, _HEADER = 14, 48
"""Of a frame: between it and what is in it, and the room for its name."""
_TIP = 8
_MAX_ACROSS = 5 * (WIDTH + _ACROSS[0]) - _ACROSS[0]
_MAX_DOWN = 5.5 * (WIDTH + _DOWN[0]) - _DOWN[0]
"""A picture that is longer than this goes down, if it is then not wider than this."""

Point = tuple[float, float]
Size = tuple[float, float]


class Arrow(msgspec.Struct, frozen=True):
    """An arrow: the paths of its line and of its tip."""

    line: str
    tip: str
    is_critical: bool


class Picture:
    """What is in one frame, or in the whole drawing, with the frames in it."""

    def __init__(self, inside: Nesting = ()) -> None:
        self.inside = inside
        self.items: list[int | Picture] = []
        """The numbers of boxes, and frames."""
        self.links: dict[tuple[int, int], bool] = {}
        """Between which items arrows are, and whether they are critical."""

    def arrange(self) -> None:
        """Place the items, after those in the frames among them."""
        for item in self.items:
            if isinstance(item, Picture):
                item.arrange()
        self._plan = _Plan(self._sizes(), tuple(self.links), is_down=False)
        if self._plan.deep > _MAX_ACROSS:
            down = _Plan(self._sizes(), tuple(self.links), is_down=True)
            self._plan = down if down.wide <= _MAX_DOWN else self._plan

    def _sizes(self) -> list[Size]:
        return [one.size if isinstance(one, Picture) else (WIDTH, HEIGHT) for one in self.items]

    @property
    def size(self) -> Size:
        """Its width and height, with its border."""
        width, height = self._plan.size
        left, top = self._border
        return width + 2 * left, height + top + left

    @property
    def _border(self) -> Point:
        return (_PADDING, _HEADER) if self.inside else (_MARGIN, _MARGIN)

    def placed(self, corner: Point = (0.0, 0.0)) -> Iterator[tuple[int | Picture, Point]]:
        """Return its items, each with its upper left corner if its own corner is there."""
        start = self._start(corner)
        for number, item in enumerate(self.items):
            x, y = self._plan.corner(number)
            yield item, (round(start[0] + x, 1), round(start[1] + y, 1))

    def arrows(self, corner: Point = (0.0, 0.0)) -> list[Arrow]:
        """Return the arrows between its items. Those that are critical are above the others."""
        start = self._start(corner)
        found = [
            Arrow(*self._plan.edge(*pair, at, start), is_critical)
            for at, (pair, is_critical) in enumerate(self.links.items())
        ]
        return sorted(found, key=lambda one: one.is_critical)

    def _start(self, corner: Point) -> Point:
        left, top = self._border
        return corner[0] + left, corner[1] + top


def picture(
    nestings: Sequence[Nesting],
    edges: Sequence[tuple[int, int]] = (),
    critical: Collection[tuple[int, int]] = (),
) -> Picture:
    """Return a picture, to be arranged: boxes that are in these subgraphs, and their arrows."""
    frames: dict[Nesting, Picture] = {(): Picture()}
    numbers: dict[int | Nesting, int] = {}
    """Of each box and frame, in the frame that contains it."""
    for box, nesting in enumerate(nestings):
        for end in range(1, len(nesting) + 1):
            if nesting[:end] not in frames:
                frames[nesting[:end]] = frame = Picture(nesting[:end])
                outer = frames[nesting[: end - 1]]
                numbers[nesting[:end]] = len(outer.items)
                outer.items.append(frame)
        numbers[box] = len(frames[nesting].items)
        frames[nesting].items.append(box)
    for first, second in edges:
        common = shared(nestings[first], nestings[second])
        links = frames[common].links
        ends = [
            numbers[nestings[box][: len(common) + 1] if len(nestings[box]) > len(common) else box]
            for box in (first, second)
        ]
        pair = ends[0], ends[1]
        links[pair] = links.get(pair, False) or (first, second) in critical
    return frames[()]


class _Plan:
    """Turns the layout into points: layers go right, or down if there are many narrow ones."""

    def __init__(
        self, sizes: Sequence[Size], edges: tuple[tuple[int, int], ...], *, is_down: bool
    ) -> None:
        self._is_down = is_down
        between, self._gap = (_DOWN[1], _DOWN[0]) if is_down else _ACROSS
        turned = [size[::-1] if is_down else size for size in sizes]
        self._deep, self._wide = [one[0] for one in turned], [one[1] for one in turned]
        self._unit = (WIDTH if is_down else HEIGHT) + self._gap
        rooms = tuple((wide + self._gap) / self._unit for wide in self._wide)
        self._layout = layout = lay_out(len(sizes), edges, rooms)
        self._thick = [0.0] * layout.depth
        for layer, deep in zip(layout.layers, self._deep, strict=True):
            self._thick[layer] = max(self._thick[layer], deep)
        steps = (thick + between for thick in self._thick)
        self._begins = [*accumulate(steps, initial=0.0)]
        self.deep = max(self._begins[-1] - between, 0.0)
        self.wide = max(layout.width * self._unit - self._gap, 0.0)

    @property
    def size(self) -> Size:
        """Its width and height."""
        return self._point(self.deep, self.wide)

    def _point(self, deep: float, wide: float) -> Point:
        return (wide, deep) if self._is_down else (deep, wide)

    def _middle(self, offset: float) -> float:
        return offset * self._unit - self._gap / 2

    def _span(self, number: int) -> tuple[float, float]:
        """Return where an item begins and ends: at the beginning of its layer."""
        begin = self._begins[self._layout.layers[number]]
        return begin, begin + self._deep[number]

    def corner(self, number: int) -> Point:
        """Return the upper left corner of an item."""
        middle = self._middle(self._layout.offsets[number])
        return self._point(self._span(number)[0], middle - self._wide[number] / 2)

    def edge(self, first: int, second: int, number: int, start: Point) -> tuple[str, str]:
        """Return the path of an edge, and that of its tip. In a layer, it is a straight line."""
        layout, pen = self._layout, _Pen(start, is_down=self._is_down)
        wide, last = (self._middle(layout.offsets[one]) for one in (first, second))
        layer = layout.layers[first]
        if layout.layers[second] <= layer:
            return self._back(first, second, pen)
        at, end = self._span(first)[1], self._span(second)[0]
        pen.move(at, wide)
        pen.line(self._begins[layer] + self._thick[layer], wide)
        for passed, offset in layout.routes[number]:
            begin = self._begins[passed]
            pen.curve(begin, self._middle(offset))
            pen.line(begin + self._thick[passed], self._middle(offset))
        pen.curve(end - _TIP / 2, last)
        tips = [(end - _TIP, last + side) for side in (-_TIP / 2, _TIP / 2)]
        return pen.path, pen.shape((end, last), *tips)

    def _back(self, first: int, second: int, pen: _Pen) -> tuple[str, str]:
        """Return an edge of a cycle, between the sides of its items."""
        begin, arrive = (sum(self._span(one)) / 2 for one in (first, second))
        side, last = (
            self._middle(self._layout.offsets[one]) + self._wide[one] / 2 for one in (first, second)
        )
        low = max(side, last) + self._gap
        pen.move(begin, side)
        pen.bend((begin, low), (arrive, low), (arrive, last))
        tips = [(arrive + one, last + _TIP) for one in (-_TIP / 2, _TIP / 2)]
        return pen.path, pen.shape((arrive, last), *tips)


class _Pen:
    """Writes a path of an SVG. Its points are how deep and how wide they are in a picture."""

    def __init__(self, start: Point, *, is_down: bool) -> None:
        self._start = start
        self._is_down = is_down
        self._at: Point = (0.0, 0.0)
        self.path = ""

    def _text(self, point: Point) -> str:
        x, y = point[::-1] if self._is_down else point
        return f"{round(self._start[0] + x, 1):g} {round(self._start[1] + y, 1):g}"

    def move(self, deep: float, wide: float) -> None:
        self._at = (deep, wide)
        self.path += f"M{self._text(self._at)}"

    def line(self, deep: float, wide: float) -> None:
        if self._at != (deep, wide):
            self._at = (deep, wide)
            self.path += f"L{self._text(self._at)}"

    def curve(self, deep: float, wide: float) -> None:
        middle = (self._at[0] + deep) / 2
        self.bend((middle, self._at[1]), (middle, wide), (deep, wide))

    def bend(self, *points: Point) -> None:
        self._at = points[-1]
        self.path += f"C{' '.join(map(self._text, points))}"

    def shape(self, *points: Point) -> str:
        """Return a closed shape."""
        return f"M{'L'.join(map(self._text, points))}Z"
