"""The Hypothesis profile of all property tests, and a summary of each adapter at the end."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.configuration import set_hypothesis_home_dir

import matrix

set_hypothesis_home_dir(Path(tempfile.gettempdir()) / "umbel-hypothesis")
settings.register_profile("umbel", database=None, deadline=None, print_blob=True)
settings.load_profile("umbel")
os.environ["XDG_DATA_HOME"] = str(Path(tempfile.gettempdir()) / f"umbel-tests-{os.getuid()}")
"""No test creates the user's key in the home folder. Child processes inherit it."""


EXTENDED = (
    # Pairs whose parts are also tested alone and in other pairs.
    *("::TestRabbitmqAndRedis::", "::TestRabbitmqAndSqlite::", "::TestRedisAndSqlite::"),
    *("::TestNatsAndPostgres::", "::TestAmqpAndPostgres::", "::TestNatsAndSqliteDirectly::"),
    *("::TestNatsAndRedisDirectly::", "::TestRabbitmqAndPostgresDirectly::"),
    *(
        "::TestPostgresItselfAndRedisForSome::",
        "::TestNatsAndSqliteItselfForSome::",
        *("::TestLink::", "::TestAmqpOnUvloop::", "::TestAmqpAndSqlite::"),
        *("::TestThreeBrokersAndPostgres::", "::TestRedisAndPostgres::"),
        *("::TestGraphsOnRabbitmqAndPostgres::", "::TestGraphsOnNatsAndRedis::"),
        "::TestWatchingByPolling::",
    ),
    # Covered, at greater length, by make chaos and make soak.
    *("under_faults[redis", "under_faults[rabbitmq", "under_faults[nats", "under_faults[amqp"),
    *("leak_is_found[connection", "nothing_grows_under_steady_work", "bug_is_found[fence-frozen"),
    *("bug_is_found[pause-paused", "bug_is_found[record-cancelled"),
    # A promise about publishing that is tested with another backlog or another pair.
    *("frozen_server[nats+redis, the store", "frozen_server[nats+redis-disk"),
    *("frozen_server[nats+redis-memory", "frozen_server[rabbitmq+redis-", "alone-disk]"),
    *("alone-memory]", "frozen_server[postgres-memory", "frozen_server[redis-disk"),
    *("frozen_server[sqlite-memory", "transport_is_silent[memory-", "[asyncio-postgres"),
    *("[uvloop-postgres-trio", "keeps_no_job_from_the_store[redis-"),
    # Scenarios that also run on SQLite.
    *(
        "get_other_jobs_buried[postgres",
        "buried_with_the_reason[postgres",
        "keeps_the_order[postgres",
    ),
    *("plans_run[postgres", "as_missing[postgres", "runs_the_broadcast_too[postgres"),
    *("under_faults[postgres", "lease_costs_no_attempt[postgres", "_lengths_runs_once[postgres"),
    *("for_two_leases_is_recorded_once[postgres", "kinds_full_budget[postgres"),
    *("for_that_kind[postgres", "without_that_budget[postgres"),
    # Another pair, another call or more seeds of the same kind.
    *("test_missing_tasks.py::test_a_worker_without_a_task_delays_jobs_that_another_runs_by",),
    *("_missing_task_stays[nats", "taken_for_stalled[nats", "keep_others_waiting[nats"),
    *("can_be_cancelled[nats", "queue_have_is_reported[nats", "_reported_and_buried[nats"),
    *("as_long_as_the_first[nats", "as_long_as_the_first[redis", "clock_of_the_store[rabbitmq"),
    *(
        "peer_is_dropped[wait_finished",
        "however_far_it_got[False",
        "hold_for_every_seed[1",
    ),
    *(
        "hold_for_every_seed[2",
        "hold_for_every_seed[3",
        "hold_for_every_seed[6",
        "hold_for_every_seed[7",
        "hold_for_every_seed[8",
    ),
)
"""Left to ``make test-all``: with these a run takes half an hour on two cores."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    matrix.name_adapters(items)
    if not os.environ.get("UMBEL_TEST_ALL") and len(items) > 1000:
        left = {item for item in items if any(part in item.nodeid for part in EXTENDED)}
        config.hook.pytest_deselected(items=[*left])
        items[:] = [item for item in items if item not in left]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    matrix.tell(terminalreporter)
