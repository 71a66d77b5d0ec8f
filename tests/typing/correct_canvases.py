"""Canvases that a strict type checker accepts, and what it knows of each. Checked, never run."""

from __future__ import annotations

from typing import Literal, assert_type

from umbel import Handle, NodeFailed, Signature, State, Umbel, chain, chord, chunks, fork, group
from umbel.graphs import Graph
from umbel.tasks.canvas import Chain

app = Umbel("sqlite:///:memory:")


@app.task
def add(a: int, b: int) -> int:
    return a + b


@app.task
async def text(value: int) -> str:
    return str(value)


@app.task
async def total(values: list[int]) -> int:
    return sum(values)


@app.task
def numbers(count: int) -> list[int]:
    return list(range(count))


@app.task
async def mixed(values: list[int | NodeFailed]) -> int:
    return len(values)


@app.task
def clean_up(failure: NodeFailed, folder: str = "") -> None: ...


def chains() -> None:
    assert_type(add.s(1), Signature[int])
    assert_type(chain(add.s(1, 2), text.s()).delay(), Handle[str])
    assert_type((add.s(1, 2) | text.s()).delay().get(), str)
    assert_type(chain(add.s(1, 2), add.s(3), add.s(4), add.s(5), text.s()).delay(), Handle[str])
    longer = add.s(1, 2) | add.s(3) | add.s(4) | add.s(5) | add.s(6) | add.s(7) | text.s()
    assert_type(longer.delay(), Handle[str])
    assert_type((add.s(1, 2) | fork(text.s())).delay(), Handle[int])
    assert_type((add.s(1, 2) | fork(text.s()) | text.s()).delay(), Handle[str])
    assert_type(chain(add.s(1, 2), fork(text.s())).delay(), Handle[int])
    assert_type(chain(add.s(1, 2), text.si(3)).delay(), Handle[str])


def groups(handle: Handle[int]) -> None:
    assert_type(group(add.s(1, 2), add.s(3, 4)).delay(), Handle[list[int]])
    assert_type(group([add.s(n, n) for n in range(3)]).delay(), Handle[list[int]])
    assert_type(group(add.s(n, n) for n in range(3)).delay(), Handle[list[int]])
    assert_type(group(handle, add.s(1, 2)).delay().get(), list[int])
    assert_type(group(add.s(1, 2), errors="collect").delay(), Handle[list[int | NodeFailed]])
    assert_type(group([add.s(1, 2)], errors="collect").delay(), Handle[list[int | NodeFailed]])
    assert_type(group([add.s(1, 2)], errors="cancel", limit=2).delay(), Handle[list[int]])
    assert_type((group(add.s(1, 2)) | total.s()).delay(), Handle[int])
    assert_type((group(add.s(1, 2), errors="collect") | mixed.s()).delay(), Handle[int])
    assert_type(chord([add.s(1, 2), add.s(3, 4)], total.s()).delay(), Handle[int])
    assert_type(group(group(add.s(1, 2)), group(add.s(3, 4))).delay(), Handle[list[list[int]]])


def maps() -> None:
    assert_type(text.map([1, 2]).delay(), Handle[list[str]])
    assert_type(text.map(numbers.s(3)).delay(), Handle[list[str]])
    assert_type((numbers.s(3) | text.map()).delay().get(), list[str])
    assert_type(add.starmap([(1, 2)]).delay(), Handle[list[int]])
    assert_type(text.map([1], errors="collect").delay(), Handle[list[str | NodeFailed]])
    assert_type(add.starmap([(1, 2)], errors="collect").delay(), Handle[list[int | NodeFailed]])
    assert_type(chunks(add, [(1, 2)], 10).delay(), Handle[list[int]])
    assert_type(chunks(add.s(2), [(1,)], 10).delay(), Handle[list[int]])
    assert_type(chunks(add, [(1, 2)], 10, errors="collect").delay(), Handle[list[int | NodeFailed]])


def edges() -> None:
    assert_type(add.s(1, 2).result, int)
    assert_type(group(add.s(1, 2)).result, list[int])
    assert_type(add.s(add.s(1, 2).result, 3).delay(), Handle[int])
    assert_type(total.s(group(add.s(1, 2)).result), Signature[int])
    assert_type(total.s([add.s(1, 2).result, 3]), Signature[int])
    assert_type(text.map(numbers.s(3).result).delay(), Handle[list[str]])


def handlers_and_options() -> None:
    assert_type(add.s(1, 2).on_error(clean_up.s()), Signature[int])
    handled = chain(add.s(1, 2), text.s()).on_error(clean_up.s("folder"))
    assert_type(handled.options(priority=3, unique="x").delay(), Handle[str])
    assert_type(group(add.s(1, 2)).on_error(chain(text.s(), text.s())).delay(), Handle[list[int]])


async def awaited() -> None:
    assert_type(await (await chain(add.s(1, 2), text.s()).adelay()), str)
    assert_type(await (await group(add.s(1, 2)).adelay()), list[int])


def graphs(handle: Handle[int]) -> None:
    assert_type(handle.graph, Graph)
    assert_type(handle.graph.nodes[0].state, State | Literal["skipped"])


@app.workflow
def doubled(number: int) -> Signature[int]:
    return add.s(number, number)


@app.workflow(name="described", deadline=60)
def described(number: int, unit: str = "") -> Chain[str]:
    return chain(add.s(number, 1), text.s())


async def workflows() -> None:
    assert_type(doubled.delay(1), Handle[int])
    assert_type(doubled.delay(number=1).get(), int)
    assert_type(await described.adelay(1, unit="m"), Handle[str])
    assert_type(described.options(delay=5).delay(1), Handle[str])
    assert_type(chain(doubled.s(1), text.s()).delay(), Handle[str])
    assert_type(chain(add.s(1, 2), described.si(3)).delay(), Handle[str])
    assert_type(doubled.s(1).result, int)
