"""Many schedules, for the scenario tests, in which no worker runs their jobs."""

import os

from umbel import Umbel

app = Umbel()


@app.task(queue="ticks")
def tick() -> None: ...


for number in range(int(os.environ.get("SCHEDULES", "1"))):
    app.schedule(f"s{number}", tick.s(), every=1, overlap="allow", catch_up="all")
