"""How fast the dashboard is with much history and many waiting jobs, and what it costs a drain.

``python -m benchmarks.dashboard`` fills a SQLite file and a PostgreSQL schema with two million
finished and 100,000 queued jobs, asks for each page several times, and drains jobs with and without
open pages. It deletes what it made. ``--finished 20000 --queued 1000`` is quick.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx
import psutil

from umbel import Signal, Umbel, WorkerOptions
from umbel.backends import JobFilter
from umbel.charts.counters import BOUNDS, Counters, DepthSums, TaskCounts, encode
from umbel.charts.folding import HOURS, MINUTES, TEN_SECONDS
from umbel.dashboard import DashboardOptions, dashboard
from umbel.dashboard.pages import PAGES
from umbel.dashboard.serving import listen, serving, url_of
from umbel.messages import State

POSTGRES = os.environ.get("UMBEL_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
WORKFLOW = "bench.order"
_TASKS = 20
_OPEN_PAGES = ("/", "/queues", "/jobs", "/workers")
_FAILURE = (
    '{"type": "builtins:ValueError", "message": "order 12 was declined",'
    ' "traceback": "Traceback (most recent call last)", "args": null}'
)
_BODY = '{"args": [{"sent": 0, "number": 1, "user": "user-00012345"}], "kwargs": {}}'
_RECORD = (
    "(id, namespace, queue, kind, task, type, state, priority, content_type, body, created,"
    " attempt, deaths, max_deaths, headers, fence, attempts, finished, failure)"
)
_JOB = "(id, namespace, queue, kind, task, body, created)"


def declare(app: Umbel) -> Umbel:
    """Declare the tasks whose jobs are in the store, and one that does nothing."""

    async def work(**_: object) -> None: ...

    for number in range(_TASKS):
        work_task = app.task(work, name=f"bench.task{number}")
    app.task(work, name="bench.nothing", queue="drain")
    app.task(work, name="bench.nightly", cron="0 3 * * *")
    app.task(work, name="bench.limited", limit=1)
    app.workflow(lambda: work_task.s().after(Signal("approved")), name=WORKFLOW)
    return app


# --- stores ----------------------------------------------------------------------------------


@contextmanager
def sqlite_store(folder: Path, finished: int, queued: int) -> Iterator[Umbel]:
    """A file with so many jobs."""
    app = declare(Umbel(f"sqlite:///{folder}/bench.db", keep_count=10**9, backlog="none"))
    asyncio.run(app.backend.migrate())
    import sqlite3

    numbers = (
        "with recursive number(n) as"
        " (select 1 union all select n + 1 from number where n < {count})"
    )
    name = "printf('%08x-0000-4000-8000-%012x', abs(random()) % 4294967296, n)"
    now = time.time()
    with closing(sqlite3.connect(f"{folder}/bench.db")) as connection, connection:
        connection.execute(
            f"{numbers.format(count=finished)} insert into record {_RECORD} select {name}, 'umbel',"
            " 'default', 'io', 'bench.task' || (n % ?), 'umbel.command',"
            " case n % 100 when 0 then 'buried' else 'succeeded' end, 0, 'application/json',"
            " cast(? as blob), ? - n * 0.05, 1, 0, 3, '{}', 1, '[]', ? - n * 0.05,"
            " case n % 100 when 0 then ? end from number",
            (_TASKS, _BODY, now, now, _FAILURE),
        )
        connection.execute(
            f"{numbers.format(count=queued)} insert into job {_JOB} select {name}, 'umbel',"
            " case n % 3 when 0 then 'mail' else 'default' end, 'io', 'bench.task' || (n % ?),"
            " cast(? as blob), ? - n * 0.001 from number",
            (_TASKS, _BODY, now),
        )
        connection.execute("analyze")
    try:
        yield app
    finally:
        app.close()


@contextmanager
def postgres_store(finished: int, queued: int) -> Iterator[Umbel]:
    """A schema with so many jobs."""
    import psycopg

    schema = f"umbel_bench_dashboard_{os.getpid()}"
    app = declare(Umbel(f"{POSTGRES}?schema={schema}", keep_count=10**9, backlog="none"))
    asyncio.run(app.backend.migrate())
    with psycopg.connect(POSTGRES, autocommit=True) as connection:
        try:
            connection.execute(
                f"insert into {schema}.record {_RECORD} select gen_random_uuid(), 'umbel',"
                " 'default', 'io', 'bench.task' || (n %% %s), 'umbel.command',"
                " (case n %% 100 when 0 then 'buried' else 'succeeded' end)"
                f"::{schema}.record_state,"
                " 0, 'application/json', convert_to(%s, 'UTF8'), now(), 1, 0, 3, '{}', 1, '[]',"
                " now() - n * interval '50 milliseconds', case n %% 100 when 0 then %s::jsonb end"
                " from generate_series(%s, 1, -1) n",
                (_TASKS, _BODY, _FAILURE, finished),
            )
            connection.execute(
                f"insert into {schema}.job {_JOB} select gen_random_uuid(), 'umbel',"
                " case n %% 3 when 0 then 'mail' else 'default' end, 'io',"
                " 'bench.task' || (n %% %s), convert_to(%s, 'UTF8'),"
                " now() - n * interval '1 millisecond' from generate_series(1, %s) n",
                (_TASKS, _BODY, queued),
            )
            connection.execute(f"vacuum analyze {schema}.job, {schema}.record")
            yield app
        finally:
            app.close()
            connection.execute(f"drop schema {schema} cascade")


async def fill_charts(app: Umbel) -> None:
    """Write numbers for all ranges of the charts, with 200 tasks in each period."""
    operations = app.operations()
    coordination = operations.audit._coordination
    now = (await coordination.read("audit/", limit=1)).now
    runs = tuple(3 for _ in BOUNDS)
    tasks = {f"bench.task{n}": TaskCounts(60, 2, 1, 0, runs) for n in range(_TASKS)}
    value = encode(Counters(tasks, DepthSums(1, 100, 10, 20, 30), runs))
    from umbel.backends import Put

    for series, periods in ((TEN_SECONDS, 360), (MINUTES, 1_440), (HOURS, 168)):
        puts = [Put(series.key(now - n * series.seconds), value, 1e6) for n in range(periods)]
        for start in range(0, len(puts), 40):
            await coordination.commit({}, puts[start : start + 40])
    await operations.close()


# --- pages -----------------------------------------------------------------------------------


Times = dict[str, list[float]]


async def page_paths(app: Umbel) -> dict[str, str]:
    """Return the path of each page, of a job, graph, task and so on that the store has."""
    operations = app.operations()
    [buried] = await operations.jobs(JobFilter(states=(State.BURIED,), limit=1))
    [graph] = await operations.graphs.roots(limit=1)
    await operations.close()
    ids = {"job": buried.id, "graph": graph.id}
    names = {
        "queue": "default",
        "task": "bench.task1",
        "schedule": "bench.nightly",
        "workflow": WORKFLOW,
    }
    return {
        page.name: page.path.format(
            id=ids.get(page.name), name=names.get(page.name), key="limit:bench.limited"
        )
        for page in PAGES
    }


async def measure_pages(app: Umbel, times: int) -> tuple[Times, Times]:
    """Return the server time and the processor time of each page, request after request."""
    more = {
        "overview, 1 hour": "/?range=1h",
        "overview, 24 hours": "/?range=24h",
        "overview, 7 days": "/?range=7d",
        "jobs, buried": "/jobs?state=buried",
        "jobs, queued": "/jobs?state=queued",
        "jobs of a task": "/jobs?task=bench.task7",
        "jobs of a rare task": "/jobs?task=bench.none&state=succeeded",
        "jobs, a text": "/jobs?text=user-00099999",
    }
    found: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    server = dashboard(app, DashboardOptions())
    transport = httpx.ASGITransport(server, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1", timeout=60
    ) as http:
        for name, url in (await page_paths(app) | more).items():
            for _ in range(times + 1):
                started, used = time.perf_counter(), time.process_time()
                answer = await http.get(url, headers={"accept": "text/html"})
                taken = time.perf_counter() - started
                cpu.setdefault(name, []).append(time.process_time() - used)
                if answer.status_code != 200:
                    raise RuntimeError(f"{url}: {answer.status_code} {answer.text[:200]}")
                found.setdefault(name, []).append(taken)
    async with server.router.lifespan_context(server):
        pass
    return found, cpu


# --- a drain ---------------------------------------------------------------------------------


def drain(app: Umbel, jobs: int) -> float:
    """Return how many jobs per second a worker process ends."""
    nothing = app.registry.find("bench.nothing")
    for _ in range(0, jobs, 10_000):
        app.publish_many([nothing.s() for _ in range(min(jobs, 10_000))])
    command = [sys.executable, "-m", "benchmarks.dashboard", "--drain", app.settings.broker]
    done = subprocess.run([*command, f"{jobs}"], capture_output=True, text=True, check=True)
    return jobs / float(done.stdout)


def work_off(url: str, jobs: int) -> None:
    """Run the jobs of the queue, and print how many seconds they took."""
    app = declare(Umbel(url, keep_count=10**9))
    from umbel.telemetry import events

    times: list[float] = []
    ended = threading.Event()

    async def work() -> None:
        worker = app.worker(WorkerOptions(queues=("drain",)))
        loop = asyncio.get_running_loop()

        def count(event: object) -> None:
            if isinstance(event, events.JobSucceeded):
                times.append(time.perf_counter())
                if len(times) == jobs and not ended.is_set():
                    ended.set()
                    loop.call_soon_threadsafe(worker.stop)

        app.telemetry.subscribe(count)
        await worker.run()

    asyncio.run(work())
    print(times[-1] - times[0])


@contextmanager
def open_pages(app: Umbel, pages: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A dashboard in another process with pages that are open."""
    command = [sys.executable, "-m", "benchmarks.dashboard", "--serve", app.settings.broker]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        url = served.stdout.readline().strip()
        opened = threading.Semaphore(0)

        def follow(path: str) -> None:
            address = f"{url}live?view={path}"
            with suppress(httpx.TransportError), httpx.stream("GET", address) as stream:
                for line in stream.iter_lines():
                    if line.startswith("data:"):
                        opened.release()

        threads = [threading.Thread(target=follow, args=(path,)) for path in pages]
        for thread in threads:
            thread.start()
        for _ in threads:
            opened.acquire(timeout=60)
        try:
            yield served
        finally:
            served.terminate()
            for thread in threads:
                thread.join(30)


def processor_share(app: Umbel, pages: Sequence[str], seconds: float) -> float:
    """Return the share of one core that a dashboard with open pages uses, and its connections.

    Other programs on the machine hardly change it, unlike the time of a drain. Processes that
    PostgreSQL starts for a part of a query are not counted.
    """
    with open_pages(app, pages) as process:
        dashboard_process = psutil.Process(process.pid)
        ports = {one.laddr.port for one in dashboard_process.net_connections() if one.raddr}
        measured = [dashboard_process, *_backends(app.settings.broker, ports)]
        before = [_cpu_seconds(one) for one in measured]
        started = time.perf_counter()
        time.sleep(seconds)
        after = [_cpu_seconds(one) for one in measured]
        # A connection that was closed meanwhile counts as 0.
        used = sum(max(0.0, b - a) for a, b in zip(before, after, strict=True))
        return used / (time.perf_counter() - started)


def _backends(url: str, ports: set[int]) -> list[psutil.Process]:
    """Return the server processes of PostgreSQL that belong to these connections."""
    if not url.startswith("postgresql"):
        return []
    import psycopg

    with psycopg.connect(POSTGRES) as connection:
        rows = connection.execute(
            "select pid from pg_stat_activity where client_port = any(%s)", [[*ports]]
        ).fetchall()
    return [psutil.Process(pid) for (pid,) in rows]


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:  # a connection that was replaced meanwhile
        return 0.0
    return float(times.user + times.system)


def serve(url: str) -> None:
    """Serve a dashboard until the process is ended."""
    options = DashboardOptions(port=0)
    listening = listen(options)
    with serving(declare(Umbel(url)), options, listening, "bench"):
        print(url_of(listening, options), flush=True)
        threading.Event().wait()


def measure_drain(app: Umbel, jobs: int, rounds: int) -> dict[str, list[float]]:
    """Return jobs per second without a page, with one and with four, measured in turns."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        found.setdefault("no page", []).append(drain(app, jobs))
        for name, pages in (("the overview", _OPEN_PAGES[:1]), ("four pages", _OPEN_PAGES)):
            with open_pages(app, pages):
                found.setdefault(name, []).append(drain(app, jobs))
    return found


# --- report ----------------------------------------------------------------------------------


async def start_once(app: Umbel) -> None:
    """Run a worker for a moment, which declares limits and schedules, and start a workflow."""
    await app.workflows[WORKFLOW].adelay()
    worker = app.worker(WorkerOptions(queues=("none",)))
    running = asyncio.create_task(worker.run())
    operations = app.operations()
    declared = False
    while not declared:
        await asyncio.sleep(0.05)
        declared = bool(await operations.schedules.all() and await operations.gates())
    await operations.close()
    worker.stop()
    await running


def report(name: str, app: Umbel, options: argparse.Namespace) -> None:
    asyncio.run(start_once(app))
    asyncio.run(fill_charts(app))
    found, cpu = asyncio.run(measure_pages(app, options.times))
    print(f"\n{name}: {options.finished:,} finished and {options.queued:,} queued jobs")
    print(f"{'page':26} {'first':>8} {'median':>8} {'p95':>8} {'cpu':>8}")
    for page, (first, *seconds) in found.items():
        p95 = sorted(seconds)[max(0, round(len(seconds) * 0.95) - 1)]
        shown = (first, statistics.median(seconds), p95, statistics.median(cpu[page]))
        print(f"{page:26} " + " ".join(f"{one * 1e3:5.0f} ms" for one in shown), flush=True)
    for names, pages in (("the overview", _OPEN_PAGES[:1]), ("four pages", _OPEN_PAGES)):
        share = processor_share(app, pages, options.seconds)
        print(f"{names} open: {share:.1%} of one core", flush=True)
    if options.drained:
        drained = measure_drain(app, options.drained, options.rounds)
        before = statistics.median(drained["no page"])
        for name, rates in drained.items():
            rate = statistics.median(rates)
            span = f"{min(rates):,.0f} to {max(rates):,.0f}"
            slower = f"slower by {1 - rate / before:.1%}"
            print(f"drain with {name} open: {rate:,.0f} jobs/s ({span}), {slower}", flush=True)


def main() -> None:
    """Measure, or be one of the processes that the measurement starts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--finished", type=int, default=2_000_000)
    parser.add_argument("--queued", type=int, default=100_000)
    parser.add_argument("--times", type=int, default=20, help="requests for each page")
    parser.add_argument("--drained", type=int, default=100_000, help="jobs of a drain; 0: none")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the processor's time")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("sqlite", "postgres"))
    parser.add_argument("--drain", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drain:
        work_off(options.drain[0], int(options.drain[1]))
        return
    if options.serve:
        serve(options.serve)
        return
    if options.only != "postgres":
        with (
            tempfile.TemporaryDirectory(dir="/var/tmp", prefix="umbel-bench-") as folder,
            sqlite_store(Path(folder), options.finished, options.queued) as app,
        ):
            report("SQLite", app, options)
    if options.only != "sqlite":
        with postgres_store(options.finished, options.queued) as app:
            report("PostgreSQL", app, options)


if __name__ == "__main__":
    main()
