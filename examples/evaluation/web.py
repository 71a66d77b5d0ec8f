"""The HTTP API (submit, watch, cancel, list), and a page that shows waiting and running jobs.

uvicorn web:site
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from service import app, client, evaluate, executors
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from umbel import State
from umbel.backends import JobFilter, PoolMember
from umbel.errors import BadArguments, UnknownJob
from umbel.messages import Record

MOST_SHOWN = 50
IN_LINE = (State.WAITING, State.QUEUED, State.SCHEDULED)  # scheduled: waits for a retry
FINISHED = (State.SUCCEEDED, State.BURIED, State.CANCELLED)


async def submit(request: Request) -> Response:
    """Publish an evaluation. It is durable when the response is sent."""
    handle = await evaluate.adelay((await request.json()).get("program"))
    return JSONResponse({"id": handle.id}, 202, {"Location": f"/evaluations/{handle.id}"})


async def show(request: Request) -> Response:
    """Return one evaluation. With ``?wait=20``, wait until it has finished, at most 20 seconds."""
    handle = app.handle(request.path_params["id"])
    wait = min(float(request.query_params.get("wait", 0)), 60)
    if wait > 0:
        with suppress(Exception):  # the record has the outcome
            await handle.aget(timeout=wait)
    return JSONResponse(as_json(await handle.arecord()))


async def cancel(request: Request) -> Response:
    """Cancel a waiting or running evaluation. ``cancelled`` is false if it had already finished."""
    return JSONResponse({"cancelled": await app.handle(request.path_params["id"]).acancel()})


async def overview(request: Request) -> Response:
    """Return the executors with their jobs, and the newest evaluations in each state."""
    operations = request.state.operations

    async def some(*states: State) -> list[dict[str, Any]]:
        wanted = JobFilter(task=evaluate.name, states=states, limit=MOST_SHOWN)
        return [as_json(record) for record in await operations.jobs(wanted)]

    waiting = await some(*IN_LINE)
    pools = [pool for pool in await operations.pools() if pool.name == executors.name]
    members = [member for pool in pools for member in pool.members]
    return JSONResponse(
        {
            "workers": sum(one.state != "silent" for one in await operations.workers()),
            "executors": await asyncio.gather(*map(state_of, members)),
            "in_line": max(sum(pool.waiting for pool in pools), len(waiting)),
            "waiting": waiting,
            "running": await some(State.RUNNING),
            "finished": await some(*FINISHED),
        }
    )


async def page(request: Request) -> Response:
    return FileResponse(Path(__file__).with_name("page.html"))


async def refuse(request: Request, error: Exception) -> Response:
    """Return 404 for an unknown job, and 422 for arguments that do not fit the task."""
    return JSONResponse({"error": str(error)}, 404 if isinstance(error, UnknownJob) else 422)


async def state_of(member: PoolMember) -> dict[str, Any]:
    """Return the state of an executor in the pool, and whether it answers now."""
    try:
        answers = (await client.get(f"{member.name}/health", timeout=1)).is_success
    except httpx.HTTPError:
        answers = False
    return {
        "url": member.name,
        "answers": answers,
        "condition": member.condition,
        "job": member.job,
        "fence": member.fence,
    }


def as_json(record: Record) -> dict[str, Any]:
    now = app.clock.now()
    return {
        "id": record.id,
        "state": record.state,
        "program": app.codec.decode(record.body)["args"][0],
        "verdict": record.result and app.codec.decode(record.result),
        "reason": record.failure.message if record.failure else record.reason,
        "executor": next((slot.member for slot in record.slots), None),
        "runs": [run.ended for run in record.attempts],
        "waited": record.started and record.started - record.created,
        "ran": now - (record.started or now) if record.state is State.RUNNING else record.ran,
        "age": (record.finished or now) - record.created,
    }


@asynccontextmanager
async def lifespan(site: Starlette) -> AsyncIterator[dict[str, Any]]:
    operations = app.operations()
    yield {"operations": operations}
    await operations.close()
    app.close()


site = Starlette(
    routes=[
        Route("/", page),
        Route("/evaluations", submit, methods=["POST"]),
        Route("/evaluations", overview),
        Route("/evaluations/{id}", show),
        Route("/evaluations/{id}", cancel, methods=["DELETE"]),
    ],
    exception_handlers={UnknownJob: refuse, BadArguments: refuse, ValueError: refuse},
    lifespan=lifespan,
)
