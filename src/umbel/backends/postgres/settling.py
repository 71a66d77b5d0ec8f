"""The steps of settling: outcomes, follow-ups and acknowledgements in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from umbel.backends.postgres.job_rows import (
    again_arrays,
    ends_are_uniform,
    finish_arrays,
    uniform_ends,
)
from umbel.backends.postgres.publishing import Queries, publish_or_record_steps
from umbel.backends.sql.statements import Steps
from umbel.messages import (
    Finish,
    Growth,
    Lease,
    Requeue,
    Settlement,
    disposition,
    without_growth,
)


class Batch:
    """Settlements grouped by kind. The second settlement of one lease is refused."""

    def __init__(self, settlements: Sequence[Settlement]) -> None:
        self.finish: list[tuple[Settlement, Finish]] = []
        self.again: list[tuple[Settlement, Requeue]] = []
        self.refused: list[Lease] = []
        self.follow_ups = False
        self.has_growth = False
        seen: set[tuple[str, int]] = set()
        for settlement in settlements:
            lease = settlement.lease
            if (lease.job, lease.fence) in seen:
                self.refused.append(lease)
                continue
            seen.add((lease.job, lease.fence))
            self.follow_ups = self.follow_ups or bool(settlement.follow_ups)
            end = disposition(settlement.outcome)
            if isinstance(end, Finish):
                self.has_growth = self.has_growth or settlement.growth is not None
                self.finish.append((settlement, end))
            else:
                self.again.append((settlement, end))

    @property
    def needs_one_statement(self) -> bool:
        """Whether one statement is enough."""
        return not self.follow_ups and not self.has_growth and not (self.finish and self.again)


Grow = Callable[[Lease, Growth], Steps[str | None]]


def settle_steps(sql: Queries, batch: Batch, grow: Grow) -> Steps[list[Lease]]:
    """Settle and return the leases that were refused."""
    refused: list[Settlement] = []
    finish = [*batch.finish]
    for place, (settlement, end) in enumerate(batch.finish if batch.has_growth else ()):
        if settlement.growth is not None:
            reason = yield from grow(settlement.lease, settlement.growth)
            if reason is not None:
                finish[place] = settlement, without_growth(end, reason)
    if finish:
        if ends_are_uniform(finish):
            rows = yield sql["finish_uniform"], uniform_ends(finish)
        else:
            rows = yield sql["finish"], finish_arrays(finish)
        refused += [finish[place - 1][0] for place in rows[0][0] or ()]
    if batch.again:
        rows = yield sql["again"], again_arrays(batch.again)
        refused += [batch.again[place - 1][0] for place in rows[0][0] or ()]
    if batch.follow_ups:
        yield from _publish_follow_ups(sql, batch, refused)
    return batch.refused + [settlement.lease for settlement in refused]


def _publish_follow_ups(sql: Queries, batch: Batch, refused: Sequence[Settlement]) -> Steps[None]:
    """Publish the follow-ups of accepted settlements."""
    without = {settlement.lease for settlement in refused}
    accepted = [s for s, _ in (*batch.finish, *batch.again) if s.lease not in without]
    envelopes = [envelope for settlement in accepted for envelope in settlement.follow_ups]
    if envelopes:
        # A follow-up whose unique key is taken must not roll back the outcomes of a batch.
        yield from publish_or_record_steps(sql, envelopes)
