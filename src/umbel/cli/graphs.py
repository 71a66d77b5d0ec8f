"""``umbel graphs [list] | show | draw | retry | cancel | resolve``."""

from __future__ import annotations

import time
from typing import Any

import click
import msgspec

from umbel.cli.command_context import CommandContext, command, group
from umbel.cli.confirmation import require_confirmation
from umbel.cli.formatting import count as counted
from umbel.cli.formatting import duration, relative_time
from umbel.cli.output import on_terminal, print_json, print_line, print_note, print_table
from umbel.cli.short_names import find_job_id, short_id, short_ids
from umbel.clock import SystemClock
from umbel.errors import ConfigurationError
from umbel.graphs import Graph, GraphNode, mermaid, svg, tree
from umbel.messages import Record
from umbel.operations import (
    GRAPH_STATES,
    Operations,
    RetriedGraph,
    graph_document,
    graph_state,
)
from umbel.processes.exit_codes import FAILED

_WATCH_SECONDS = 1.0
_KINDS = ("map", "chunk")
"""The kinds of nodes that the name of the task does not say."""


# --- reading ---------------------------------------------------------------------------------


@group()
def graphs(context: CommandContext, as_json: bool) -> None:
    """Show, draw, retry, resolve and cancel graphs: canvases, runs of workflows."""
    _show_list(context, as_json, None, 50)


@command(name="list")
@click.option("--state", type=click.Choice([*GRAPH_STATES]), help="Only graphs in this state.")
@click.option("-n", "--limit", default=50, show_default=True, type=click.IntRange(1, 10_000))
def list_graphs(context: CommandContext, state: str | None, limit: int, as_json: bool) -> None:
    """List graphs: running ones first, then the last that have ended."""
    _show_list(context, as_json, state, limit)


def _show_list(context: CommandContext, as_json: bool, state: str | None, limit: int) -> None:
    async def work(operations: Operations) -> list[Record]:
        return await operations.graphs.roots(GRAPH_STATES[state] if state else (), limit)

    found = context.run(work)
    if as_json:
        print_json([graph_document(one) for one in found])
    elif not found:
        print_line("There are no graphs. Publishing a canvas or starting a workflow makes one.")
    else:
        ids, now = short_ids([one.id for one in found]), SystemClock().now()
        head = ("id", "graph", "nodes", "state", "published", "took", "note")
        rows = [
            (
                ids[one.id],
                document["graph"],
                document["tasks"],
                document["state"],
                relative_time(one.created, now),
                "" if one.finished is None else duration(max(one.finished - one.created, 0.0)),
                document["note"],
            )
            for one, document in ((one, graph_document(one)) for one in found)
        ]
        print_table(head, rows, right=("nodes",), optional=("took", "published"))


@command()
@click.argument("graph")
@click.option("--watch", is_flag=True, help="Print it again whenever something has changed.")
def show(context: CommandContext, graph: str, watch: bool, as_json: bool) -> None:
    """Show the nodes of a graph: a tree with states and durations.

    A star marks the critical path: the nodes that determined when the graph ended.
    """

    async def work(operations: Operations) -> Graph:
        return await operations.graphs.show(await find_job_id(operations, graph))

    found = context.run(work)
    if as_json:
        print_json(_document(found))
        return
    _print_graph(found)
    while watch and not found.state.finished:
        time.sleep(_WATCH_SECONDS)
        before, found = found, context.run(work)
        if found != before:
            if on_terminal():
                click.clear()
            _print_graph(found)


def _print_graph(graph: Graph) -> None:
    done, total = graph.progress
    print_line(f"{graph.label}: {graph_state(graph.state)}, {done:,} of {counted(total, 'node')}")
    if graph.error:
        print_line(graph.error)
    critical = {*graph.critical_path()}
    rows = [_row(depth, node, node.job in critical) for depth, node in tree(graph)]
    if rows:
        head = ("node", "task", "job", "state", "took", "", "note")
        print_table(head, rows, right=("took",), optional=("took",))


def _row(depth: int, node: GraphNode, is_critical: bool) -> tuple[object, ...]:
    kind = " (handler)" if node.handler else f" ({node.kind})" if node.kind in _KINDS else ""
    took = "" if node.seconds is None else duration(node.seconds)
    mark = "*" if is_critical else ""
    name = f"{'  ' * depth}{node.path or '-'}"
    job = short_id(node.job) if node.job else ""
    is_open = node.kind == "signal" and not node.has_ended
    note = "not given yet" if is_open else node.error
    return name, f"{node.task}{kind}", job, node.state, took, mark, note


def _document(graph: Graph) -> dict[str, Any]:
    done, total = graph.progress
    return {
        "id": graph.id,
        "graph": graph.label,
        "state": graph_state(graph.state),
        "done": done,
        "total": total,
        "counts": graph.counts(),
        "error": graph.error,
        "critical_path": graph.critical_path(),
        "nodes": [msgspec.to_builtins(node) for node in graph.nodes],
    }


@command()
@click.argument("graph")
@click.option("--svg", "as_svg", is_flag=True, help="Draw it as SVG, an image.")
def draw(context: CommandContext, graph: str, as_svg: bool, as_json: bool) -> None:
    """Draw a graph as a Mermaid flowchart or SVG. Many documentation tools show Mermaid."""

    async def work(operations: Operations) -> Graph:
        return await operations.graphs.show(await find_job_id(operations, graph))

    print_drawing(context.run(work), as_svg, as_json)


def print_drawing(graph: Graph, as_svg: bool, as_json: bool) -> None:
    """Print a graph as a Mermaid flowchart or as SVG."""
    text = svg(graph, alone=True) if as_svg else mermaid(graph)
    if as_json:
        print_json({"svg" if as_svg else "mermaid": text})
    else:
        for line in text.splitlines():
            print_line(line)


# --- changing --------------------------------------------------------------------------------


@command()
@click.argument("graph")
@click.option("--node", metavar="NODE", help="Run only this failed node again.")
@click.option("--from", "start", metavar="NODE", help="Run this node and all after it again.")
@click.option("--arguments", metavar="JSON", help="New arguments of the node, as in '[1, 2]'.")
def retry(
    context: CommandContext,
    graph: str,
    node: str | None,
    start: str | None,
    arguments: str | None,
    as_json: bool,
) -> None:
    """Continue a failed graph: run its failed nodes again. Nodes that have succeeded do not run."""
    if node is not None and start is not None:
        raise click.UsageError("--node and --from: give one of them.")
    changed = None if arguments is None else _read_json("--arguments", arguments)

    async def work(operations: Operations) -> RetriedGraph:
        job = await find_job_id(operations, graph)
        return await operations.graphs.retry(job, node=node, start=start, arguments=changed)

    retried = context.run(work)
    if as_json:
        print_json(retried)
        return
    nodes = ", ".join(path or "-" for path in retried.nodes[:8])
    more = len(retried.nodes) - 8
    print_line(
        f"Graph {short_id(retried.graph)} continues with {counted(retried.jobs, 'job')}, from"
        f" {'node' if len(retried.nodes) == 1 else 'nodes'} {nodes}"
        + (f" and {more:,} more." if more > 0 else ".")
    )


@command()
@click.argument("graph")
@click.option("--reason", default="cancelled by an operator", show_default=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def cancel(context: CommandContext, graph: str, reason: str, yes: bool, as_json: bool) -> int:
    """Cancel a graph. Waiting nodes are cancelled, running ones are stopped.

    The exit code is 1 if it had ended already.
    """

    async def find(operations: Operations) -> Graph:
        return await operations.graphs.show(await find_job_id(operations, graph))

    found = context.run(find)
    done, total = found.progress
    require_confirmation(
        f"Cancel {found.label} with {counted(total - done, 'node')} that have not ended?", yes
    )

    async def work(operations: Operations) -> bool:
        return await operations.graphs.cancel(found.id, reason)

    cancelled = context.run(work)
    if as_json:
        print_json({"graph": found.id, "cancelled": cancelled})
    elif cancelled:
        print_line(f"Cancelled graph {found.id}.")
    else:
        print_note(f"Graph {found.id} had ended already: {graph_state(found.state)}.")
    return 0 if cancelled else FAILED


@command()
@click.argument("graph")
@click.argument("node")
@click.option("--result", required=True, metavar="JSON", help="The result, as in '{\"id\": 7}'.")
def resolve(context: CommandContext, graph: str, node: str, result: str, as_json: bool) -> int:
    """Mark a node as succeeded, with a result that you supply. The exit code is 1 if it runs."""
    value = _read_json("--result", result)

    async def work(operations: Operations) -> bool:
        job = await find_job_id(operations, graph)
        return await operations.graphs.resolve(job, node, value)

    resolved = context.run(work)
    if as_json:
        print_json({"resolved": resolved})
    elif resolved:
        print_line(f"Node {node} has succeeded with this result; the graph continues.")
    else:
        print_note(f"Node {node} runs now: cancel its job first, or wait.")
    return 0 if resolved else FAILED


def _read_json(option: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigurationError(f"{option}: not JSON: {error}") from None


for _command in (list_graphs, show, draw, retry, cancel, resolve):
    graphs.add_command(_command)
