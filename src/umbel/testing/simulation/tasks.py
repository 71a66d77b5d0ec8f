"""The jobs of a simulated run. Each follows a script that the seed determines."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from umbel.tasks import Registry, Retry, Run, Snooze, TaskOptions, current, running
from umbel.tasks.task import declare
from umbel.testing.simulation.loop import Lane
from umbel.testing.simulation.random_faults import SeededRandom

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
    """The number of runs that end like that; later runs return."""
    stop_seconds: float
    """Seconds that it takes to stop when it is asked to."""


class ScriptedError(Exception):
    """The error that a script raises."""


def write_script(rng: SeededRandom) -> Script:
    """Return a random script."""
    lease = rng.lease
    nap = rng.choose((0.01, 0.1, 0.5, 1.5, 2.5))
    naps = tuple(rng.between(0, nap * lease) for _ in range(int(rng.between(0, 3.5))))
    ending = rng.choose(("return",) * 14 + ("fail", "fail", "snooze", "exit", "die"))
    stop_seconds = rng.between(0, 0.5 * lease) if rng.chance(0.15) else 0.0
    return Script(naps, ending, int(rng.between(1, 4)), stop_seconds)


def registry() -> Registry:
    """Return the tasks that run scripts."""
    declared = {
        "steady": TaskOptions(retry=_SOON),
        "gentle": TaskOptions(retry=_SOON, interruptible=True),
        "hasty": TaskOptions(retry=_SOON, timeout=2.0, interruptible=True),
        "once": TaskOptions(retry=Retry(0), max_deaths=1),
    }
    made = Registry()
    for name in TASKS:
        made.add(declare(run_script, name, declared[name]))
    return made


async def run_script(number: int) -> int:
    """Run the script of a job in the current simulated process."""
    lane = asyncio.get_running_loop()
    assert isinstance(lane, Lane)
    process: Any = lane.owner
    script: Script = process.world.scripts[number]
    run = running.get()
    assert run is not None
    trace = process.world.auditor.started(process, run, process.world.server.snapshot)
    how = "stopped"
    try:
        await _act(process, script, number, run)
        how = "returned"
    except asyncio.CancelledError:
        if script.stop_seconds:
            await asyncio.sleep(script.stop_seconds)
        raise
    except (ScriptedError, Snooze, SystemExit) as error:
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
            raise ScriptedError(f"job {number}")
        case "snooze":
            raise Snooze(0.3)
        case "exit":
            raise SystemExit(3)
        case "die":
            process.world.rng.count("poison")
            process.crash("killed by its job")
            await asyncio.get_running_loop().create_future()
