"""Owns moving messages: publish, fetch under lease, extend, settle. The port and its adapters.

Called by: the publisher (publish), the router (the rest), operations (depths, purge, move).
Never: runs a task, decides an outcome, or knows which worker is best.
"""

from umbel.brokers.port import Broker, Capabilities, Demand, Depth, Published

__all__ = ["Broker", "Capabilities", "Demand", "Depth", "Published"]
