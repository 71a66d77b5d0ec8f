"""Owns the supervision of long-running services: run, restart after errors, stop in order.

Called by: worker and router, which consist of services.
Never: knows what a service is for.
"""

from umbel.services.supervision import Service, UserService, keep_running, run_periodically

__all__ = ["Service", "UserService", "keep_running", "run_periodically"]
