"""Owns how long-running parts live: one shape of service, kept running, stopped in order.

Called by: worker and router, which are made of services.
Never: knows what a service is for.
"""

from umbel.services.supervision import Service, UserService, keep_running, look_after

__all__ = ["Service", "UserService", "keep_running", "look_after"]
