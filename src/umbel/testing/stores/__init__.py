"""The suites of the store's roles."""

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{topic}" for topic in ("control", "pruning", "records", "registry")),
    *(f"{__name__}.{topic}" for topic in ("replaying", "results")),
)

from umbel.testing.stores.control import Cancelling, Changes, Pauses  # noqa: E402
from umbel.testing.stores.pruning import Pruning, Removing  # noqa: E402
from umbel.testing.stores.records import Finding, Progress, Searching  # noqa: E402
from umbel.testing.stores.registry import Lives  # noqa: E402
from umbel.testing.stores.replaying import Replaying  # noqa: E402
from umbel.testing.stores.results import Results  # noqa: E402

__all__ = ["TOPICS", "StoreSuite"]

TOPICS = (
    *(Finding, Searching, Progress, Results, Replaying, Pruning, Removing),
    *(Lives, Pauses, Cancelling, Changes),
)


class StoreSuite(
    Finding,
    Searching,
    Progress,
    Results,
    Replaying,
    Pruning,
    Removing,
    Lives,
    Pauses,
    Cancelling,
    Changes,
):
    """Everything the store's ports promise. Inherit it beside a ``backend`` fixture."""
