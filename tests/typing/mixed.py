"""A batch of calls of different tasks, which a strict type checker has to accept."""

from __future__ import annotations

from umbel import Handle, Umbel

app = Umbel("sqlite:///:memory:")


@app.task
def number() -> int:
    return 1


@app.task
async def text() -> str:
    return ""


def publish() -> None:
    app.publish_many([number.s(), text.s()])
    calls = [number.s(), text.s()]
    app.publish_many(calls)
    handles: list[Handle[int | str]] = app.publish_many([number.s(), text.s()])
    assert handles
