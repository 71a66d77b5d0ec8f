"""Owns how our own processes talk without a broker: ports called over AMQP 1.0.

Called by: the composition root, for workers and publishers on one side, the router and the
publisher daemon on the other. Never: knows what a port is for.
"""

from umbel.links.client import Link, Stub
from umbel.links.server import LinkServer, Nodes, Served, Take

__all__ = ["Link", "LinkServer", "Nodes", "Served", "Stub", "Take"]
