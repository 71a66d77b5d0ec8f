"""Mistakes that a type checker finds where they are made. Each line says with which code.

Checked, never run: ``# E: codes`` is what mypy must say of the line, and it must say nothing else.
"""

from __future__ import annotations

from pathlib import Path

from umbel import Handle, Retry, Umbel, Unique, WorkerOptions, step, task

app = Umbel("sqlite:///:memory:")


@app.task
def add(a: int, b: int) -> int:
    return a + b


@app.task(queue="mail", retry=Retry(3))
async def mail(user: int, *, subject: str) -> bytes:
    return subject.encode() * user


@task
def free(flag: bool) -> None: ...


def arguments() -> None:
    add(1, "2")  # E: arg-type
    add.delay(1, "2")  # E: arg-type
    add.delay(1)  # E: call-arg
    add.delay(1, 2, 3)  # E: call-arg
    add.delay(1, c=2)  # E: call-arg
    add.delay(None, 2)  # E: arg-type
    add.s("1", 2)  # E: call-overload
    add.si(1)  # E: call-arg
    mail.delay(1, "subject")  # E: call-arg
    mail.delay(1, subject=2)  # E: arg-type
    free.delay("yes")  # E: arg-type
    add.options(queue="q").delay(1, "2")  # E: arg-type


def options() -> None:
    add.options(prioritty=1)  # E: call-arg
    add.options(priority="high")  # E: arg-type
    add.options(delay="soon")  # E: arg-type
    add.options(not_before=5)  # E: arg-type
    add.options(retry="often")  # E: arg-type
    Unique("x", on_conflict="explode")  # E: arg-type
    Retry("ten")  # E: arg-type
    WorkerOptions(queues="default")  # E: arg-type
    Umbel("sqlite:///x.db", deadline="2 s")  # E: arg-type
    app.include(5)  # E: arg-type


@app.task(queue=5)  # E: call-overload untyped-decorator
def wrong_queue() -> None: ...


@app.task(que="mail")  # E: call-overload untyped-decorator
def wrong_option() -> None: ...


def results() -> None:
    text: str = add.delay(1, 2).get()  # E: assignment
    handle: Handle[str] = add.delay(1, 2)  # E: assignment
    data: str = mail.delay(1, subject="s").get()  # E: assignment
    many: list[Handle[str]] = app.publish_many([add.s(1, 2)])  # E: list-item
    add.delay(1, 2).result()  # E: attr-defined
    print(text, handle, data, many)


async def async_results() -> None:
    text: str = await (await mail.adelay(1, subject="s"))  # E: assignment
    await mail.adelay("1", subject="s")  # E: arg-type
    await add.adelay(1)  # E: call-arg
    handle: Handle[int] = mail.adelay(1, subject="s")  # E: assignment
    number: int = await mail(1, subject="s")  # E: assignment
    print(text, handle, number)


def load(page: int) -> bytes:
    return bytes(page)


async def aload(page: int) -> bytes:
    return bytes(page)


def save(connection: Path, page: int) -> int:
    return page


async def steps() -> None:
    step(load, "7")  # E: call-overload
    step(load)  # E: call-overload
    step(load, 7, tries=2)  # E: arg-type call-arg unused-coroutine
    text: str = step(load, 7)  # E: assignment
    data: bytes = step(aload, 7)  # E: assignment
    await step(aload, "7")  # E: call-overload
    await step.threaded(load, "7")  # E: arg-type
    step.named(7)  # E: arg-type
    step.transaction(save, "7")  # E: call-overload
    step.transaction(save)  # E: call-overload
    step.using("a connection").transaction(save, 7)  # E: call-overload
    number: str = step.using(Path()).transaction(save, 7)  # E: assignment
    print(text, data, number)


@app.task(interruptible=True, publishing="later")  # E: call-overload untyped-decorator
def wrong_publishing() -> None: ...
