"""The first output of ``umbel dev``: the application, its tasks, and how to send a job."""

from __future__ import annotations

import inspect
from typing import Any

from umbel.app import Umbel
from umbel.cli.output import print_line
from umbel.tasks import Task
from umbel.tasks.workflow import Workflow

_KINDS = {"io": "async def, a coroutine", "cpu": "def, a thread"}
_SAMPLES: dict[Any, tuple[str, ...]] = {
    int: ("1", "2", "3"),
    float: ("1.5", "2.5", "3.5"),
    str: ("hello", "world", "again"),
    bool: ("true", "false", "true"),
}


def dev_document(app: Umbel, address: str, dashboard: str) -> dict[str, Any]:
    """Return the application and its tasks as plain data, for programs."""
    return {
        "dashboard": dashboard,
        "app": address,
        "url": app.settings.public()["broker"],
        "namespace": app.settings.namespace,
        "tasks": [
            {"name": task.name, "queue": task.declared.queue, "kind": task.kind}
            for task in app.registry
        ],
    }


def print_banner(app: Umbel, address: str, changed: str, dashboard: str, *, watching: bool) -> None:
    """Print the application and its tasks; only one line after a reload."""
    if changed:
        print_line(f"reloaded: {changed} changed")
        return
    if dashboard:
        print_line(f"dashboard  {dashboard}")
    from umbel import __version__

    print_line(f"umbel {__version__} dev")
    print_line(f"  app    {address}")
    print_line(f"  url    {app.settings.public()['broker']}   namespace {app.settings.namespace}")
    tasks = list(app.registry)
    width = max((len(task.name) for task in tasks), default=0)
    queue = max((len(task.declared.queue) for task in tasks), default=0)
    for label, task in zip(["tasks", *[""] * len(tasks)], tasks, strict=False):
        kind = _KINDS.get(task.kind, task.kind)
        print_line(
            f"  {label:6} {task.name:{width}}   queue {task.declared.queue:{queue}}   {kind}"
        )
    if tasks:
        print_line(f"  send   umbel -A {address} send {_example(tasks[0])}")
    else:
        print_line("  tasks  none; put @app.task above a function")
    for workflow in [*app.workflows.values()][:1]:
        print_line(f"  start  umbel -A {address} workflows start {_example(workflow)}")
    print_line("  stop   Ctrl-C" + ("; reloads when the code changes" if watching else ""))
    print_line()


def _example(task: Task[..., Any] | Workflow[..., Any]) -> str:
    words = [task.name]
    required = [
        parameter
        for parameter in task.parameters.signature.parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    for place, parameter in enumerate(required):
        samples = _SAMPLES.get(_annotation(parameter), ())
        words.append(samples[place % 3] if samples else parameter.name.upper())
    return " ".join(words)


def _annotation(parameter: inspect.Parameter) -> Any:
    """Return the class of a parameter, also if its annotation is text."""
    named = {kind.__name__: kind for kind in _SAMPLES}
    found = parameter.annotation
    return named.get(found, found) if isinstance(found, str) else found
