"""The suites of the store's roles."""

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{topic}" for topic in ("control", "deployments", "pruning", "records")),
    *(f"{__name__}.{topic}" for topic in ("registry", "replaying", "results", "standing", "steps")),
)

from umbel.testing.stores.control import Cancelling, Changes, Pauses  # noqa: E402
from umbel.testing.stores.deployments import Deploying, LongRuns, WhatRuns  # noqa: E402
from umbel.testing.stores.pruning import Forgetting, Pruning, Removing  # noqa: E402
from umbel.testing.stores.records import Finding, Progress, Searching  # noqa: E402
from umbel.testing.stores.registry import Heard, Lives  # noqa: E402
from umbel.testing.stores.replaying import Replaying  # noqa: E402
from umbel.testing.stores.results import Results  # noqa: E402
from umbel.testing.stores.standing import Standing  # noqa: E402
from umbel.testing.stores.steps import Keeping, Staying, StepTransactions  # noqa: E402

__all__ = ["TOPICS", "StoreSuite"]

TOPICS = (
    *(Finding, Searching, Standing, Progress, Results, Replaying, Pruning),
    *(Forgetting, Removing),
    *(Lives, Heard, Pauses, Cancelling, Changes),
    *(Keeping, Staying, StepTransactions),
    *(Deploying, WhatRuns, LongRuns),
)


class StoreSuite(
    Finding,
    Searching,
    Standing,
    Progress,
    Results,
    Replaying,
    Pruning,
    Forgetting,
    Removing,
    Lives,
    Heard,
    Pauses,
    Cancelling,
    Changes,
    Keeping,
    Staying,
    StepTransactions,
    Deploying,
    WhatRuns,
    LongRuns,
):
    """Everything the store's ports promise. Inherit it beside a ``backend`` fixture."""
