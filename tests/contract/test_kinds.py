"""A new kind of tasks is one more name in ``messages.KINDS``: no adapter has to know it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from integration.backends import opened

SCRIPT = """
import asyncio, sys
import umbel.messages
import umbel.messages.envelopes as envelopes

import umbel.messages.wire as wire
envelopes.KINDS = wire.KINDS = umbel.messages.KINDS = (*envelopes.KINDS, "gpu")
for name in [*sys.modules]:  # the rest of Umbel is imported anew, with this list
    if name.startswith("umbel") and not name.startswith("umbel.messages"):
        del sys.modules[name]

from umbel import Umbel
from umbel.backends import Demand, WorkerEntry
from umbel.messages import Body, Envelope, fresh_id

async def main(broker, store, namespace):
    app = Umbel(broker, store=store or None, namespace=namespace)
    await app.backend.migrate()
    roles = app.backend.open()
    entry = dict(incarnation="i", name="w", host="h", pid=1, queues=("default",), lease=60.0)
    await roles.registry.register(WorkerEntry(capacity={"io": 5, "cpu": 5, "gpu": 2}, **entry))
    body = Body(content_type="application/json", data=b'{"args": []}')
    jobs = [
        Envelope(id=fresh_id(), subject="t", body=body, namespace=namespace, kind=kind)
        for kind in ("gpu", "gpu", "gpu", "io", "")
    ]
    await roles.broker.publish(jobs)

    async def kinds(demand, count):
        found = []
        for _ in range(50):
            fetched = await roles.broker.fetch(["default"], demand, "i", 0.2)
            found += [one.envelope.kind for one in fetched]
            if len(found) >= count:
                break
        return sorted(found)

    first, second = await kinds(Demand.of(gpu=2), 2), await kinds(Demand.of(io=5, cpu=5), 2)
    print(first, second, await kinds(Demand.of(gpu=5), 1))
    await roles.close()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("backend", ["sqlite", "postgres", "redis", "rabbitmq+redis", "nats+redis"])
def test_a_worker_takes_jobs_of_a_new_kind_as_far_as_it_has_capacity(
    backend: str, tmp_path: Path
) -> None:
    with opened(backend, tmp_path, {}) as (_, near):
        if backend == "postgres":
            _admit_any_kind(near.store)
        command = [sys.executable, "-c", SCRIPT, near.broker, near.store or "", near.namespace]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "['gpu', 'gpu'] ['', 'io'] ['gpu']", done.stderr


def _admit_any_kind(url: str) -> None:
    """Do what the migration for a new kind does."""
    server, _, schema = url.partition("?schema=")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"alter domain {schema}.job_kind drop constraint job_kind_check")
