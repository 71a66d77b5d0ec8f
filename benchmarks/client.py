"""One caller of one peer, in that peer's environment: ``python -m benchmarks.client PEER ACTION``.

It says on standard output when it is ready, waits for a line, does its work, says what came of
it, and waits for the end of its input before it parts: so the runner can read every meter while
the connections are open and nothing else happens.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import resource
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.peers.port import Peer, job

WARM = 20
SMALL = 10
"""The calls of a small canvas, which is run before the one that is measured."""
BULK = 1_000
_LOOK = 16
"""After so many jobs the time is looked at."""
_PATIENCE = 20.0
"""Seconds after which a result that has not come is a failure."""

Result = dict[str, Any]


async def one_by_one(peer: Peer, jobs: int, seconds: float) -> None:
    """Each job durable before the next is sent; by the sync call where there is one."""
    send = _one(peer)
    for number in range(WARM):
        await send(number)
    async with _handshake() as say:
        began, done = time.perf_counter(), 0
        while done < jobs and time.perf_counter() - began < seconds:
            for number in range(done, min(done + _LOOK, jobs)):
                await send(number)
            done = min(done + _LOOK, jobs)
        say(_rate(began, done, WARM))


def _one(peer: Peer) -> Callable[[int], Awaitable[None]]:
    async def sync(number: int) -> None:
        peer.send(job(number))

    async def awaited(number: int) -> None:
        await peer.asend(job(number))

    return sync if peer.offers("send") else awaited


async def threads(peer: Peer, jobs: int, seconds: float, callers: int = 16) -> None:
    """As many threads as told, each sending one by one."""
    gate, share = threading.Barrier(callers + 1), jobs // callers
    done = [0] * callers
    until = [0.0]

    def call(index: int) -> None:
        try:
            peer.send(job(index))
        except BaseException:
            gate.abort()  # else all the others would wait for this one
            raise
        gate.wait()
        gate.wait()
        while done[index] < share and time.perf_counter() < until[0]:
            for number in range(_LOOK):
                peer.send(job(number))
            done[index] += _LOOK

    crowd = [threading.Thread(target=call, args=(index,), daemon=True) for index in range(callers)]
    for thread in crowd:
        thread.start()
    gate.wait()
    async with _handshake() as say:
        began = time.perf_counter()
        until[0] = began + seconds
        gate.wait()
        for thread in crowd:
            thread.join()
        say(_rate(began, sum(done), callers))


async def in_bulk(peer: Peer, jobs: int, seconds: float) -> None:
    """A thousand jobs a call."""
    await peer.bulk([job(number) for number in range(WARM)])
    async with _handshake() as say:
        began, done = time.perf_counter(), 0
        while done < jobs and time.perf_counter() - began < seconds:
            await peer.bulk([job(number) for number in range(BULK)])
            done += BULK
        say(_rate(began, done, WARM))


async def fill(peer: Peer, jobs: int, seconds: float) -> None:
    """Put about so many jobs into the queue, as fast as the peer can."""
    if peer.offers("bulk"):
        await in_bulk(peer, jobs, seconds)
    elif peer.offers("send"):
        await threads(peer, jobs, seconds)
    else:
        await _at_once(peer, jobs, seconds)


async def _at_once(peer: Peer, jobs: int, seconds: float) -> None:
    """Several on their way together."""
    await asyncio.gather(*(peer.asend(job(number)) for number in range(_LOOK)))
    async with _handshake() as say:
        began, done = time.perf_counter(), 0
        while done < jobs and time.perf_counter() - began < seconds:
            await asyncio.gather(*(peer.asend(job(number)) for number in range(_LOOK)))
            done += _LOOK
        say(_rate(began, done, _LOOK))


async def every(peer: Peer, jobs: int, gap: float) -> None:
    """One job every ``gap`` seconds, to a worker that has nothing else to do."""
    send = _one(peer)
    await send(0)
    async with _handshake() as say:
        first = time.monotonic_ns()
        due = time.perf_counter()
        for number in range(jobs):
            due += gap
            await asyncio.sleep(due - time.perf_counter())
            await send(number)
        say({"first": first, "jobs": jobs})


async def there_and_back(peer: Peer, jobs: int, seconds: float) -> None:
    """One job after another, each with its result."""
    for number in range(3):
        await _trip(peer, number)
    async with _handshake() as say:
        took: list[float] = []
        until = time.perf_counter() + seconds
        while len(took) < jobs and time.perf_counter() < until:
            began = time.perf_counter()
            await _trip(peer, len(took))
            took.append(time.perf_counter() - began)
        say({"took": took})


async def _trip(peer: Peer, number: int) -> None:
    async with asyncio.timeout(_PATIENCE):
        await peer.round_trip(job(number))


async def canvas(peer: Peer, form: str, count: int, seconds: float) -> None:
    """One canvas and its result; before that, a small one of the same form."""
    small = 1 if form == "nested" else SMALL
    _check(peer.result(peer.canvas(form, small), seconds), form, small)
    peer.note_sizes()
    async with _handshake() as say:
        began = time.perf_counter()
        handle = peer.canvas(form, count)
        published = time.perf_counter() - began
        _check(peer.result(handle, seconds), form, count)
        took = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        peer.note_sizes()
        say({"seconds": took, "published": published, "peak": peak})


def _check(found: int, form: str, count: int) -> None:
    expected = 2**count if form == "nested" else count
    if found != expected:
        raise ValueError(f"{form} of {count}: the result is {found}, not {expected}")


def _rate(began: float, jobs: int, warm: int) -> Result:
    return {"jobs": jobs, "seconds": time.perf_counter() - began, "warm": warm}


@asynccontextmanager
async def _handshake() -> AsyncIterator[Callable[[Result], None]]:
    _say({"ready": True})
    sys.stdin.readline()
    cpu = time.process_time()
    yield lambda result: _say(result | {"cpu": time.process_time() - cpu})
    sys.stdin.read()


def _say(result: Result) -> None:
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


ACTIONS: dict[str, tuple[str, Callable[..., Awaitable[None]]]] = {
    "one_by_one": ("", one_by_one),
    "threads": ("send", threads),
    "in_bulk": ("bulk", in_bulk),
    "fill": ("", fill),
    "every": ("", every),
    "there_and_back": ("round_trip", there_and_back),
    "canvas": ("canvas", canvas),
}
"""What a caller can do, and the call a peer must offer for it."""


async def _act(peer: Peer, action: str, given: dict[str, Any]) -> None:
    needs, act = ACTIONS[action]
    if needs and not peer.offers(needs):
        _say({"offered": False})
        return
    await peer.open()
    try:
        await act(peer, **given)
    finally:
        await peer.close()


def main() -> None:
    name, action, *rest = sys.argv[1:]
    peer: Peer = importlib.import_module(f"benchmarks.peers.{name}").Adapter()
    if action == "work":
        peer.work()
    elif action == "install":
        peer.install()
    else:
        asyncio.run(_act(peer, action, json.loads(rest[0])))


if __name__ == "__main__":
    main()
