"""The task that the programs in this folder publish. A worker runs it."""

from umbel import Umbel

app = Umbel()


@app.task
def add(a: int, b: int) -> int:
    return a + b
