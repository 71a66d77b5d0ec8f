"""The audit of a Redis server, read from its append-only file.

Redis appends every change before it confirms it. All changes of one script form one transaction, so
the log gives the same entries as triggers would, in the same order. Their time is the time of
reading, which is slightly later.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import redis

from chaos.audit import Entry
from chaos.event_log import real_time
from umbel.backends.redis.scripts import root_of

_ROOT = root_of("scenario")
_FINAL = ("succeeded", "buried", "cancelled", "expired")
_EVERY = 0.005

Command = Sequence[str]
Fields = dict[str, str]


class LogReplay:
    """Applies the commands of the log to jobs, workers and pauses, and adds an entry per change."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._hashes: dict[str, Fields] = {}
        self._before: dict[str, Fields] = {}
        """The previous content of each hash that this transaction changes, in order of change."""
        self._owners: dict[str, str] = {}
        self._owned_before: dict[str, str] = {}
        self._at = 0.0

    def take(self, transaction: Sequence[Command], at: float) -> None:
        """Apply all commands of one script."""
        self._at = at
        self._before = {}
        self._owned_before = {}
        for name, *arguments in transaction:
            match name.upper(), arguments:
                case "HSET", [key, "pauses/", revision] if key == f"{_ROOT}:section_revisions":
                    self._record_changes()
                    self._record("epoch", fence=int(revision))
                case (("HSET" | "HMSET" | "HSETNX"), [key, *pairs]):
                    self._set(key, dict(zip(pairs[::2], pairs[1::2], strict=True)))
                case "HDEL", [key, *fields]:
                    self._touch(key)
                    for field in fields:
                        self._hashes.get(key, {}).pop(field, None)
                case (("DEL" | "UNLINK"), keys):
                    for key in keys:
                        self._touch(key)
                        self._hashes.pop(key, None)
        self._record_changes()

    def _set(self, key: str, fields: Fields) -> None:
        self._touch(key)
        self._hashes.setdefault(key, {}).update(fields)
        if key.startswith(f"{_ROOT}:leases:"):
            for job in fields:
                self._owned_before.setdefault(job, self._owners.get(job, ""))
                self._owners[job] = key.removeprefix(f"{_ROOT}:leases:")

    def _touch(self, key: str) -> None:
        self._before.setdefault(key, dict(self._hashes.get(key, {})))

    def _record_changes(self) -> None:
        before, self._before = self._before, {}
        for key, old in before.items():
            new = self._hashes.get(key, {})
            kind, _, name = key.removeprefix(f"{_ROOT}:").partition(":")
            if kind == "job":
                self._record_job(name, old, new)
            elif kind == "worker":
                self._record_worker(name, old, new)
            elif kind == "entry_revisions":
                self._record_pauses(old, new)

    def _record_job(self, job: str, old: Fields, new: Fields) -> None:
        was, now = _live(old), _live(new)
        after = {"job": job, "owner": self._owners.get(job, ""), "fence": _fence(new)}
        owner = self._owned_before.get(job, after["owner"])
        before = {"job": job, "owner": owner, "fence": _fence(old)}
        if now and not was:
            note = "|".join(new.get(field, "") for field in ("task", "queue", "unique"))
            handed = now == "running"  # published and claimed for a waiting worker in one step
            waiting = {"owner": "", "fence": 0 if handed else after["fence"]}
            state = "queued" if handed else now
            self._record("published", **{**after, **waiting}, state=state, note=note)
            if handed:
                self._record("claimed", **after, state=now)
        elif was and not now:
            if new:
                state, note = new["state"], new.get("reason", "")
                worker = new.get("worker", "")
                self._record("recorded", **{**after, "owner": worker}, state=state, note=note)
            who = before if was == "running" else {**before, "owner": ""}
            self._record("left", **who, state=was)
        elif now == "running" and was != "running":
            self._record("claimed", **after, state=now)
        elif was == "running" and now != "running":
            self._record("released", **before, state=now)
        elif was == "running" and before != after:
            self._record("stolen", **after, state=now, note=before["owner"])

    def _record_worker(self, incarnation: str, old: Fields, new: Fields) -> None:
        if new and not old:
            self._record("enlisted", owner=incarnation, note=new.get("name", ""))
        elif old and not new:
            self._record("ended", owner=incarnation, note=old.get("name", ""))
        elif old.get("epoch", "0") != new.get("epoch", "0"):
            epoch = int(new["epoch"])
            self._record("confirmed", owner=incarnation, fence=epoch, note=new.get("name", ""))

    def _record_pauses(self, old: Fields, new: Fields) -> None:
        """Record the pauses of operators: entries ``pauses/<scope>//<name>``."""
        for what, keys in (
            ("paused", new.keys() - old.keys()),
            ("resumed", old.keys() - new.keys()),
        ):
            for key in keys:
                scope, is_pause, name = key.removeprefix("pauses/").partition("//")
                if key.startswith("pauses/") and is_pause:
                    self._record(what, note=f"{scope}|{name}")

    def _record(self, what: str, **known: Any) -> None:
        usual: dict[str, Any] = {"job": "", "owner": "", "fence": 0, "state": "", "note": ""}
        seq = len(self.entries) + 1
        self.entries.append(Entry(seq=seq, at=self._at, what=what, **(usual | known)))


class AppendLog:
    """The audit of a Redis server: a thread reads the log while it grows."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self._replay = LogReplay()
        self._position = 0
        self._seen = (0, 0.0)
        """The length of the log at the last read, and the time of that read."""
        self._over = threading.Event()
        self._reader = threading.Thread(target=self._follow, name="append-log", daemon=True)

    def install(self) -> None:
        self._reader.start()

    def so_far(self) -> list[Entry]:
        """Return the entries read so far. The newest may be missing."""
        return [*self._replay.entries]

    def entries(self) -> list[Entry]:
        """Return all entries. Nothing may be written any more."""
        if not self._over.is_set():
            self._over.set()
            self._reader.join()
            for _ in range(2):
                self._read()
        return self._replay.entries

    def business(self) -> set[str]:
        """Return an empty set: publishers use no transactions on Redis."""
        return set()

    def fences(self) -> dict[str, int]:
        """Return each record's fence, as stored in the server."""
        with closing(self._client()) as client:
            prefix = f"{_ROOT}:job:"
            found: dict[str, int] = {}
            for key in client.scan_iter(f"{prefix}*", count=1000):
                state, fence = client.hmget(key, "state", "fence")
                if state in _FINAL:
                    found[key.removeprefix(prefix)] = int(fence or 0)
            return found

    def bring_forward(self) -> None:
        """Make the next scheduled job due, if no job is queued or running."""
        with closing(self._client()) as client:
            queues = client.smembers(f"{_ROOT}:queues")
            keys = [f"{_ROOT}:due:{queue}" for queue in queues]
            if client.zcard(f"{_ROOT}:live") > sum(client.zcard(key) for key in keys):
                return
            firsts = [
                (when, job, key)
                for key in keys
                for job, when in client.zrange(key, 0, 0, withscores=True)
            ]
            if firsts:
                _, job, key = min(firsts)
                client.zadd(key, {job: 0}, xx=True)
                client.publish(f"{_ROOT}:wake_ups", f"s:{_ROOT}:{key.rpartition(':')[2]}")

    def _client(self) -> Any:
        return redis.Redis.from_url(self._url, decode_responses=True)

    def _follow(self) -> None:
        while not self._over.wait(_EVERY):
            self._read()

    def _read(self) -> None:
        """Read complete transactions, except the newest.

        A killed server may leave an incomplete transaction and drops it when it restarts. A server
        with a full disk truncates what did not fit.
        """
        for file in self._folder.glob("*.1.incr.aof"):
            with file.open("rb") as log:
                log.seek(self._position)
                size, at = self._seen
                self._seen = (file.stat().st_size, real_time())
                data = log.read(max(min(size, self._seen[0]) - self._position, 0))
            begin = self._position
            for transaction, end in transactions(data):
                self._replay.take(transaction, at)
                self._position = begin + end


def transactions(data: bytes) -> Iterator[tuple[list[Command], int]]:
    """Yield the transactions in a piece of the log, each with the position where it ends."""
    position, several = 0, False
    found: list[Command] = []
    while (one := _command(data, position)) is not None:
        command, position = one
        match command[:1]:
            case ["MULTI"]:
                several = True
                continue
            case ["EXEC"]:
                several = False
            case []:
                continue
            case _:
                found.append(command)
        if not several:
            yield found, position
            found = []


def _command(data: bytes, position: int) -> tuple[list[str], int] | None:
    """Return a command and its end: an empty command for a comment, None if it is incomplete."""
    end = data.find(b"\r\n", position)
    if end < 0:
        return None
    if data[position : position + 1] == b"#":
        return [], end + 2
    many, position = int(data[position + 1 : end]), end + 2
    parts: list[str] = []
    for _ in range(many):
        end = data.find(b"\r\n", position)
        if end < 0:
            return None
        first, last = end + 2, end + 2 + int(data[position + 1 : end])
        if len(data) < last + 2:
            return None
        parts.append(data[first:last].decode(errors="replace"))
        position = last + 2
    return parts, position


def _live(fields: Fields) -> str:
    """Return the state of a job that is not finished, else an empty string."""
    state = fields.get("state", "")
    return "" if state in _FINAL else state


def _fence(fields: Fields) -> int:
    return int(fields.get("fence", "0"))
