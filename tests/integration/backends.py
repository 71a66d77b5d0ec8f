"""Every broker and pair for which this machine has a server. Each test has its own namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

from integration.running import HOST, nats, postgres_schema, rabbitmq, redis
from umbel import Umbel
from umbel.backends import JobFilter
from umbel.messages import fresh_id

PORTS = {"postgres": 5432, "redis": 6379, "rabbitmq": 5672, "nats": 4222}
BACKENDS = (
    "sqlite",
    "postgres",
    "redis",
    "rabbitmq+redis",
    "rabbitmq+postgres",
    "nats+redis",
    "nats+sqlite",
)
"""A broker that is its own store, or a broker and its store."""


class Backend:
    """The URLs and the namespace of one test, and access to the jobs in its store."""

    def __init__(self, broker: str, store: str, namespace: str) -> None:
        self.broker = broker
        self.store = store
        self.namespace = namespace

    def ids(self) -> list[str]:
        """Return the ids of all jobs in the store, sorted."""

        async def ask() -> list[str]:
            operations = Umbel(self.broker, store=self.store, namespace=self.namespace).operations()
            try:
                return [job.id for job in await operations.jobs(JobFilter(limit=1_000_000))]
            finally:
                await operations.close()

        return sorted(asyncio.run(ask()))


@contextmanager
def opened(
    kind: str, folder: Path, ports: Mapping[str, int] | None = None
) -> Iterator[tuple[Backend, Backend]]:
    """One of ``BACKENDS``, as publishers reach it and as the test does.

    ``ports`` are those of proxies; the first of the two is reached through them.
    """
    used = {**PORTS, **(ports or {})}
    namespace = f"t{fresh_id()[-12:]}"
    with ExitStack() as stack:
        given = [stack.enter_context(_SERVERS[name](namespace, folder)) for name in kind.split("+")]
        plain = Backend(given[0], given[-1], namespace)
        far = Backend(*(_through(url, used) for url in (given[0], given[-1])), namespace)
        yield far, plain


def _through(url: str, used: Mapping[str, int]) -> str:
    for name, port in PORTS.items():
        url = url.replace(f"{HOST}:{port}", f"{HOST}:{used[name]}")
    return url


_SERVERS: dict[str, Callable[[str, Path], AbstractContextManager[str]]] = {
    # The first call makes the file.
    "sqlite": lambda namespace, folder: nullcontext(f"sqlite:///{folder}/umbel.db"),
    "postgres": lambda namespace, folder: postgres_schema(),
    "redis": lambda namespace, folder: redis(namespace),
    "rabbitmq": lambda namespace, folder: rabbitmq(),
    "nats": lambda namespace, folder: nats(namespace),
}
