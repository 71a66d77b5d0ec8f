"""Redis' own story: it appends every change to a log before it confirms it, and here that is read.

What one script has changed stands there as one transaction. So the log says the same as triggers
would, in the order in which it happened; only the moment is that of reading, a little later.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import redis

from chaos.audit import Entry
from chaos.diary import real_time
from umbel.backends.redis.scripts import root_of

_ROOT = root_of("scenario")
_FINAL = ("succeeded", "buried", "cancelled", "expired")
_EVERY = 0.005

Command = Sequence[str]
Fields = dict[str, str]


class Memory:
    """What the commands of the log make of jobs, workers and pauses; says what has changed."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._hashes: dict[str, Fields] = {}
        self._before: dict[str, Fields] = {}
        """What the hashes were that the transaction at hand has touched, in that order."""
        self._owners: dict[str, str] = {}
        self._owned_before: dict[str, str] = {}
        self._epoch = 0
        self._at = 0.0

    def take(self, transaction: Sequence[Command], at: float) -> None:
        """Everything that one script did."""
        self._at = at
        self._before = {}
        self._owned_before = {}
        for name, *arguments in transaction:
            match name.upper(), arguments:
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
                case "INCR", [key] if key == f"{_ROOT}:epoch":
                    self._tell_all()
                    self._epoch += 1
                    self._tell("epoch", fence=self._epoch)
        self._tell_all()

    def _set(self, key: str, fields: Fields) -> None:
        self._touch(key)
        self._hashes.setdefault(key, {}).update(fields)
        if key.startswith(f"{_ROOT}:leases:"):
            for job in fields:
                self._owned_before.setdefault(job, self._owners.get(job, ""))
                self._owners[job] = key.removeprefix(f"{_ROOT}:leases:")

    def _touch(self, key: str) -> None:
        self._before.setdefault(key, dict(self._hashes.get(key, {})))

    def _tell_all(self) -> None:
        before, self._before = self._before, {}
        for key, old in before.items():
            new = self._hashes.get(key, {})
            kind, _, name = key.removeprefix(f"{_ROOT}:").partition(":")
            if kind == "job":
                self._tell_job(name, old, new)
            elif kind == "worker":
                self._tell_worker(name, old, new)
            elif kind == "pauses":
                self._tell_pauses(old, new)

    def _tell_job(self, job: str, old: Fields, new: Fields) -> None:
        was, now = _live(old), _live(new)
        after = {"job": job, "owner": self._owners.get(job, ""), "fence": _fence(new)}
        owner = self._owned_before.get(job, after["owner"])
        before = {"job": job, "owner": owner, "fence": _fence(old)}
        if now and not was:
            note = "|".join(new.get(field, "") for field in ("task", "queue", "unique"))
            handed = now == "running"  # in one step: published, and claimed for who waited
            waiting = {"owner": "", "fence": 0 if handed else after["fence"]}
            state = "queued" if handed else now
            self._tell("published", **{**after, **waiting}, state=state, note=note)
            if handed:
                self._tell("claimed", **after, state=now)
        elif was and not now:
            if new:
                state, note = new["state"], new.get("reason", "")
                worker = new.get("worker", "")
                self._tell("recorded", **{**after, "owner": worker}, state=state, note=note)
            who = before if was == "running" else {**before, "owner": ""}
            self._tell("left", **who, state=was)
        elif now == "running" and was != "running":
            self._tell("claimed", **after, state=now)
        elif was == "running" and now != "running":
            self._tell("released", **before, state=now)
        elif was == "running" and before != after:
            self._tell("stolen", **after, state=now, note=before["owner"])

    def _tell_worker(self, incarnation: str, old: Fields, new: Fields) -> None:
        if new and not old:
            self._tell("enlisted", owner=incarnation, note=new.get("name", ""))
        elif old and not new:
            self._tell("ended", owner=incarnation, note=old.get("name", ""))
        elif old.get("epoch", "0") != new.get("epoch", "0"):
            epoch = int(new["epoch"])
            self._tell("confirmed", owner=incarnation, fence=epoch, note=new.get("name", ""))

    def _tell_pauses(self, old: Fields, new: Fields) -> None:
        for name in new.keys() - old.keys():
            self._tell("paused", note=name.replace(":", "|", 1))
        for name in old.keys() - new.keys():
            self._tell("resumed", note=name.replace(":", "|", 1))

    def _tell(self, what: str, **known: Any) -> None:
        usual: dict[str, Any] = {"job": "", "owner": "", "fence": 0, "state": "", "note": ""}
        seq = len(self.entries) + 1
        self.entries.append(Entry(seq=seq, at=self._at, what=what, **(usual | known)))


class AppendLog:
    """The audit of a Redis: its log is read while it grows, by a thread of its own."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self._memory = Memory()
        self._place = 0
        self._seen = (0, 0.0)
        """How long the log was at the last look, and when that was."""
        self._over = threading.Event()
        self._reader = threading.Thread(target=self._follow, name="append-log", daemon=True)

    def put_up(self) -> None:
        self._reader.start()

    def so_far(self) -> list[Entry]:
        """Those that were read by now: the newest are missing."""
        return [*self._memory.entries]

    def entries(self) -> list[Entry]:
        """All of them; nothing may be written any more."""
        if not self._over.is_set():
            self._over.set()
            self._reader.join()
            for _ in range(2):
                self._read()
        return self._memory.entries

    def business(self) -> set[str]:
        """Nobody publishes in a transaction here."""
        return set()

    def fences(self) -> dict[str, int]:
        """Each record's fence, as the server has it."""
        with closing(self._client()) as client:
            prefix = f"{_ROOT}:job:"
            found: dict[str, int] = {}
            for key in client.scan_iter(f"{prefix}*", count=1000):
                state, fence = client.hmget(key, "state", "fence")
                if state in _FINAL:
                    found[key.removeprefix(prefix)] = int(fence or 0)
            return found

    def bring_forward(self) -> None:
        """Make the job due that is scheduled next, if nothing waits or runs."""
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
        """Whole transactions only, and none that has just come: a server that is killed may leave
        half of one, and drops it; and one whose disk is full takes back what did not fit."""
        for file in self._folder.glob("*.1.incr.aof"):
            with file.open("rb") as log:
                log.seek(self._place)
                size, at = self._seen
                self._seen = (file.stat().st_size, real_time())
                data = log.read(max(min(size, self._seen[0]) - self._place, 0))
            begin = self._place
            for transaction, end in transactions(data):
                self._memory.take(transaction, at)
                self._place = begin + end


def transactions(data: bytes) -> Iterator[tuple[list[Command], int]]:
    """What stands in a piece of log, and where each transaction ends in it."""
    place, several = 0, False
    found: list[Command] = []
    while (one := _command(data, place)) is not None:
        command, place = one
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
            yield found, place
            found = []


def _command(data: bytes, place: int) -> tuple[list[str], int] | None:
    """A command and where it ends; an empty one for a remark; None when it is not all there."""
    end = data.find(b"\r\n", place)
    if end < 0:
        return None
    if data[place : place + 1] == b"#":
        return [], end + 2
    many, place = int(data[place + 1 : end]), end + 2
    parts: list[str] = []
    for _ in range(many):
        end = data.find(b"\r\n", place)
        if end < 0:
            return None
        first, last = end + 2, end + 2 + int(data[place + 1 : end])
        if len(data) < last + 2:
            return None
        parts.append(data[first:last].decode(errors="replace"))
        place = last + 2
    return parts, place


def _live(fields: Fields) -> str:
    """The state of a job that lives."""
    state = fields.get("state", "")
    return "" if state in _FINAL else state


def _fence(fields: Fields) -> int:
    return int(fields.get("fence", "0"))
