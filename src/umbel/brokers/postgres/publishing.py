"""The steps of a publish, whoever's connection they run on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from umbel.brokers.port import Published
from umbel.brokers.postgres.rows import job_arrays
from umbel.drivers.postgres import Steps, texts
from umbel.errors import DuplicateJob, Unavailable
from umbel.messages import Envelope, State

Queries = Mapping[str, bytes]

_ROUNDS = 5


def cannot_fail(envelopes: Sequence[Envelope]) -> bool:
    """Whether one statement does it all or nothing: no unique key can spoil half of a batch."""
    return len(envelopes) == 1 or all(
        e.unique is None or e.on_conflict == "return" for e in envelopes
    )


def inserting(sql: Queries, envelopes: Sequence[Envelope]) -> Steps[list[Envelope]]:
    """Adds what is new. Gives the envelopes that were not added."""
    rows = yield sql["insert_jobs"], job_arrays(envelopes)
    added, places, _ = rows[0]
    if added == len(envelopes):
        return []
    left = [envelopes[place - 1] for place in places or ()]
    if added + len(left) < len(envelopes):
        left += _repeated(envelopes)
    return left


def publishing(sql: Queries, envelopes: Sequence[Envelope]) -> Steps[list[Published]]:
    """All envelopes, in one go and in one transaction of whoever runs it.

    Raises:
        DuplicateJob: a live job holds the unique key and the envelope says to raise.
    """
    left = yield from inserting(sql, envelopes)
    return (yield from resolving(sql, envelopes, left))


def resolving(
    sql: Queries, envelopes: Sequence[Envelope], left: Sequence[Envelope], *, strict: bool = True
) -> Steps[list[Published]]:
    """What became of each, when ``left`` could not be added at first.

    Not ``strict``: a conflict that would raise keeps the holder instead.
    """
    found: dict[int, Published] = {}
    for _ in range(_ROUNDS):
        if not left:
            return [found.get(id(e)) or Published(e.id) for e in envelopes]
        found |= yield from _explained(sql, left, strict)
        left = [e for e in left if id(e) not in found]
        if left:  # the holder was replaced, or has finished meanwhile: the key is free
            left = yield from inserting(sql, left)
    raise Unavailable("the unique key changes hands too quickly; try again")


def _explained(sql: Queries, left: Sequence[Envelope], strict: bool) -> Steps[dict[int, Published]]:
    """Why these were not added; those missing from the answer can be added now."""
    known = {row[0] for row in (yield sql["known_ids"], {"id": texts([e.id for e in left])})}
    holders = yield from _holders(sql, [e for e in left if e.unique is not None])
    found: dict[int, Published] = {}
    for envelope in left:
        holder, state = holders.get((envelope.namespace, envelope.unique or ""), ("", ""))
        if envelope.id.lower() in known:
            found[id(envelope)] = Published(envelope.id, existing=True)
        elif not holder:
            continue
        elif envelope.on_conflict == "replace" and state != State.RUNNING:
            reason = f"replaced by {envelope.id}"
            yield (
                sql["cancel_idle"],
                {"id": texts([holder]), "reason": texts([reason]), "namespace": envelope.namespace},
            )
        elif envelope.on_conflict != "return" and strict:
            raise DuplicateJob(envelope.unique or "", holder)
        else:
            found[id(envelope)] = Published(holder, existing=True)
    return found


def _holders(
    sql: Queries, envelopes: Sequence[Envelope]
) -> Steps[dict[tuple[str, str], tuple[str, str]]]:
    if not envelopes:
        return {}
    keys = {
        "namespace": texts([e.namespace for e in envelopes]),
        "unique_key": texts([e.unique for e in envelopes]),
    }
    rows = yield sql["unique_holders"], keys
    return {(namespace, key): (job, state) for namespace, key, job, state in rows}


def _repeated(envelopes: Sequence[Envelope]) -> list[Envelope]:
    """Envelopes whose id stands in the batch before them."""
    seen: set[str] = set()
    repeated = []
    for envelope in envelopes:
        if envelope.id.lower() in seen:
            repeated.append(envelope)
        seen.add(envelope.id.lower())
    return repeated
