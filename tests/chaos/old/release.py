"""The application as it was: one task less, and one that knows one parameter less."""

from __future__ import annotations

from chaos import work
from chaos.work import MANY, logged
from umbel import Umbel, current

app = Umbel(namespace="scenario")
app.include(work)


@app.task(max_deaths=MANY)
def changed(size: int) -> int:
    with logged("thread"):
        return current.lease.fence
