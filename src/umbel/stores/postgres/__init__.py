"""The store's roles on PostgreSQL."""

from umbel.stores.postgres.control import PostgresControl
from umbel.stores.postgres.deployments import PostgresDeployments
from umbel.stores.postgres.gates import PostgresGates
from umbel.stores.postgres.records import PostgresRecords
from umbel.stores.postgres.registry import PostgresRegistry
from umbel.stores.postgres.routes import PostgresRoutes
from umbel.stores.postgres.steps import PostgresSteps
from umbel.stores.postgres.transactions import PostgresTransactions

__all__ = [
    "PostgresControl",
    "PostgresDeployments",
    "PostgresGates",
    "PostgresRecords",
    "PostgresRegistry",
    "PostgresRoutes",
    "PostgresSteps",
    "PostgresTransactions",
]
