"""Checks a workflow when it is declared, and describes it: its version, and its drawing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid5

import msgspec

from umbel.errors import ConfigurationError, UmbelError
from umbel.graphs.annotations import accepts_none, shown_type
from umbel.graphs.compiled import Compiled, CompiledNode, Output
from umbel.graphs.compiler import Compiler
from umbel.graphs.view import node_name
from umbel.messages import State, derived_id
from umbel.messages.graphs import Graph, GraphNode, in_reading_order, subgraphs
from umbel.tasks.canvas import Map
from umbel.tasks.conditions import Placeholder
from umbel.tasks.task import Signature
from umbel.tasks.workflow import Workflow, WorkflowCall, walk

_ROOT = "00000000-0000-0000-0000-000000000000"
_VERSION_LETTERS = 8


def named_id(root: str, name: str) -> str:
    """Return the id of a node of a workflow that can be found by its name."""
    return str(uuid5(UUID(root), name))


def check_workflow(workflow: Workflow[..., Any]) -> None:
    """Check a workflow and set its version and its shape.

    Raises:
        ConfigurationError: an argument is missing, types of edges do not fit, nodes wait for one
            another, an option is unknown, or building it twice gives different graphs.
    """
    compiled = _compile(workflow)
    if not tasks_of(workflow):
        raise ConfigurationError(f"workflow {workflow.name}: it runs no task; add one")
    workflow.version = _version(compiled)
    again = Workflow(
        workflow.function,
        workflow.name,
        deadline=workflow.deadline,
        compensate=workflow.compensate,
        limit=workflow.limit,
    )
    if _version(_compile(again)) != workflow.version:
        raise ConfigurationError(
            f"workflow {workflow.name}: it gives a different graph each time; do not use times,"
            " random numbers or changing data when it is declared, but tasks that return them"
        )
    _check_skipped(workflow, compiled)
    workflow.shape = shape_of(compiled, workflow)


def _compile(workflow: Workflow[..., Any]) -> Compiled:
    parameters = {
        name: Placeholder(name, workflow.parameters.annotation(name))
        for name in workflow.parameters.signature.parameters
    }
    compiler = Compiler(
        _ROOT, lambda n: derived_id(_ROOT, 0, n), named=lambda name: named_id(_ROOT, name)
    )
    try:
        call: WorkflowCall[Any] = WorkflowCall(workflow, (), parameters)
        return compiler.graph(call, (), _ROOT)
    except UmbelError as error:
        raise ConfigurationError(f"workflow {workflow.name}: {error}") from None


def _version(compiled: Compiled) -> str:
    """Return a hash of everything that a run of the workflow depends on."""
    lines = [_line(node) for node in compiled.nodes]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:_VERSION_LETTERS]


def _line(node: CompiledNode) -> str:
    spec = msgspec.structs.replace(node.spec(), version="")
    call = ""
    if node.call is not None:
        call = f"{node.call.task.name} {node.call.args!r} {sorted(node.call.kwargs.items())!r}"
        call += f" {node.call.call_options!r}"
    undos = [
        f"{one.path}:{undo!r} {undo.args!r} {sorted(undo.kwargs.items())!r} {undo.call_options!r}"
        for one, undo, _ in node.undos
    ]
    parts = [part.path for part in node.parts]
    return (
        f"{node.id} {spec!r} {call} {parts} {node.fire} {node.defaults!r} {node.arguments} {undos}"
        f" {node.parameters}"
    )


def _check_skipped(workflow: Workflow[..., Any], compiled: Compiled) -> None:
    """Refuse parameters that may get None from a skipped node, and do not accept it."""
    skipped: set[CompiledNode] = set()
    for node in compiled.nodes:  # each comes after those that it waits for
        if _may_be_skipped(node, skipped):
            skipped.add(node)
        if node.call is None or node.kind != "":
            continue
        values = [(out, keys) for out, keys in node.reads if keys and keys[0] != "when"]
        some_run = any(not _is_one_of(output, skipped) for output, _ in values)
        for output, keys in values:
            assert keys is not None
            wanted = node.call.task.parameters.annotation(keys[1]) if len(keys) == 2 else Any
            if some_run and _is_one_of(output, skipped) and not accepts_none(wanted):
                raise ConfigurationError(
                    f"workflow {workflow.name}: argument {keys[1]} of {node.call.task.name} (node"
                    f" {node.path}) is None if node {output.nodes[0].path} is skipped; annotate it"
                    f" as {shown_type(wanted)} | None"
                )


def _is_one_of(output: Output, nodes: set[CompiledNode]) -> bool:
    return not output.is_list and len(output.nodes) == 1 and output.nodes[0] in nodes


def _may_be_skipped(node: CompiledNode, skipped: set[CompiledNode]) -> bool:
    """Whether a node may be skipped, if these before it may be."""
    if node.kind == "sleep":
        return any(_is_one_of(one, skipped) for one, keys in node.reads if keys is not None)
    if node.call is None:
        return False
    if node.call.condition is not None:
        return True
    values = [out for out, keys in node.reads if keys and keys[0] in ("args", "kwargs")]
    return bool(values) and all(_is_one_of(one, skipped) for one in values)


def shape_of(compiled: Compiled, workflow: Workflow[..., Any]) -> Graph:
    """Return the declared graph, with all nodes blocked."""
    nodes = in_reading_order(
        GraphNode(
            path=node.path,
            task=_name(node),
            job=node.id,
            state=State.BLOCKED,
            kind=node.kind,
            handler=node.handler,
            before=tuple(part.id for part in node.parts),
            inside=subgraphs(node.path, node.inside),
        )
        for node in compiled.nodes[1:]
    )
    root = compiled.nodes[0]
    return Graph(
        id="",
        label=workflow.name,
        state=State.BLOCKED,
        nodes=nodes,
        root=GraphNode(
            path="",
            task=workflow.name,
            job=root.id,
            state=State.BLOCKED,
            kind="graph",
            before=tuple(part.id for part in root.parts),
        ),
        workflow=workflow.name,
        version=workflow.version,
    )


def _name(node: CompiledNode) -> str:
    task = node.call.task.name if node.call is not None else f"umbel.{node.kind}"
    return node_name(node.spec(), task)


def tasks_of(workflow: Workflow[..., Any]) -> Sequence[str]:
    """Return the names of the tasks that a workflow runs."""
    found = [
        one.signature.task.name if isinstance(one, Map) else one.task.name
        for one in walk(workflow.canvas)
        if isinstance(one, Signature | Map)
    ]
    return sorted({*found})
