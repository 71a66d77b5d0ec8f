"""Owns graphs: a canvas compiled to nodes and joins, what nodes read, how a graph is shown.

Called by: the client and workers, which publish and run graphs, and operations, which repairs them.
Never: knows a server. A graph is jobs that wait for joins (``backends.Joins``), nothing else.
"""

from umbel.graphs.compiled import Compiled, CompiledNode
from umbel.graphs.compiler import MAX_NODES, Compiler
from umbel.graphs.failures import FailedNode, find_failures
from umbel.graphs.growing import grow
from umbel.graphs.publications import publications
from umbel.graphs.running import NodePreparer, PreparedNode, Values, must_prepare
from umbel.graphs.values import NodeInputs, ResultReader

__all__ = [
    "MAX_NODES",
    "Compiled",
    "CompiledNode",
    "Compiler",
    "FailedNode",
    "NodeInputs",
    "NodePreparer",
    "PreparedNode",
    "ResultReader",
    "Values",
    "find_failures",
    "grow",
    "must_prepare",
    "publications",
]
