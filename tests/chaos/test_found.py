"""What chaos has found stays mended."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from umbel import Umbel, WorkerOptions


def test_a_worker_that_cannot_say_goodbye_stops_all_the_same(tmp_path: Path) -> None:
    app = Umbel(f"sqlite:///{tmp_path}/umbel.db")

    async def stop_while_the_file_is_locked() -> None:
        worker = app.worker(WorkerOptions(name="w"))
        running = asyncio.create_task(worker.run())
        await worker.started.wait()
        with closing(sqlite3.connect(f"{tmp_path}/umbel.db", isolation_level=None)) as other:
            other.execute("begin immediate")  # nobody else can write
            worker.stop()
            await running

    asyncio.run(stop_while_the_file_is_locked())
