"""Declare a task, publish a job, and wait for its result.

In one terminal:   umbel -A 01_hello worker
In another:        python 01_hello.py
"""

from umbel import Umbel

app = Umbel()


@app.task
def add(a: int, b: int) -> int:
    return a + b


if __name__ == "__main__":
    handle = add.delay(1, 2)
    print("1 + 2 =", handle.get(timeout=30))
