"""The other side: the tasks that the programs in this folder ask for, run by a worker."""

from umbel import Umbel

app = Umbel()


@app.task
def add(a: int, b: int) -> int:
    return a + b
