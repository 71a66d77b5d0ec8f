"""What the pages of workflows show."""

from __future__ import annotations

from typing import Any

from umbel.dashboard.graph_pages import graph_row
from umbel.dashboard.views import Page, View, form_fields
from umbel.errors import UnknownTask

_RUNS = 20
_COUNTED_RUNS = 2_000


async def read_workflows(view: View) -> dict[str, Any]:
    """Return the workflows and their versions, with the runs of each."""
    declared = {name: one.version for name, one in view.app.workflows.items()}
    versions = await view.operations.graphs.workflow_versions(_COUNTED_RUNS, declared)
    rows = [
        {
            "workflow": one.workflow,
            "version": one.version,
            "is_declared": one.is_declared,
            "description": _description(view, one.workflow) if one.is_declared else "",
            "running": one.live,
            "ended": one.ended,
        }
        for one in versions
    ]
    read = sum(one.live + one.ended for one in versions)
    return {"workflows": rows, "is_cut": read >= _COUNTED_RUNS, "counted": _COUNTED_RUNS}


def _description(view: View, name: str) -> str:
    return (view.app.workflows[name].__doc__ or "").strip().split("\n")[0]


async def read_workflow(view: View) -> dict[str, Any]:
    """Return one workflow: its declaration, the fields to start it, and its last runs."""
    name = view.path["name"]
    workflow = view.app.workflows.get(name)
    found = await view.operations.graphs.search(workflow=name, limit=_RUNS)
    if workflow is None and not found.roots:
        raise UnknownTask(f"no workflow {name!r:.80}")
    visibility = view.visibility
    signature = "" if workflow is None else visibility.signature(workflow.parameters.signature)
    return {
        "workflow": name,
        "version": "" if workflow is None else workflow.version,
        "signature": signature,
        "description": "" if workflow is None else _description(view, name),
        "deadline": None if workflow is None else workflow.deadline,
        "limit": None if workflow is None else workflow.limit,
        "graph": None if workflow is None else workflow.shape,
        "parameters": None if workflow is None else form_fields(workflow, visibility),
        "graphs": [graph_row(root, view) for root in found.roots[:_RUNS]],
        "is_more": len(found.roots) > _RUNS or found.after is not None,
    }


WORKFLOW_PAGES = (
    Page(name="workflows", path="/workflows", title="Workflows", read=read_workflows, seconds=5),
    Page(
        name="workflow",
        path="/workflows/{name}",
        title="Workflow",
        read=read_workflow,
        seconds=2,
    ),
)
"""The pages of workflows."""
