"""Coroutines and threads: ``async def`` runs in the event loop, ``def`` in a thread.

In one terminal:   umbel -A 02_async_and_sync worker
In another:        python 02_async_and_sync.py
"""

import asyncio
import hashlib
import threading

from umbel import Umbel

app = Umbel()


@app.task
async def fetch(page: int) -> str:
    await asyncio.sleep(0.1)  # simulates a network request
    return f"page {page} from {threading.current_thread().name}"


@app.task
def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


async def main() -> None:
    pages = await app.apublish_many([fetch.s(number) for number in range(3)])
    for page in pages:
        text = await page
        short = await (await digest.adelay(text))
        print(text, "→", short)


if __name__ == "__main__":
    asyncio.run(main())
