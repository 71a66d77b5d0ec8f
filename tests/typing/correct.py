"""Uses that a strict type checker accepts, and what it knows of each. Checked, never run."""

from __future__ import annotations

import pathlib
import sqlite3
from dataclasses import dataclass
from datetime import datetime
from typing import assert_type

from umbel import Handle, Retry, Signature, Umbel, Unique, step, task

app = Umbel("sqlite:///:memory:")


@dataclass
class Report:
    title: str
    pages: int


@app.task
def add(a: int, b: int = 0) -> int:
    return a + b


@app.task
async def fetch(url: str, *, tries: int = 3) -> bytes:
    return url.encode() * tries


@app.task(queue="mail", retry=Retry(10, first=1, factor=2, cap=120), timeout=30, priority=5)
async def send_mail(user: int, *addresses: str) -> None: ...


def title_of(report: Report) -> str:
    return report.title


@app.task(unique=title_of, track="state", retry=3, interruptible=True)
def render(report: Report) -> list[Report]:
    return [report]


@task(name="free", loop="trio")
async def free(**named: float) -> dict[str, float]:
    return named


def publish() -> None:
    assert_type(add(1, 2), int)
    assert_type(add.delay(1, 2), Handle[int])
    assert_type(add.delay(1), Handle[int])
    assert_type(add.delay(a=1, b=2), Handle[int])
    assert_type(add.delay(1, 2).get(timeout=5), int)
    assert_type(add.s(1, 2), Signature[int])
    assert_type(add.si(b=1, a=2), Signature[int])
    assert_type(add.s(1, 2).delay().get(), int)
    assert_type(fetch.delay("x", tries=1), Handle[bytes])
    assert_type(send_mail.delay(1, "a", "b"), Handle[None])
    assert_type(render.delay(Report("t", 1)).get(), list[Report])
    assert_type(free.delay(a=1.0, b=2), Handle[dict[str, float]])
    assert_type(app.publish_many([add.s(n, n) for n in range(10)]), list[Handle[int]])
    add.delay(1, 2).cancel()


def with_options(connection: object) -> None:
    call = add.options(
        queue="q",
        priority=9,
        delay=30,
        timeout=1.5,
        retry=Retry(3),
        unique=Unique("x", on_conflict="replace"),
        track="state",
        connection=connection,
        id="00000000-0000-7000-8000-000000000000",
    )
    assert_type(call.delay(1, 2), Handle[int])
    assert_type(add.options(not_before=datetime(2090, 1, 1), expires=5).delay(1).get(), int)
    assert_type(add.options(unique="x", retry=2).s(1), Signature[int])


async def publish_async() -> None:
    assert_type(await fetch("x"), bytes)
    assert_type(await add.adelay(1, 2), Handle[int])
    assert_type(await (await add.adelay(1, 2)), int)
    handle = await fetch.adelay("x")
    assert_type(handle, Handle[bytes])
    assert_type(await handle, bytes)
    assert_type(await handle.aget(timeout=1), bytes)
    assert_type(await fetch.s("x").adelay(), Handle[bytes])
    assert_type(await app.apublish_many([add.s(1)]), list[Handle[int]])


def handles_are_covariant(handle: Handle[bool]) -> Handle[int]:
    return handle


@app.task(interruptible=True, publishing="held")
def in_steps(connection: sqlite3.Connection) -> None:
    assert_type(step(load, 7), Report)
    assert_type(step(load, page=7), Report)
    assert_type(step(add, 1, 2), int)
    assert_type(step.named("page 7")(load, 7), Report)
    assert_type(step.transaction(save, 7), int)
    assert_type(step.named("save").transaction(save, page=7), int)
    assert_type(step.using(connection).transaction(save, 7), int)
    assert_type(step.named("save").using(connection).transaction(save, 7), int)


@app.task
async def in_async_steps(connection: sqlite3.Connection) -> None:
    assert_type(await step(aload, 7, title="x"), Report)
    assert_type(await step(fetch, "url", tries=2), bytes)
    assert_type(await step.named("page 7")(aload, 7), Report)
    assert_type(await step.threaded(load, 7), Report)
    assert_type(await step.transaction(asave, 7), int)
    assert_type(await step.using(connection).transaction(asave, 7), int)


def load(page: int) -> Report:
    return Report("t", page)


async def aload(page: int, *, title: str = "t") -> Report:
    return Report(title, page)


def save(connection: sqlite3.Connection, page: int) -> int:
    return page


async def asave(connection: sqlite3.Connection, page: int) -> int:
    return page


def included() -> None:
    app.include("shop.tasks", pathlib)
