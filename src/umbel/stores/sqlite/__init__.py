"""The store's roles on SQLite."""

from umbel.stores.sqlite.control import SqliteControl
from umbel.stores.sqlite.deployments import SqliteDeployments
from umbel.stores.sqlite.gates import SqliteGates
from umbel.stores.sqlite.records import SqliteRecords
from umbel.stores.sqlite.registry import SqliteRegistry
from umbel.stores.sqlite.routes import SqliteRoutes
from umbel.stores.sqlite.steps import SqliteSteps
from umbel.stores.sqlite.transactions import SqliteTransactions

__all__ = [
    "SqliteControl",
    "SqliteDeployments",
    "SqliteGates",
    "SqliteRecords",
    "SqliteRegistry",
    "SqliteRoutes",
    "SqliteSteps",
    "SqliteTransactions",
]
