"""``umbel workflows [list] | show | draw | start | signal``."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from umbel.cli.arguments import fit_to_task, parse
from umbel.cli.command_context import CommandContext, command, group
from umbel.cli.formatting import count as counted
from umbel.cli.graphs import print_drawing
from umbel.cli.operator import operator_name
from umbel.cli.output import print_json, print_line, print_table
from umbel.cli.short_names import find_job_id, find_workflow
from umbel.graphs import Graph, tree
from umbel.operations import Operations, WorkflowVersion
from umbel.tasks.workflow import Workflow


@group()
def workflows(context: CommandContext, as_json: bool) -> None:
    """Show declared workflows and their runs; start one, give a signal."""
    _show_list(context, as_json)


@command(name="list")
def list_workflows(context: CommandContext, as_json: bool) -> None:
    """List workflows, with the runs of each version."""
    _show_list(context, as_json)


def _show_list(context: CommandContext, as_json: bool) -> None:
    declared = {name: one.version for name, one in context.app_or_bare.workflows.items()}

    async def work(operations: Operations) -> list[WorkflowVersion]:
        return await operations.graphs.workflow_versions(declared=declared)

    rows = [
        (one.workflow, one.version, _origin(context, one), one.live, one.ended)
        for one in context.run(work)
    ]
    if as_json:
        names = ("workflow", "version", "origin", "running", "ended")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    elif not rows:
        print_line("There are no workflows. Declare one with @app.workflow.")
    else:
        head = ("workflow", "version", "origin", "running", "ended")
        print_table(head, rows, right=("running", "ended"))


def _origin(context: CommandContext, version: WorkflowVersion) -> str:
    """Return where a version is declared; empty if this command does not know the application."""
    if context.address is None:
        return ""
    return "declared" if version.is_declared else "earlier code"


@command()
@click.argument("name")
def show(context: CommandContext, name: str, as_json: bool) -> None:
    """Show the nodes of a declared workflow."""
    workflow = _find(context, name)
    graph: Graph = workflow.shape
    by_job, waits = {node.job: node for node in graph.nodes}, graph.waits()
    rows = [
        (
            f"{'  ' * depth}{node.path}",
            node.task,
            ", ".join(
                dict.fromkeys(by_job[job].path for job in waits.get(node.job, ()) if job in by_job)
            ),
        )
        for depth, node in tree(graph)
    ]
    if as_json:
        print_json({"workflow": workflow.name, "version": workflow.version, "nodes": rows})
        return
    print_line(f"{workflow.name}{workflow.parameters.signature}")
    print_line(f"version {workflow.version}")
    if workflow.deadline is not None:
        print_line(f"deadline {workflow.deadline:g} s")
    if workflow.limit is not None:
        print_line(f"limit {counted(workflow.limit, 'active run')}")
    print_table(("node", "task", "waits for"), rows)


@command()
@click.argument("name")
@click.option("--svg", "as_svg", is_flag=True, help="Draw it as SVG, an image.")
def draw(context: CommandContext, name: str, as_svg: bool, as_json: bool) -> None:
    """Draw a declared workflow as a Mermaid flowchart or SVG. For a run, use umbel graphs draw."""
    print_drawing(_find(context, name).shape, as_svg, as_json)


@command()
@click.argument("name")
@click.argument("words", metavar="[ARGS | KEY=VALUE]…", nargs=-1)
def start(context: CommandContext, name: str, words: tuple[str, ...], as_json: bool) -> None:
    """Start a run of a workflow with these arguments."""
    workflow = _find(context, name)
    args, kwargs = fit_to_task(workflow, parse([*words], None))
    handle = workflow.delay(*args, **kwargs)
    if as_json:
        print_json({"id": handle.id})
    else:
        print_line(f"{handle.id}: see umbel graphs show {handle.id[-8:]}")


@command()
@click.argument("run")
@click.argument("name")
@click.argument("value", required=False, default="true", metavar="[JSON]")
def signal(context: CommandContext, run: str, name: str, value: str, as_json: bool) -> None:
    """Give a signal of a run its value: JSON, or true. The first value counts."""
    try:
        given = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        given = value

    async def work(operations: Operations) -> str:
        job = await find_job_id(operations, run)
        await operations.graphs.signal(job, name, given, operator_name())
        return job

    job = context.run(work)
    if as_json:
        print_json({"id": job, "signal": name, "value": given})
    else:
        print_line(f"Signal {name} of {job} was given.")


def _find(context: CommandContext, name: str) -> Workflow[..., Any]:
    return find_workflow(context.app.workflows, name)


for _command in (list_workflows, show, draw, start, signal):
    workflows.add_command(_command)
