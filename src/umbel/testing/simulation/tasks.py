"""The jobs of a simulated run: each follows a script that the seed wrote."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from umbel.tasks import Registry, Retry, Run, Snooze, TaskOptions, current, running
from umbel.tasks.task import declare
from umbel.testing.simulation.fate import Fate
from umbel.testing.simulation.loop import Lane

_SOON = Retry(2, first=0.2, cap=1.0)
TASKS = ("steady", "gentle", "hasty", "once")
QUEUES = ("default", "mail")
GATES: tuple[tuple[str, ...], ...] = (
    (),
    ("limit:few",),
    ("pool:p",),
    ("limit:few", "pool:p"),
    ("limit:t/by#ann", "limit:few"),
    ("pool:p", "rate:r"),
)


class Script(NamedTuple):
    """What a job does when it runs."""

    naps: tuple[float, ...]
    ending: str
    times: int
    """In so many runs it ends like that; after that it returns."""
    dying: float
    """Seconds it takes to stop when it is told to."""


class Mischief(Exception):
    """What a script raises."""


def write_script(fate: Fate) -> Script:
    """One of many possible jobs."""
    lease = fate.lease
    nap = fate.choose((0.01, 0.1, 0.5, 1.5, 2.5))
    naps = tuple(fate.between(0, nap * lease) for _ in range(int(fate.between(0, 3.5))))
    ending = fate.choose(("return",) * 14 + ("fail", "fail", "snooze", "exit", "die"))
    dying = fate.between(0, 0.5 * lease) if fate.chance(0.15) else 0.0
    return Script(naps, ending, int(fate.between(1, 4)), dying)


def registry() -> Registry:
    """The tasks that scripts are played under."""
    declared = {
        "steady": TaskOptions(retry=_SOON),
        "gentle": TaskOptions(retry=_SOON, interruptible=True),
        "hasty": TaskOptions(retry=_SOON, timeout=2.0, interruptible=True),
        "once": TaskOptions(retry=Retry(0), max_deaths=1),
    }
    made = Registry()
    for name in TASKS:
        made.add(declare(play, name, declared[name]))
    return made


async def play(number: int) -> int:
    """Play the script of a job in whatever process runs it."""
    lane = asyncio.get_running_loop()
    assert isinstance(lane, Lane)
    process: Any = lane.owner
    script: Script = process.world.scripts[number]
    run = running.get()
    assert run is not None
    trace = process.world.auditor.started(process, run, process.world.server.picture)
    how = "stopped"
    try:
        await _act(process, script, number, run)
        how = "returned"
    except asyncio.CancelledError:
        if script.dying:
            await asyncio.sleep(script.dying)
        raise
    except (Mischief, Snooze, SystemExit) as error:
        how = type(error).__name__.lower()
        raise
    finally:
        process.world.auditor.ended(trace, how)
    return number


async def _act(process: Any, script: Script, number: int, run: Run) -> None:
    for done, nap in enumerate(script.naps):
        current.progress(done, of=len(script.naps))
        await asyncio.sleep(nap)
    if process.world.plays[number] >= script.times:
        return
    process.world.plays[number] += 1
    match script.ending:
        case "fail":
            raise Mischief(f"job {number}")
        case "snooze":
            raise Snooze(0.3)
        case "exit":
            raise SystemExit(3)
        case "die":
            process.world.fate.count("poison")
            process.crash("killed by its job")
            await asyncio.get_running_loop().create_future()
