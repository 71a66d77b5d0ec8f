"""Owns graphs: a canvas compiled to nodes and joins, what nodes read, how a graph is shown.

Called by: the client and workers, which publish and run graphs, and operations, which repairs them.
Never: knows a server. A graph is jobs that wait for joins (``backends.Joins``), nothing else.
"""

from umbel.graphs.active_runs import count_run
from umbel.graphs.boxes import Box, boxes
from umbel.graphs.cancelling import cancel_graph
from umbel.graphs.compiled import Compiled, CompiledNode
from umbel.graphs.compiler import Compiler
from umbel.graphs.declaring import check_workflow, named_id
from umbel.graphs.drawing import mermaid, tree, with_summaries
from umbel.graphs.failures import FailedNode, find_failures
from umbel.graphs.growing import AGAIN, grow
from umbel.graphs.labels import label_of
from umbel.graphs.launching import TEMPLATE_ROOT, launch_envelope, live_roots
from umbel.graphs.publications import publications
from umbel.graphs.running import NodePreparer, must_prepare
from umbel.graphs.signals import give_signal
from umbel.graphs.svg import MAX_DRAWN_NODES, svg
from umbel.graphs.values import NodeInputs, ResultReader
from umbel.graphs.view import graph_note, read_graph
from umbel.graphs.workflow_nodes import PreparedNode, Values
from umbel.messages.graphs import Graph, GraphNode

__all__ = [
    "AGAIN",
    "MAX_DRAWN_NODES",
    "TEMPLATE_ROOT",
    "Box",
    "Compiled",
    "CompiledNode",
    "Compiler",
    "FailedNode",
    "Graph",
    "GraphNode",
    "NodeInputs",
    "NodePreparer",
    "PreparedNode",
    "ResultReader",
    "Values",
    "boxes",
    "cancel_graph",
    "check_workflow",
    "count_run",
    "find_failures",
    "give_signal",
    "graph_note",
    "grow",
    "label_of",
    "launch_envelope",
    "live_roots",
    "mermaid",
    "must_prepare",
    "named_id",
    "publications",
    "read_graph",
    "svg",
    "tree",
    "with_summaries",
]
