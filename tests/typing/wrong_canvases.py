"""Mistakes in canvases that a type checker finds. ``# E: codes`` is what mypy must say."""

from __future__ import annotations

from umbel import Handle, Signature, Umbel, chain, chunks, fork, group

app = Umbel("sqlite:///:memory:")


@app.task
def add(a: int, b: int) -> int:
    return a + b


@app.task
async def text(value: int) -> str:
    return str(value)


@app.task
def numbers(count: int) -> list[int]:
    return list(range(count))


def wrong_arguments() -> None:
    add.s(text.s(1).result, 2)  # E: call-overload
    add.s("x", 2)  # E: call-overload
    add.si(1)  # E: call-arg
    text.si(numbers.s(1).result)  # E: arg-type


def wrong_results() -> None:
    one: Handle[int] = chain(add.s(1, 2), text.s()).delay()  # E: assignment
    two: list[str] = group(add.s(1, 2)).delay().get()  # E: assignment
    three: list[int] = group(add.s(1, 2), errors="collect").delay().get()  # E: assignment
    four: list[int] = text.map([1]).delay().get()  # E: assignment
    five: Handle[str] = (add.s(1, 2) | fork(text.s())).delay()  # E: assignment
    six: list[str] = chunks(add, [(1, 2)], 2).delay().get()  # E: assignment
    print(one, two, three, four, five, six)


def wrong_options() -> None:
    group(add.s(1, 2), errors="ignore")  # E: call-overload
    group(add.s(1, 2), limit="two")  # E: call-overload
    chain(add.s(1, 2), text.s()).options(timeout=3)  # E: call-arg
    chain(add.s(1, 2), text.s()).options(priority="high")  # E: arg-type
    add.s(1, 2).on_error("x")  # E: arg-type
    chunks(add, [(1, 2)], "ten")  # E: call-overload
    chain(add)  # E: call-overload


@app.workflow
def described(number: int) -> Signature[str]:
    return text.s(number)


def wrong_workflows() -> None:
    described.delay("x")  # E: arg-type
    described.delay()  # E: call-arg
    described.si(1, 2)  # E: call-arg
    one: Handle[int] = described.delay(1)  # E: assignment
    two: int = described.delay(1).get()  # E: assignment
    print(one, two)
