"""Where a chaos run keeps its data: on a small disk, in SQLite or in a PostgreSQL of its own."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from servers import PrivatePostgres, _binaries

from chaos.disk import Disk, Quota, SmallDisk
from chaos.proxy import Proxy
from umbel import Umbel

_MEGABYTES = 512
_SMALL = """
max_connections = 300
shared_buffers = 32MB
min_wal_size = 32MB
max_wal_size = 64MB
"""


class NotHere(Exception):
    """This database cannot be run on this machine; the text says why."""


class Place:
    """A SQLite file. It has no server to restart and no line to cut."""

    name = "sqlite"

    def __init__(self, url: str, disk: Disk | None) -> None:
        self.url = url
        self.disk = disk
        self.server: PrivatePostgres | None = None
        self.proxy: Proxy | None = None

    @property
    def urls(self) -> list[str]:
        """Where workers and publishers connect to."""
        return [self.url]

    @property
    def without(self) -> str:
        """What cannot be tried here, in one line."""
        return ""

    def get_up(self) -> None:
        """Be there again, whatever has happened."""


class PostgresPlace(Place):
    """A server of the run's own, reached through a proxy by all workers."""

    name = "postgres"

    def __init__(self, server: PrivatePostgres, disk: Disk | None, seed: int) -> None:
        super().__init__(server.url, disk)
        self.server: PrivatePostgres = server
        self.proxy: Proxy = Proxy(server.port, seed)

    @property
    def urls(self) -> list[str]:
        return [self.url.replace(f":{self.server.port}/", f":{self.proxy.port}/"), self.url]

    @property
    def without(self) -> str:
        return "" if self.disk else "not tried: a full disk (no small file system can be mounted)"

    def get_up(self) -> None:
        self.proxy.be("fine")
        try:
            self.server._run("pg_ctl", "-D", str(self.server.folder / "data"), "status")
        except RuntimeError:
            self.server.start()


@contextmanager
def open_place(name: str, seed: int) -> Iterator[Place]:
    """A database with its schema, for the time of the block. Raises NotHere."""
    with _sqlite() if name == "sqlite" else _postgres(seed) as place:
        yield place


@contextmanager
def _sqlite() -> Iterator[Place]:
    disk = _small_disk() or Quota()
    place = Place(f"sqlite:///{disk.folder}/umbel.db", disk)
    try:
        asyncio.run(Umbel(place.url).site.migrate())
        yield place
    finally:
        disk.remove()


@contextmanager
def _postgres(seed: int) -> Iterator[Place]:
    binaries = _binaries()
    if binaries is None:
        raise NotHere("not run: no PostgreSQL server programs are installed here")
    disk = _small_disk()
    folder = disk.folder if disk else Path(tempfile.mkdtemp(prefix="umbel-pg-"))
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
    server = PrivatePostgres(folder, binaries)
    with (folder / "data" / "postgresql.conf").open("a") as conf:
        conf.write(_SMALL)
    server.start()
    place = PostgresPlace(server, disk, seed)
    try:
        asyncio.run(Umbel(place.url).site.migrate())
        yield place
    finally:
        place.proxy.close()
        with suppress(RuntimeError):
            server.stop("immediate")
        if disk:
            disk.remove()
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _small_disk() -> SmallDisk | None:
    try:
        return SmallDisk(_MEGABYTES)
    except PermissionError:
        return None
