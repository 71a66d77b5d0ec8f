"""Owns the web pages and the HTTP interface for operators: a view of the store, without own state.

Called by: ``umbel dashboard``, ``umbel dev``, and applications that mount ``dashboard(app)``.
Never: reads or changes anything except through ``Operations`` and the application's client.
"""

from umbel.dashboard.options import DashboardOptions
from umbel.dashboard.server import dashboard

__all__ = ["DashboardOptions", "dashboard"]
