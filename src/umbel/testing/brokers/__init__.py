"""The conformance suite of the broker's port."""

import pytest

pytest.register_assert_rewrite(
    *(
        f"{__name__}.{topic}"
        for topic in (
            "delays",
            "expiring",
            "fetching",
            "follow_ups",
            "gates",
            "leases",
            "job_stores",
            "machine",
        )
    ),
    *(f"{__name__}.{topic}" for topic in ("namespaces", "pausing", "priorities")),
    *(f"{__name__}.{topic}" for topic in ("publishing", "queues")),
    *(
        f"{__name__}.{topic}"
        for topic in (
            "recovery",
            "route_concurrency",
            "routes",
            "settling",
            "sorting",
            "transactions",
            "unique",
        )
    ),
)

from umbel.testing.brokers.delays import Delays, StoreTime  # noqa: E402
from umbel.testing.brokers.expiring import Expiring  # noqa: E402
from umbel.testing.brokers.fetching import Fetching, Waiting  # noqa: E402
from umbel.testing.brokers.follow_ups import FollowUps  # noqa: E402
from umbel.testing.brokers.gates import GateSuite, GateTopics  # noqa: E402
from umbel.testing.brokers.job_stores import JobStoreSuite  # noqa: E402
from umbel.testing.brokers.leases import Extending, Fences  # noqa: E402
from umbel.testing.brokers.namespaces import Namespaces  # noqa: E402
from umbel.testing.brokers.pausing import Pausing  # noqa: E402
from umbel.testing.brokers.priorities import Kinds, Priorities  # noqa: E402
from umbel.testing.brokers.publishing import Publishing  # noqa: E402
from umbel.testing.brokers.queues import Depths, Moving, Purging  # noqa: E402
from umbel.testing.brokers.recovery import Lapses, Recovery  # noqa: E402
from umbel.testing.brokers.routes import RouteSuite  # noqa: E402
from umbel.testing.brokers.settling import Finishing, Requeueing, SettlingOnce  # noqa: E402
from umbel.testing.brokers.sorting import Sorting  # noqa: E402
from umbel.testing.brokers.transactions import Transactions  # noqa: E402
from umbel.testing.brokers.unique import UniqueKeys  # noqa: E402

__all__ = ["TOPICS", "BrokerSuite", "GateSuite", "GateTopics", "JobStoreSuite", "RouteSuite"]

TOPICS = (
    *(Publishing, Transactions, UniqueKeys, Fetching, Waiting, Priorities, Kinds, Sorting, Delays),
    *(StoreTime, Expiring),
    *(Fences, Extending, Finishing, Requeueing, SettlingOnce, Recovery, Lapses, Pausing),
    *(Depths, Purging, Moving, FollowUps, Namespaces),
)


class BrokerSuite(
    Publishing,
    Transactions,
    UniqueKeys,
    Fetching,
    Waiting,
    Priorities,
    Kinds,
    Sorting,
    Delays,
    StoreTime,
    Expiring,
    Fences,
    Extending,
    Finishing,
    Requeueing,
    SettlingOnce,
    Recovery,
    Lapses,
    Pausing,
    Depths,
    Purging,
    Moving,
    FollowUps,
    Namespaces,
):
    """Tests of all promises of the broker's port. Inherit it beside a ``backend`` fixture."""
