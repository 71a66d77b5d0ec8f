"""Delay, unique jobs, progress, cancellation and expiry.

In one terminal:   umbel -A 05_everyday_options worker
In another:        python 05_everyday_options.py
"""

import asyncio
import time

from umbel import Umbel, Unique, current
from umbel.errors import DuplicateJob, JobCancelled, JobExpired

app = Umbel()


@app.task
def greet(name: str) -> str:
    return f"hello {name}"


@app.task(interruptible=True)
async def import_rows(rows: int) -> int:
    for row in range(rows):
        current.progress(row, of=rows)
        await asyncio.sleep(0.05)
    return rows


def main() -> None:
    began = time.monotonic()
    greeting = greet.options(delay=1).delay("later")
    print(f"{greeting.get(timeout=30)}, {time.monotonic() - began >= 1 and 'not before its time'}")

    first = import_rows.options(unique="import").delay(1000)
    try:
        import_rows.options(unique="import").delay(1000)
    except DuplicateJob as error:
        print("only one at a time:", error.existing == first.id)
    same = import_rows.options(unique=Unique("import", on_conflict="return")).delay(1000)
    print("or take the one that is there:", same.id == first.id)

    while (progress := first.record().progress) is None or progress[0] < 5:
        time.sleep(0.1)
    print("progress is counted of", int(progress[1] or 0))
    first.cancel("changed my mind")
    try:
        first.get(timeout=30)
    except JobCancelled as error:
        print("cancelled:", str(error).rpartition(": ")[2])

    stale = greet.options(delay=0.5, expires=0.1).delay("too late")
    try:
        stale.get(timeout=30)
    except JobExpired:
        print("expired, not run too late")


if __name__ == "__main__":
    main()
