"""The application that worker, router and publisher processes with wrong clocks run."""

from __future__ import annotations

import os
import sys

from umbel import Retry, Umbel, current

app = Umbel(namespace=os.environ.get("UMBEL_NAMESPACE"))


@app.task
def add(one: int, other: int) -> int:
    return one + other


@app.task(retry=Retry(3, first=0.5, factor=1))
def fail_once() -> int:
    if current.job.attempt == 1:
        raise RuntimeError("the first attempt fails")
    return current.job.attempt


if __name__ == "__main__":  # a publisher: prints the ids of its jobs
    calls = [
        add.options(expires=30).s(1, 1),
        add.options(delay=0.5, expires=60).s(2, 2),
        add.options(delay=3600).s(3, 3),
    ]
    print(*(handle.id for handle in app.publish_many(calls)))
    app.close()
    sys.exit(0)
