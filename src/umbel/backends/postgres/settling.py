"""The steps of a settlement: outcomes, follow-ups and acknowledgement as one."""

from __future__ import annotations

from collections.abc import Sequence

from umbel.backends.postgres.job_rows import again_arrays, alike_ends, end_alike, finish_arrays
from umbel.backends.postgres.publishing import Queries, inserting, resolving
from umbel.backends.postgres.statements import Steps
from umbel.messages import Again, Finish, Lease, Settlement, disposition


class Batch:
    """Settlements sorted by what has to be done. One lease twice: the second one is refused."""

    def __init__(self, settlements: Sequence[Settlement]) -> None:
        self.finish: list[tuple[Settlement, Finish]] = []
        self.again: list[tuple[Settlement, Again]] = []
        self.refused: list[Lease] = []
        self.follow_ups = False
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
                self.finish.append((settlement, end))
            else:
                self.again.append((settlement, end))

    @property
    def simple(self) -> bool:
        """Whether one statement does it."""
        return not self.follow_ups and not (self.finish and self.again)


def settling(sql: Queries, batch: Batch) -> Steps[list[Lease]]:
    """Settle; gives the leases that were refused."""
    refused: list[Settlement] = []
    if batch.finish:
        if end_alike(batch.finish):
            rows = yield sql["finish_alike"], alike_ends(batch.finish)
        else:
            rows = yield sql["finish"], finish_arrays(batch.finish)
        refused += [batch.finish[place - 1][0] for place in rows[0][0] or ()]
    if batch.again:
        rows = yield sql["again"], again_arrays(batch.again)
        refused += [batch.again[place - 1][0] for place in rows[0][0] or ()]
    if batch.follow_ups:
        yield from _following(sql, batch, refused)
    return batch.refused + [settlement.lease for settlement in refused]


def _following(sql: Queries, batch: Batch, refused: Sequence[Settlement]) -> Steps[None]:
    """Publish what follows from what was accepted."""
    without = {settlement.lease for settlement in refused}
    accepted = [s for s, _ in (*batch.finish, *batch.again) if s.lease not in without]
    envelopes = [envelope for settlement in accepted for envelope in settlement.follow_ups]
    if envelopes:
        left = yield from inserting(sql, envelopes)
        # A follow-up whose unique key is taken must not undo the outcomes of a whole batch.
        yield from resolving(sql, envelopes, left, strict=False)
