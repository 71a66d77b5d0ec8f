"""The conformance suite of the store's roles."""

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{topic}" for topic in ("control", "deployments", "pruning", "records")),
    *(
        f"{__name__}.{topic}"
        for topic in ("registry", "replaying", "results", "gate_positions", "steps")
    ),
)

from umbel.testing.stores.control import Cancelling, Changes, Pauses  # noqa: E402
from umbel.testing.stores.deployments import Deploying, LongRuns, RunsAndWaiting  # noqa: E402
from umbel.testing.stores.gate_positions import GatePositions  # noqa: E402
from umbel.testing.stores.pruning import ForgettingGates, Pruning, Removing  # noqa: E402
from umbel.testing.stores.records import Finding, Progress, Searching  # noqa: E402
from umbel.testing.stores.registry import InboxReceipts, WorkerLifecycle  # noqa: E402
from umbel.testing.stores.replaying import Replaying  # noqa: E402
from umbel.testing.stores.results import Results  # noqa: E402
from umbel.testing.stores.steps import RecordingSteps, StepLifetime, StepTransactions  # noqa: E402

__all__ = ["TOPICS", "StoreSuite"]

TOPICS = (
    *(Finding, Searching, GatePositions, Progress, Results, Replaying, Pruning),
    *(ForgettingGates, Removing),
    *(WorkerLifecycle, InboxReceipts, Pauses, Cancelling, Changes),
    *(RecordingSteps, StepLifetime, StepTransactions),
    *(Deploying, RunsAndWaiting, LongRuns),
)


class StoreSuite(
    Finding,
    Searching,
    GatePositions,
    Progress,
    Results,
    Replaying,
    Pruning,
    ForgettingGates,
    Removing,
    WorkerLifecycle,
    InboxReceipts,
    Pauses,
    Cancelling,
    Changes,
    RecordingSteps,
    StepLifetime,
    StepTransactions,
    Deploying,
    RunsAndWaiting,
    LongRuns,
):
    """Tests of all promises of the store's ports. Inherit it beside a ``backend`` fixture."""
