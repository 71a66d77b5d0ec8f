"""Run two workers with example tasks and a dashboard, and print what happens: ``make run``.

They use SQLite, or the broker and store in UMBEL_URL.
"""

import asyncio
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
APP = "examples.demo.tasks"
COLUMNS = 80
LEASE_SECONDS = 5
DEPLOYMENT_AFTER_SECONDS = 25
DEPLOYMENT_SECONDS = 8
NOTES = {
    ("charge_card", "failed and will be retried"): "a retry: the task failed and runs again soon",
    ("count_stock", "started"): "a limit: of three count_stock jobs, one runs at a time",
    ("reorder_stock", "started"): "a schedule: reorder_stock runs every ten seconds",
    ("ship_parcel", "failed permanently and was buried"): (
        "a buried job: it is kept; edit it and run it again on the dashboard"
    ),
    ("print_invoice", "started"): "a crash: print_invoice kills the worker that runs it",
    ("", "a worker process died and is restarted"): (
        f"its job is delivered again {LEASE_SECONDS} seconds after its last heartbeat"
    ),
}
"""What is printed the first time that something happens."""
FIELDS = ("error", "signal", "worker", "jobs", "processes")
"""The fields of a log line that are printed."""


def main() -> int:
    """Publish the first jobs, run two workers until Ctrl-C, and return their exit code."""
    listening = listen()
    print(f"Dashboard: http://127.0.0.1:{listening.getsockname()[1]}/", flush=True)
    sys.path.insert(0, str(ROOT))
    demo = importlib.import_module(APP)
    asyncio.run(demo.app.backend.migrate())  # creates the schema if there is none
    asyncio.run(end_deployment(demo.app))  # of a demo that was killed
    demo.publish_tour()
    demo.app.close()
    print_banner(demo.app.settings.public()["broker"])
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    umbel = (sys.executable, "-m", "umbel", "-A", APP)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    workers = subprocess.Popen(
        [
            *(*umbel, "worker", "--processes", "2"),
            *("--lease", str(LEASE_SECONDS), "--grace", "5"),
            *("--log-level", "debug", "--log-format", "json"),
        ],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    # Ctrl-C reaches the workers, too. This process prints their last lines and ends after them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: workers.terminate())
    stop = threading.Event()
    deployment = threading.Thread(target=deploy, args=(umbel, environment, stop))
    deployment.start()
    notes = dict(NOTES)
    assert workers.stdout is not None
    processes = importlib.import_module("umbel.processes.dashboard_process")
    options = importlib.import_module("umbel.dashboard").DashboardOptions()
    with processes.OpenDashboard(demo.app, APP, options, listening).beside():
        for line in workers.stdout:
            print_line(line.rstrip("\n"), notes)
        stop.set()
        deployment.join()
    demo.app.close()
    return workers.wait()


async def end_deployment(app: Any) -> None:
    """End the deployment that is in progress, if there is one."""
    operations = app.operations()
    try:
        await operations.deploy.end("the demo", force=True)
    finally:
        await operations.close()


def deploy(umbel: tuple[str, ...], environment: dict[str, str], stop: threading.Event) -> None:
    """After half a minute, show a deployment: workers finish their jobs and start no others."""
    if stop.wait(DEPLOYMENT_AFTER_SECONDS):
        return
    print_wrapped("--- a deployment: workers finish their jobs and start no others for a while")
    command = [*umbel, "deploy", "begin", "--limit", "30", "--reason", "a demonstration"]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet) as begun:
        while begun.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                begun.wait(0.2)
            if stop.is_set():
                begun.terminate()
    stop.wait(DEPLOYMENT_SECONDS)
    command = [*umbel, "deploy", "end", "--force"]
    subprocess.run(command, env=environment, stdout=quiet, stderr=quiet, check=False)
    print_wrapped("--- the deployment has ended: workers start jobs again")


def listen() -> socket.socket:
    """Return a socket on 8080, or on the next port on which no other program listens."""
    for port in range(8080, 8100):
        with suppress(OSError):
            return socket.create_server(("127.0.0.1", port))
    return socket.create_server(("127.0.0.1", 0))


def print_banner(url: str) -> None:
    """Print commands that work in the current folder."""
    script = Path(sys.executable).with_name("umbel")
    umbel = os.path.relpath(script) if script.exists() else f"{sys.executable} -m umbel"
    print(f"Two workers on {url}.")
    print("In a minute you see a retry, a limit, a schedule, a buried job, a killed worker")
    print("and a deployment.")
    print("A workflow waits for your approval: see Graphs on the dashboard.")
    print("Ctrl-C stops. Try in another terminal, in this folder:")
    print()
    if Path.cwd() != ROOT:
        print(f"  export PYTHONPATH={os.path.relpath(ROOT)}")
    if "UMBEL_URL" in os.environ:
        print("  export UMBEL_URL=...  # the same as here")
    for words in ("jobs list", "queues", "schedules", "send charge_card 3 --wait"):
        print(f"  {umbel} -A {APP} {words}")
    print(flush=True)


def print_line(line: str, notes: dict[tuple[str, str], str]) -> None:
    """Print a log line of a worker in at most 80 columns, after the note on it, if any."""
    try:
        fields = json.loads(line)
    except ValueError:  # an error before the log was set up
        print("\n".join(textwrap.wrap(line, COLUMNS)), flush=True)
        return
    if "logger" in fields:
        return  # of a library
    task = str(fields.get("task", "")).rpartition(".")[2]
    note = notes.pop((task, fields["event"]), None)
    before, after = (note, None) if task else (None, note)
    for text in (before and f"--- {before}", describe(fields, task), after and f"--- {after}"):
        if text:
            print_wrapped(text)


def print_wrapped(text: str) -> None:
    """Print a text in lines of at most 80 columns."""
    print("\n".join(textwrap.wrap(text, COLUMNS, subsequent_indent=" " * 24)), flush=True)


def describe(fields: dict[str, Any], task: str) -> str:
    """Return the time, the task, what happened, and a few fields."""
    clock = datetime.fromisoformat(fields["time"]).astimezone()
    words = [f"{clock:%H:%M:%S}", f"{task or 'umbel':14}", fields["event"]]
    if fields["event"] == "succeeded":
        words.append(f"in {fields['seconds'] * 1000:.0f} ms")
    if fields.get("attempt", 1) > 1:
        words.append(f"(attempt {fields['attempt']})")
    words += [f"{name}={fields[name]}" for name in FIELDS if name in fields]
    return " ".join(words)


if __name__ == "__main__":
    sys.exit(main())
