"""The application as it is now: a new task, and a new parameter of an old one."""

from __future__ import annotations

from chaos import work
from chaos.work import MANY, logged
from umbel import Umbel, current

app = Umbel(namespace="scenario")
app.include(work)


@app.task(max_deaths=MANY)
def changed(size: int, colour: str = "red") -> int:
    with logged("thread"):
        return current.lease.fence


@app.task(max_deaths=MANY)
async def only_new() -> int:
    with logged("coroutine"):
        return current.lease.fence
