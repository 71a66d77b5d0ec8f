"""Owns the hooks for other libraries: errors to Sentry, database connections, context variables.

Called by: applications, as ``app.use(SentryHook())``.
Never: is imported by the rest of Umbel. A library is imported when its hook is made.
"""

from umbel.integrations.context import ContextHook
from umbel.integrations.django import DjangoHook
from umbel.integrations.sentry import SentryHook
from umbel.integrations.sqlalchemy import SqlalchemyHook

__all__ = ["ContextHook", "DjangoHook", "SentryHook", "SqlalchemyHook"]
