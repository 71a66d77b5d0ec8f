"""What each page shows, as plain data. The HTTP interface returns the same data as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, cast, get_args

import anyio
import msgspec
from msgspec.structs import replace

from umbel.backends import Gate, JobFilter
from umbel.charts import ChartRange, TaskTotals
from umbel.control import ROLES
from umbel.dashboard.filters import JOB_FILTERS, PAGE_JOBS, STATES, job_search
from umbel.dashboard.graph_pages import GRAPH_PAGES, graph_place
from umbel.dashboard.requests import MAX_BULK_JOBS
from umbel.dashboard.views import Page, View, form_fields
from umbel.errors import ConfigurationError, UnknownTask
from umbel.messages import (
    ROUTE_PREFIX,
    WORKER_RULE_PREFIX,
    Record,
    State,
    route_key,
    rule_of,
)
from umbel.operations import (
    LIVE_STATES,
    BuriedGroup,
    JobSearch,
    Operations,
    PoolView,
    QueueView,
    TaskView,
    WorkerView,
    body_value,
    group_buried,
)
from umbel.operations import read_overview as overview
from umbel.tasks import Task
from umbel.tasks.fingerprints import fingerprint, python_version

_SEARCH_WINDOW = 20_000
_SEARCH_SECONDS = 0.1
_COUNT_SECONDS = 3.0
_TASK_WINDOW = 1_000
"""Of so many finished jobs, the run times of tasks are shown."""
_BURIED_WINDOW = 3_000
_MAX_GATES = 200
_WORKER_JOBS = 20
_GATE_JOBS = 2_000
_MAX_TOKENS = 10_000


# --- overview --------------------------------------------------------------------------------


async def read_overview(view: View) -> dict[str, Any]:
    """Return problems, totals, and what happened lately."""
    span = view.choice("range", get_args(ChartRange), "15m")
    found = await overview(view.operations, cast(ChartRange, span), view.address)
    tasks = found.numbers.tasks
    running = found.running_workers
    return {
        "problems": msgspec.to_builtins(found.problems),
        "totals": found.totals,
        "workers": len(running),
        "slots": sum(worker.io + worker.cpu for worker in running),
        "buried": found.buried,
        "buried_is_more": found.buried_is_more,
        "groups": _groups(found.groups[:5], view),
        "pauses": [_pause(pause) for pause in found.pauses],
        "range": span,
        "ranges": get_args(ChartRange),
        "points": msgspec.to_builtins(found.numbers.points),
        "slowest": msgspec.to_builtins(sorted(tasks, key=_slowness)[:5]),
        "failing": msgspec.to_builtins(sorted(filter(_fails, tasks), key=_failing)[:5]),
        "has_jobs": bool(found.queues) or bool(await view.operations.jobs(JobFilter(limit=1))),
        "tasks": [task.name for task in view.app.registry][:50],
    }


def _slowness(task: TaskTotals) -> float:
    return -(task.p95 or 0.0)


def _fails(task: TaskTotals) -> bool:
    return task.failures > 0


def _failing(task: TaskTotals) -> float:
    return -task.failures / task.runs


async def _pauses(operations: Operations, scope: str, name: str) -> list[dict[str, Any]]:
    """Return the pauses that stop the jobs of a task, a gate or a worker."""
    found = await operations.pauses()
    return [
        _pause(one) for one in found if one.scope == "all" or (one.scope, one.name) == (scope, name)
    ]


def _pause(pause: Any) -> dict[str, Any]:
    return {
        "scope": pause.scope,
        "name": pause.name,
        "reason": pause.reason,
        "since": pause.since,
        "by_deployment": bool(pause.holder),
    }


# --- queues and workers ----------------------------------------------------------------------


async def read_queues(view: View) -> dict[str, Any]:
    """Return all queues, the oldest waiting job first."""
    queues = await view.operations.queues()
    found = [_queue(queue) for queue in queues]
    return {"queues": sorted(found, key=lambda one: (-(one["oldest"] or 0.0), one["name"]))}


async def read_queue(view: View) -> dict[str, Any]:
    """Return one queue and its newest live jobs."""
    name = view.path["name"]
    queues = [queue for queue in await view.operations.queues() if queue.name == name]
    live = tuple(state for state in State if not state.finished)
    jobs = await view.operations.search(
        JobSearch(wanted=JobFilter(queue=name, states=live, limit=PAGE_JOBS))
    )
    visibility = view.visibility
    return {
        "name": name,
        "queue": _queue(queues[0]) if queues else None,
        "jobs": [visibility.row(job) for job in jobs.jobs],
    }


def _queue(queue: QueueView) -> dict[str, Any]:
    return {
        **{name: getattr(queue, name) for name in ("name", *LIVE_STATES, "oldest", "workers")},
        "pauses": [_pause(pause) for pause in queue.pauses],
    }


async def read_workers(view: View) -> dict[str, Any]:
    """Return the workers and the jobs that they run."""
    workers = await view.operations.workers()
    retiring = {one.index for one in await view.operations.worker_indexes() if one.retiring}
    running = await view.operations.jobs(JobFilter(states=(State.RUNNING,), limit=500))
    by_worker: dict[str, list[Record]] = {}
    for job in running:
        by_worker.setdefault(job.worker or "", []).append(job)
    pauses = [one for one in await view.operations.pauses() if one.scope in ("worker", "all")]
    return {
        "pauses": [_pause(pause) for pause in pauses],
        "workers": [
            {
                **msgspec.to_builtins(worker),
                "slots": worker.io + worker.cpu,
                "retiring": worker.index in retiring,
                "pauses": [_pause(one) for one in pauses if one.name == worker.name],
                **_running_jobs(by_worker.get(worker.name, []), worker),
            }
            for worker in workers
        ],
    }


def _running_jobs(jobs: list[Record], worker: WorkerView) -> dict[str, Any]:
    """Return the first jobs that a worker runs, and its busy slots by kind."""
    cpu = sum(job.kind == "cpu" for job in jobs)
    return {
        "jobs": [
            {"id": job.id, "task": job.task, "started": job.started, "queue": job.queue}
            for job in jobs[:_WORKER_JOBS]
        ],
        "more_jobs": max(0, worker.running - _WORKER_JOBS),
        "busy_io": max(0, worker.running - cpu),
        "busy_cpu": cpu,
    }


# --- jobs ------------------------------------------------------------------------------------


async def read_jobs(view: View) -> dict[str, Any]:
    """Return the newest jobs that match, and where the search continues."""
    query = view.query
    visibility = view.visibility
    has_texts = any(query.get(name, "").strip() for name in ("error", "text"))
    if has_texts and not visibility.may_search_texts:
        raise ConfigurationError(
            "error, text: viewers may not search texts while fields are masked; ask an operator"
        )
    search = replace(job_search(query), window=_SEARCH_WINDOW)
    part = replace(search, after=query.get("after", ""), seconds=_SEARCH_SECONDS)
    found = await view.operations.search(part)
    return {
        "jobs": [visibility.row(job) for job in found.jobs],
        "state": query.get("state", "") or "all",
        "filters": {name: query.get(name, "") for name in JOB_FILTERS},
        "after": found.after,
        "read": found.read,
        "is_cut": found.is_cut,
        "matching": await _count(view.operations, search) if query.get("count") else None,
        "states": STATES,
        "tasks": sorted(task.name for task in view.app.registry),
    }


async def _count(operations: Operations, search: JobSearch) -> dict[str, Any]:
    """Return how many jobs match, up to the number that an action changes."""
    wanted = replace(search.wanted, limit=MAX_BULK_JOBS)
    counted = replace(search, wanted=wanted, seconds=_COUNT_SECONDS, with_values=False)
    found = await operations.search(counted)
    return {"count": len(found.jobs), "is_more": found.after is not None}


async def read_job(view: View) -> dict[str, Any]:
    """Return one job with its history, its steps, and why it does not start."""
    operations = view.operations
    record = await operations.job(view.path["id"])
    return {
        "job": view.visibility.job(record),
        "timeline": _timeline(record),
        "route": _route_of(record),
        "graph": graph_place(record),
        "hindrances": await operations.hindrances(record, view.address),
        "steps": [
            {name: getattr(step, name) for name in ("number", "name", "seconds", "finished")}
            for step in await operations.steps(record.id)
        ]
        if view.visibility.may_search_texts
        else [],
        "editable": body_value(record.body, view.app.codec) if view.user.may("operator") else None,
    }


def _route_of(record: Record) -> str | None:
    """Return the key of the route by which a live job goes to its worker; None if it has none."""
    gates = (record.gate or "", *(slot.gate for slot in record.slots))
    return next((route_key(gate) for gate in gates if gate.startswith(ROUTE_PREFIX)), None)


def _timeline(record: Record) -> list[dict[str, Any]]:
    """Return the waits and runs of a job in order; no wait is shorter than 0 s."""
    parts: list[dict[str, Any]] = [{"what": "published", "at": record.created}]
    before = record.created
    for attempt in record.attempts:
        parts.append({"what": "wait", "seconds": max(0.0, attempt.started - before)})
        parts.append(
            {
                "what": "run",
                "number": attempt.number,
                "ended": attempt.ended,
                "seconds": max(0.0, attempt.finished - attempt.started),
            }
        )
        before = attempt.finished
    state = record.state
    if not state.finished:
        since = record.started if state is State.RUNNING else before
        parts.append({"what": state.value, "since": since, "gate": record.gate})
    else:
        parts.append({"what": state.value, "at": record.finished})
    return parts


# --- buried jobs -----------------------------------------------------------------------------


async def read_buried(view: View) -> dict[str, Any]:
    """Return the newest buried jobs, grouped by task and error."""
    wanted = JobFilter(states=(State.BURIED,), limit=_BURIED_WINDOW)
    search = JobSearch(wanted=wanted, window=_BURIED_WINDOW, with_values=False)
    found = await view.operations.search(search)
    return {
        "groups": _groups(group_buried(found.jobs), view),
        "read": len(found.jobs),
        "is_more": found.after is not None,
        "max_jobs": MAX_BULK_JOBS,
    }


def _groups(groups: Iterable[BuriedGroup], view: View) -> list[dict[str, Any]]:
    hide = view.visibility.error
    return [msgspec.to_builtins(group) | {"error": hide(group.error)} for group in groups]


# --- schedules, gates, routes, deployments, tasks, audit -------------------------------------


async def read_schedules(view: View) -> dict[str, Any]:
    """Return all schedules, the next one first."""
    found = [
        {
            "name": one.name,
            "state": one.state,
            "task": one.task,
            "rule": one.plan.timing.describe(),
            "origin": one.origin,
            "next": one.next,
            "last": one.last,
            "published": one.published,
            "missed": one.missed,
            "skipped": one.skipped,
            "changes": sorted(one.changes),
            "changed_by": one.changed_by,
            "reason": one.reason,
        }
        for one in await view.operations.schedules.all()
    ]
    return {"schedules": sorted(found, key=lambda one: (one["next"] is None, one["next"] or 0))}


async def read_schedule(view: View) -> dict[str, Any]:
    """Return one schedule with its next times and its last ticks."""
    name = view.path["name"]
    schedules = view.operations.schedules
    one = await schedules.show(name)
    history = await schedules.history(name)
    return {
        "name": name,
        "schedule": msgspec.to_builtins(one),
        "rule": one.plan.timing.describe(),
        "zone": one.plan.timing.zone,
        "defined_rule": one.defined.timing.describe(),
        "next_times": await schedules.next_times(name, 5),
        "history": [
            msgspec.to_builtins(line) | {"reason": view.visibility.error(line.reason)}
            for line in history[:20]
        ],
    }


async def read_gates(view: View) -> dict[str, Any]:
    """Return limits, rates and pools: what is held, and how many jobs wait."""
    gates = await view.operations.gates(limit=_MAX_GATES)
    pools = await view.operations.pools()
    found = [_gate_document(gate) for gate in gates if gate.kind != "pool"]
    return {
        "gates": sorted(found, key=lambda gate: (-gate["waiting"], gate["key"])),
        "pools": [_pool(pool) for pool in pools],
        "is_more": len(gates) >= _MAX_GATES,
    }


def _pool(pool: PoolView) -> dict[str, Any]:
    """Return a pool. The data of its members may be secret, and no page needs them."""
    names = ("name", "condition", "job", "failures")
    members = [{name: getattr(one, name) for name in names} for one in pool.members]
    document: dict[str, Any] = msgspec.to_builtins(pool)
    return document | {"members": members}


async def read_gate(view: View) -> dict[str, Any]:
    """Return one gate: the jobs that hold its slots, and the first ones that wait."""
    key = view.path["key"]
    states = (State.RUNNING, State.WAITING)
    wanted = JobFilter(states=states, limit=_GATE_JOBS)
    found = await view.operations.search(JobSearch(wanted=wanted, with_values=False))
    holders: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    for job in found.jobs:
        entry = {"id": job.id, "task": job.task, "state": job.state.value}
        if any(slot.gate == key for slot in job.slots):
            holders.append(entry | {"since": job.started, "worker": job.worker})
        elif job.gate == key:
            waiting.append(entry | {"since": job.waiting_since})
    waiting.sort(key=lambda one: one["since"] or 0.0)
    gate = await _gate(view.operations, key)
    return {
        "key": key,
        "pauses": await _pauses(view.operations, "gate", key),
        "gate": None if gate is None else _gate_document(gate),
        # The store lists the newest jobs first, so the first in line may be beyond them.
        "is_cut": found.after is not None,
        "holders": holders[:50],
        "waiting": waiting[:50],
    }


async def _gate(operations: Operations, key: str) -> Gate | None:
    """Return a gate; of a token that no job uses, with the numbers of its rule."""
    rule = rule_of(key)
    gates = {gate.key: gate for gate in await operations.gates(rule, limit=_MAX_TOKENS)}
    if key in gates or rule not in gates:
        return gates.get(key)
    return replace(gates[rule], key=key, held=0, waiting=0)


def _gate_document(gate: Gate) -> dict[str, Any]:
    """Return what is shown of a gate, and how operators can change its rule."""
    rule = rule_of(gate.key)
    is_of_worker = rule.startswith(WORKER_RULE_PREFIX)
    return {
        **msgspec.to_builtins(gate),
        "rule": rule,
        "is_of_worker": is_of_worker,
        "change": None if is_of_worker else _CHANGES.get(gate.kind),
    }


_CHANGES = {"limit": "set-limit", "rate": "set-rate"}
"""The action that changes a rule of each kind."""


async def read_routes(view: View) -> dict[str, Any]:
    """Return the live routes, newest first, or those of one key."""
    key = view.query.get("key") or None
    routes = await view.operations.routes(key=key, limit=200)
    indexes = {one.index: one.worker for one in await view.operations.worker_indexes()}
    return {
        "key": key or "",
        "routes": [
            msgspec.to_builtins(route) | {"worker": indexes.get(route.index)} for route in routes
        ],
    }


async def read_deployments(view: View) -> dict[str, Any]:
    """Return the last deployment, its workers, and the jobs in its way."""
    code = await anyio.to_thread.run_sync(_fingerprints, tuple(view.app.registry))
    status = await view.operations.deploy.status(code or None, python_version())
    return {
        "code": msgspec.to_builtins(status.code),
        "deployment": msgspec.to_builtins(status.deployment),
        "is_under_way": status.deployment is not None and status.deployment.is_under_way,
        "is_ready": status.ready,
        "workers": [msgspec.to_builtins(worker) for worker in status.workers],
        "blocking": [
            {"worker": worker.name, **msgspec.to_builtins(run)}
            for worker, run in status.blocking_runs
        ],
    }


@lru_cache(maxsize=4)
def _fingerprints(tasks: tuple[Task[Any, Any], ...]) -> dict[str, str]:
    """Return what names the code of tasks. It reads their sources, so it is not done each time."""
    return {task.name: fingerprint(task) for task in tasks}


async def read_tasks(view: View) -> dict[str, Any]:
    """Return the tasks: their options, run times and workers."""
    found = await view.operations.tasks(window=_TASK_WINDOW)
    return {"tasks": [_task(task, view) for task in found]}


def _task(task: TaskView, view: View) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(task)
    if (declared := view.app.registry.get(task.name)) is not None:
        document["signature"] = view.visibility.signature(declared.parameters.signature)
    return document


async def read_task(view: View) -> dict[str, Any]:
    """Return one task and the fields of the form that publishes a job of it."""
    name = view.path["name"]
    found = await view.operations.tasks(name, window=_TASK_WINDOW)
    if not found:
        raise UnknownTask(f"no task {name!r}")
    task = view.app.registry.get(name)
    return {
        "task": _task(found[0], view),
        "pauses": await _pauses(view.operations, "task", name),
        "parameters": None if task is None else form_fields(task, view.visibility),
    }


async def read_audit(view: View) -> dict[str, Any]:
    """Return the newest actions of users."""
    lines, after = await view.operations.audit.read(view.query.get("after", ""))
    return {"lines": [msgspec.to_builtins(line) for line in lines], "after": after}


async def read_users(view: View) -> dict[str, Any]:
    """Return users and tokens, without their secrets."""
    access = view.operations.access
    tokens = [
        {"name": token.name, "role": token.role, "left": token.left}
        for token in await access.tokens()
    ]
    return {
        "users": [{"name": user.name, "role": user.role} for user in await access.users()],
        "tokens": tokens,
        "roles": ROLES,
    }


PAGES = (
    Page(name="overview", path="/", title="Overview", read=read_overview, parameters=("range",)),
    Page(
        name="jobs",
        path="/jobs",
        title="Jobs",
        read=read_jobs,
        parameters=("state", *JOB_FILTERS, "after", "count"),
    ),
    Page(name="job", path="/jobs/{id}", title="Job", read=read_job),
    *GRAPH_PAGES,
    Page(name="queues", path="/queues", title="Queues", read=read_queues),
    Page(name="queue", path="/queues/{name}", title="Queue", read=read_queue),
    Page(name="workers", path="/workers", title="Workers", read=read_workers),
    Page(name="tasks", path="/tasks", title="Tasks", read=read_tasks, seconds=5),
    Page(name="task", path="/tasks/{name}", title="Task", read=read_task, seconds=0),
    Page(name="schedules", path="/schedules", title="Schedules", read=read_schedules, seconds=5),
    Page(
        name="schedule", path="/schedules/{name}", title="Schedule", read=read_schedule, seconds=5
    ),
    Page(name="gates", path="/gates", title="Limits and pools", read=read_gates, seconds=2),
    Page(name="gate", path="/gates/{key}", title="Gate", read=read_gate, seconds=2),
    Page(
        name="routes",
        path="/routes",
        title="Routes",
        read=read_routes,
        seconds=2,
        parameters=("key",),
    ),
    Page(name="deployments", path="/deployments", title="Deployments", read=read_deployments),
    Page(name="buried", path="/buried", title="Buried jobs", read=read_buried, seconds=5),
    Page(
        name="audit",
        path="/audit",
        title="Audit log",
        read=read_audit,
        role="admin",
        seconds=0,
        parameters=("after",),
    ),
    Page(name="users", path="/users", title="Users", read=read_users, role="admin", seconds=0),
)
