"""The conformance suite of the store's roles."""

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{topic}" for topic in ("control", "coordination", "deployments", "elections")),
    *(f"{__name__}.{topic}" for topic in ("entry_leases", "graphs", "joins", "pruning")),
    *(
        f"{__name__}.{topic}"
        for topic in (
            "publications",
            "records",
            "registry",
            "reopening",
            "replaying",
            "results",
            "gate_positions",
            "steps",
        )
    ),
)

from umbel.testing.stores.control import Cancelling, Changes, Pauses  # noqa: E402
from umbel.testing.stores.coordination import (  # noqa: E402
    Commits,
    Entries,
    PublishingCommits,
    Revisions,
)
from umbel.testing.stores.deployments import Deploying, LongRuns, RunsAndWaiting  # noqa: E402
from umbel.testing.stores.elections import Elections  # noqa: E402
from umbel.testing.stores.entry_leases import Leases, Watching  # noqa: E402
from umbel.testing.stores.gate_positions import GatePositions  # noqa: E402
from umbel.testing.stores.joins import (  # noqa: E402
    EndsOfParts,
    Firing,
    JoinResults,
    JoinsAtOnce,
    Members,
)
from umbel.testing.stores.pruning import ForgettingGates, Pruning, PruningGraphs, Removing  # noqa: E402
from umbel.testing.stores.publications import Adding, BlockedJobs, Holding  # noqa: E402
from umbel.testing.stores.records import Finding, Progress, Scanning, Searching  # noqa: E402
from umbel.testing.stores.registry import InboxReceipts, WorkerLifecycle  # noqa: E402
from umbel.testing.stores.reopening import (  # noqa: E402
    Dropping,
    Growing,
    Reopening,
    Resolving,
)
from umbel.testing.stores.replaying import Replaying  # noqa: E402
from umbel.testing.stores.results import Results  # noqa: E402
from umbel.testing.stores.steps import RecordingSteps, StepLifetime, StepTransactions  # noqa: E402

__all__ = ["TOPICS", "CoordinationSuite", "JoinSuite", "StoreSuite"]

TOPICS = (
    *(Finding, Searching, Scanning, GatePositions, Progress, Results, Replaying, Pruning),
    *(PruningGraphs, ForgettingGates, Removing),
    *(WorkerLifecycle, InboxReceipts, Pauses, Cancelling, Changes),
    *(RecordingSteps, StepLifetime, StepTransactions),
    *(Deploying, RunsAndWaiting, LongRuns),
    *(Entries, Commits, Revisions, Leases, Watching, PublishingCommits, Elections),
    *(EndsOfParts, Firing, JoinResults, Members, JoinsAtOnce, Adding, Holding, BlockedJobs),
    *(Resolving, Reopening, Dropping, Growing),
)


class StoreSuite(
    Finding,
    Searching,
    Scanning,
    GatePositions,
    Progress,
    Results,
    Replaying,
    Pruning,
    PruningGraphs,
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


class CoordinationSuite(
    Entries, Commits, Revisions, Leases, Watching, PublishingCommits, Elections
):
    """Tests of all promises of coordination. Inherit it beside a ``backend`` fixture."""


class JoinSuite(
    EndsOfParts,
    Firing,
    JoinResults,
    Members,
    JoinsAtOnce,
    Adding,
    Holding,
    BlockedJobs,
    Resolving,
    Reopening,
    Dropping,
    Growing,
):
    """Tests of all promises of joins. Inherit it beside a ``backend`` fixture."""
