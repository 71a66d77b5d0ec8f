"""Write ``reference/api.md`` from the code: ``python docs/write_api_reference.py``."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import umbel
from umbel import Handle, Signature, Task, Umbel, errors
from umbel.app.batches import Batch
from umbel.backends import Changes, JobFilter
from umbel.control import DeploymentPlan
from umbel.graphs import Graph, GraphNode
from umbel.operations import JobSearch, Operations
from umbel.operations.deployments import DeploymentOperations
from umbel.operations.graphs import GraphOperations
from umbel.tasks.composing import CanvasMethods
from umbel.tasks.current import Current
from umbel.tasks.hooks import Hook, OutgoingJob, PublishedTick, SettledJob
from umbel.tasks.steps import Step
from umbel.tasks.waiting_nodes import Signal, Sleep
from umbel.tasks.workflow import Workflow
from umbel.testing import FinishedJob, InMemoryJobs, PublishedCall, eager, in_memory

PAGE = Path(__file__).parent / "reference" / "api.md"
WIDTH = 88

HEAD = """\
# API

This page is made of the signatures and docstrings of the code.
`python docs/write_api_reference.py` writes it.

The whole API is typed. `delay` and `adelay` have the parameters of your function; `get` has its
return type. Names that are not on this page may change in any release. Errors are in
[`umbel.errors`](errors.md) and events in [`umbel.telemetry.events`](telemetry.md).
"""

LINKS = {
    "NodeFailed": "errors.md",
    "Limit": "options.md#limit",
    "Pool": "options.md#pool",
    "Rate": "options.md#rate",
    "Retry": "options.md#retry",
    "RetryAfter": "../how-to/retries-and-sections.md#choose-the-time-of-the-next-attempt",
    "Snooze": "../how-to/retries-and-sections.md",
    "State": "states.md",
    "Unique": "options.md#unique",
    "WorkerOptions": "options.md#workeroptions",
    "chain": "../how-to/canvas.md#chain",
    "chord": "../how-to/canvas.md#chord",
    "chunks": "../how-to/canvas.md#chunks",
    "fork": "../how-to/canvas.md#fork",
    "group": "../how-to/canvas.md#group",
    "optional": "../how-to/retries-and-sections.md#sections",
    "poisonous": "../how-to/retries-and-sections.md#sections",
    "retry": "../how-to/retries-and-sections.md#sections",
    "task": "../how-to/declare-tasks.md#tasks-in-a-library",
}
"""Pages about the exports that have no section of members here."""

INTERNAL = {
    Task: {"bind", "declare_options", "gates", "sender", "is_bound_to", "has_tokens"},
    Signature: {"unique", "immutable", "senders"},
    CanvasMethods: {"senders", "is_canvas"},
    Signal: {"senders"},
    Sleep: {"senders"},
    Batch: {"is_for", "add"},
    Handle: {"is_part", "returns"},
    Umbel: {"redirected"},
}
"""Members that only Umbel's own code uses."""

ATTRIBUTES: dict[type, dict[str, str]] = {
    Umbel: {
        "routes": "[Which worker has which key](../how-to/keep-work-on-one-worker.md): `find`,"
        " `worker_indexes`, `release`; and `afind`, `aworker_indexes`, `arelease` for async code.",
        "inbox": "[Commands to one worker](../how-to/tell-one-worker.md): the tasks `health`,"
        " `cancel`, `pause`, `reload`.",
        "settings": "The [settings](options.md#settings).",
        "registry": "The tasks.",
        "hooks": "The [hooks](../how-to/hooks.md) that `use` was given.",
        "telemetry": "Subscribe to [events](telemetry.md) here.",
    },
    Task: {"name": "The name of the task."},
    Signature: {
        "task": "The task.",
        "args": "The positional arguments.",
        "kwargs": "The keyword arguments.",
        "options": "The [options of the call](options.md#calloptions).",
    },
    Batch: {"handle": "The handle of the batch. It may be a member of a group."},
    Handle: {"id": "The id of the job. It is known before a transaction commits."},
    Operations: {"deploy": "[Deployments](#deployments).", "graphs": "[Graphs](#graphs)."},
}
"""Attributes that are set on construction, and so have no docstring."""

SECTIONS: list[tuple[str, type, str]] = [
    ("Umbel", Umbel, "All [settings](options.md#settings) are optional."),
    (
        "Task",
        Task,
        "A plain call, `task(...)`, runs the function in your process. For an `async def`"
        " function it returns a coroutine.",
    ),
    ("Signature", Signature, ""),
    (
        "Canvas",
        CanvasMethods,
        "What `chain`, `group`, `chord`, `map`, `starmap`, `chunks` and `fork` return. A signature"
        " has these methods, too. [Canvas](../how-to/canvas.md) explains each form.",
    ),
    (
        "Workflow",
        Workflow,
        "What `@app.workflow` returns. [Workflows](../how-to/workflows.md) explains them. The"
        " options of the decorator are `name`, `deadline`, `compensate` and `limit`.",
    ),
    ("Signal", Signal, "A node of a workflow that waits for a value."),
    ("Sleep", Sleep, "A node of a workflow that waits for time to pass."),
    ("Batch", Batch, "`with app.batch() as batch:`"),
    ("Handle", Handle, ""),
    (
        "current",
        Current,
        "Use it inside a task that a worker runs. Elsewhere it raises `UmbelError`.",
    ),
    (
        "Hook",
        Hook,
        "Give an object of a subclass to `app.use`. [Hooks](../how-to/hooks.md) says when each"
        " method is called.",
    ),
    ("step", Step, "See [Durable steps](../how-to/durable-steps.md)."),
    (
        "Operations",
        Operations,
        "`app.operations()` returns an `Operations` object. Close it when you are done. The command"
        ' line uses it, too. An empty name (`""`) of a queue, task, pool, rule, key or worker'
        ' raises `ConfigurationError`; it never means "all".',
    ),
    (
        "Graphs",
        GraphOperations,
        "`operations.graphs`, for [graphs](../how-to/canvas-errors.md#repair-a-graph).",
    ),
    (
        "Deployments",
        DeploymentOperations,
        "`operations.deploy`, for [deployments](../how-to/deploy.md#from-python).",
    ),
    (
        "umbel.testing",
        InMemoryJobs,
        "`in_memory`, `eager` and the pytest fixture `umbel_jobs` give an object with these"
        " members. [Test your tasks](../how-to/test-your-tasks.md) shows how to use them.",
    ),
]

OBJECTS = {
    "Umbel": "app",
    "Task": "task",
    "Signature": "signature",
    "Canvas": "canvas",
    "Workflow": "workflow",
    "Signal": "signal",
    "Sleep": "sleep",
    "Batch": "batch",
    "Handle": "handle",
    "current": "current",
    "Hook": "hook",
    "step": "step",
    "Operations": "operations",
    "Graphs": "operations.graphs",
    "Deployments": "operations.deploy",
    "umbel.testing": "umbel_jobs",
}
"""How examples call an object of each section."""

VALUES: list[tuple[str, Any]] = [
    ("umbel.backends", JobFilter),
    ("umbel.operations", JobSearch),
    ("umbel.graphs", Graph),
    ("umbel.graphs", GraphNode),
    ("umbel.backends", Changes),
    ("umbel.control", DeploymentPlan),
    ("umbel.tasks.hooks", OutgoingJob),
    ("umbel.tasks.hooks", SettledJob),
    ("umbel.tasks.hooks", PublishedTick),
    ("umbel.testing", FinishedJob),
    ("umbel.testing", PublishedCall),
]
"""Values that are taken or returned above, and that are made of named parts."""

EXAMPLE = """\
## Example

<!-- run -->
```python
from umbel import State, Umbel
from umbel.backends import JobFilter

app = Umbel()
operations = app.operations()
print(await operations.jobs(JobFilter(states=(State.BURIED,))))
await operations.close()
```

<!-- output -->
```text
[]
```
"""


def page() -> str:
    """Return the whole page."""
    parts = [HEAD, _exports(), *(_section(*section) for section in SECTIONS), _testing(), _values()]
    return "\n".join([*parts, EXAMPLE])


def _exports() -> str:
    titles = {title for title, _, _ in SECTIONS}
    rows = []
    for name in umbel.__all__:
        link = LINKS.get(name) or f"#{name.lower()}"
        assert name in LINKS or name in titles, name
        rows.append(f"| [`{name}`]({link}) | {_summary(getattr(umbel, name))} |")
    callables = [name for name in LINKS if name not in ("State", "Pool", "task", "NodeFailed")]
    forms = [
        (form, name)
        for name in callables
        for form in typing.get_overloads(getattr(umbel, name)) or [getattr(umbel, name)]
    ]
    rows += ["", _code([_signature(*form) for form in forms])]
    head = "## What `umbel` exports\n\n| name | is |\n|---|---|"
    return "\n".join([head, *rows, ""])


def _section(title: str, kind: type, note: str) -> str:
    parts = [f"## {title}\n", f"{_text(kind)}\n"]
    parts += [f"{note}\n"] if note else []
    if kind is Umbel:
        parts.append(f"{_code([_signature(kind, kind.__name__)])}\n")
    attributes = ATTRIBUTES.get(kind, {})
    if attributes:
        rows = [f"| `{name}` | {text} |" for name, text in attributes.items()]
        parts.append("\n".join(["| attribute | is |", "|---|---|", *rows, ""]))
    parts += [_member(OBJECTS[title], name, member) for name, member in _members(kind)]
    return "\n".join(parts)


def _testing() -> str:
    return "\n".join(_member("umbel.testing", one.__name__, one) for one in (in_memory, eager))


def _values() -> str:
    parts = ["## Values\n"]
    for module, kind in VALUES:
        code = _code([_signature(kind, kind.__name__)])
        parts.append(f"### {module}.{kind.__name__}\n\n{code}\n\n{_text(kind)}\n")
    return "\n".join(parts)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    for name, member in vars(kind).items():
        hidden = name.startswith("_") and not (name == "__call__" and kind is Step)
        if hidden or name in INTERNAL.get(kind, ()) or name in ATTRIBUTES.get(kind, ()):
            continue
        if isinstance(member, property) or inspect.isfunction(member):
            assert inspect.getdoc(member), f"{kind.__name__}.{name} has no docstring"
            yield name, member


def _member(owner: str, name: str, member: Any) -> str:
    title = owner if name == "__call__" else f"{owner}.{name}"
    heading = f"### {title}" if name != "__call__" else f"### {owner}(…)"
    if isinstance(member, property):
        returns = inspect.signature(typing.cast(Any, member.fget)).return_annotation
        code = _code([f"{title}: {_type(returns)}"])
    else:
        forms: list[Callable[..., Any]] = [*typing.get_overloads(member)] or [member]
        code = _code([_signature(form, title.removeprefix("umbel.testing.")) for form in forms])
    return f"{heading}\n\n{code}\n\n{_text(member)}\n"


def _signature(thing: Any, name: str) -> str:
    """Return a signature in Python's own form, on one line if it fits, else one line for each."""
    signature = inspect.signature(thing)
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    shown: list[str] = []
    star = False
    for at, parameter in enumerate(parameters):
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            shown.append("*")
        star = star or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        shown.append(_parameter(parameter))
        following = parameters[at + 1].kind if at + 1 < len(parameters) else None
        if parameter.kind is parameter.POSITIONAL_ONLY is not following:
            shown.append("/")
    prefix = "async " if inspect.iscoroutinefunction(thing) else ""
    returns = _type(signature.return_annotation)
    suffix = f" -> {returns}" if returns and not inspect.isclass(thing) else ""
    line = f"{prefix}{name}({', '.join(shown)}){suffix}"
    if len(line) <= WIDTH:
        return line
    inner = "".join(f"    {one},\n" for one in shown)
    return f"{prefix}{name}(\n{inner}){suffix}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    kind = _type(parameter.annotation)
    text = f"{stars}{parameter.name}" + (f": {kind}" if kind else "")
    if parameter.default is parameter.empty:
        return text
    return f"{text} = {_default(parameter.default)}"


def _default(value: Any) -> str:
    if inspect.isclass(value):
        return value.__name__
    shown = repr(value)
    if "factory" in shown:
        return "…"
    return re.sub(r"^(\w+)\(.+\)$", r"\1()", shown)


def _type(annotation: Any) -> str:
    """Return an annotation as it is written in the code; nothing for those that are internal."""
    if annotation is inspect.Parameter.empty:
        return ""
    shown = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    shown = re.sub(r"\b(?:typing|collections\.abc|umbel(?:\.\w+)+)\.", "", shown)
    return "" if shown.startswith("_") else shown.replace("R_co", "R").replace("+R", "R")


def _text(thing: Any) -> str:
    """Return a docstring as Markdown. An error that it names is a link to the page of errors."""
    text = re.sub(r"``([^`]+)``", r"`\1`", inspect.getdoc(thing) or "")
    text = re.sub(r"^(Args|Raises|Returns|Yields):\n", r"\1:\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"^    (?=\S)", "- ", text, flags=re.MULTILINE)
    text = re.sub(r"^        (?=\S)", "  ", text, flags=re.MULTILINE)
    names = "|".join(name for name in vars(errors) if name[0].isupper())
    return re.sub(rf"(?<![`\w.\[])({names})(?![\w`])", r"[`\1`](errors.md)", text)


def _summary(thing: Any) -> str:
    """Return the first sentence of a docstring."""
    text = re.split(r"(?<=\.)\s", _text(thing), maxsplit=1)[0].replace("\n", " ")
    # In a row of a table, not every renderer takes a pipe in backquotes as it is.
    return re.sub(r"`([^`]*\|[^`]*)`", lambda found: _html(found[1]), text)


def _html(code: str) -> str:
    return f"<code>{code.replace('|', '&#124;')}</code>"


def _code(lines: list[str]) -> str:
    return "\n".join(["```py", *lines, "```"])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
