"""Places the boxes of a drawing: layers by the longest path, and an order with few crossings."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import msgspec

_MAX_BENDS = 2_000
"""With more bends, edges that pass layers are drawn straight."""
_BEND_SIZE = 0.4
"""The room of an edge that passes a layer, in boxes."""
_ROUNDS = 3

Edges = tuple[tuple[int, int], ...]


class Layout(msgspec.Struct, frozen=True):
    """Where boxes are: a layer, and an offset in it in units of plain boxes from 0 on."""

    layers: tuple[int, ...]
    """Of each box."""
    offsets: tuple[float, ...]
    """Of each box: its middle."""
    routes: tuple[tuple[tuple[int, float], ...], ...]
    """Of each edge: the layers and offsets that it passes between its boxes."""
    depth: int
    """How many layers there are."""
    width: float
    """The room that the widest layer needs, in boxes."""


@lru_cache(maxsize=128)
def lay_out(count: int, edges: Edges, sizes: tuple[float, ...] = ()) -> Layout:
    """Place boxes that are named by their numbers. The same graph has the same layout.

    ``sizes`` is the room of each box in its layer, in units of plain boxes, 1 unless it is given.
    """
    sizes = sizes or (1.0,) * count
    layers = _layers(count, edges)
    rows, routes = _with_bends(layers, edges)
    before: dict[int, list[int]] = {}
    after: dict[int, list[int]] = {}
    for (first, second), bends in zip(edges, routes, strict=True):
        if layers[first] < layers[second]:
            for one, other in pairwise((first, *bends, second)):
                before.setdefault(other, []).append(one)
                after.setdefault(one, []).append(other)
    _order(rows, before, after)
    offsets = _spread(rows, before, after, sizes)
    layer_of = {item: layer for layer, row in enumerate(rows) for item in row}
    return Layout(
        layers=tuple(layers),
        offsets=tuple(offsets[number] for number in range(count)),
        routes=tuple(tuple((layer_of[one], offsets[one]) for one in bends) for bends in routes),
        depth=len(rows),
        width=max((offsets[row[-1]] + _size(row[-1], sizes) / 2 for row in rows if row), default=0),
    )


def _layers(count: int, edges: Edges) -> list[int]:
    """Return the layer of each box: the longest path to it. Edges that close a cycle lead back."""
    after: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for first, second in edges:
        after[first].append(second)
        waiting[second] += 1
    layers = [0] * count
    ready = deque(number for number in range(count) if not waiting[number])
    left = dict.fromkeys(range(count))
    while left:
        number = ready.popleft() if ready else next(iter(left))
        if number not in left:
            continue
        del left[number]
        for following in after[number]:
            if following in left:
                layers[following] = max(layers[following], layers[number] + 1)
                waiting[following] -= 1
                if not waiting[following]:
                    ready.append(following)
    return layers


def _with_bends(layers: Sequence[int], edges: Edges) -> tuple[list[list[int]], list[list[int]]]:
    """Return the members of each layer, and the bends of each edge, numbered after the boxes."""
    rows: list[list[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
    for number, layer in enumerate(layers):
        rows[layer].append(number)
    passed = [range(layers[first] + 1, layers[second]) for first, second in edges]
    if sum(map(len, passed)) > _MAX_BENDS:
        return rows, [[] for _ in edges]
    routes: list[list[int]] = []
    following = len(layers)
    for some in passed:
        routes.append([])
        for layer in some:
            rows[layer].append(following)
            routes[-1].append(following)
            following += 1
    return rows, routes


def _order(
    rows: list[list[int]], before: dict[int, list[int]], after: dict[int, list[int]]
) -> None:
    """Sort each layer by the mean position of the neighbors, forwards and backwards."""
    for _ in range(_ROUNDS):
        for near, sequence in ((after, range(len(rows) - 2, -1, -1)), (before, range(len(rows)))):
            for layer in sequence:
                other = layer + 1 if near is after else layer - 1
                if not 0 <= other < len(rows):
                    continue
                at = {item: number for number, item in enumerate(rows[other])}
                own = {item: float(number) for number, item in enumerate(rows[layer])}
                keys = {item: _mean(near.get(item, ()), at, own[item]) for item in rows[layer]}
                rows[layer].sort(key=keys.__getitem__)


def _mean(items: Sequence[int], at: dict[int, int] | dict[int, float], otherwise: float) -> float:
    known = [at[one] for one in items if one in at]
    return sum(known) / len(known) if known else otherwise


def _size(item: int, sizes: Sequence[float]) -> float:
    return sizes[item] if item < len(sizes) else _BEND_SIZE


def _spread(
    rows: Sequence[Sequence[int]],
    before: dict[int, list[int]],
    after: dict[int, list[int]],
    sizes: Sequence[float],
) -> dict[int, float]:
    """Return the offset of each box and bend: near its neighbors, without overlaps, from 0 on."""
    offsets: dict[int, float] = {}
    for row in rows:
        wanted = [_mean(before.get(item, ()), offsets, float(at)) for at, item in enumerate(row)]
        _settle(row, wanted, offsets, sizes)
    for row in reversed(rows):
        wanted = [_mean(after.get(item, ()), offsets, offsets[item]) for item in row]
        _settle(row, wanted, offsets, sizes)
    edge = min((offsets[row[0]] - _size(row[0], sizes) / 2 for row in rows if row), default=0.0)
    return {item: offset - edge for item, offset in offsets.items()}


def _settle(
    row: Sequence[int], wanted: Sequence[float], offsets: dict[int, float], sizes: Sequence[float]
) -> None:
    """Place a layer as near as possible to where its members should be."""
    if not row:
        return
    gaps = [(_size(one, sizes) + _size(two, sizes)) / 2 for one, two in pairwise(row)]
    down, up = [wanted[0]], [wanted[-1]]
    for gap, want in zip(gaps, wanted[1:], strict=True):
        down.append(max(want, down[-1] + gap))
    for gap, want in zip(reversed(gaps), reversed(wanted[:-1]), strict=True):
        up.append(min(want, up[-1] - gap))
    for item, low, high in zip(row, down, reversed(up), strict=True):
        offsets[item] = (low + high) / 2
