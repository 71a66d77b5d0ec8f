"""The steps of a publish, whoever's connection they run on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from umbel.backends.broker import Published
from umbel.backends.postgres.arrays import texts
from umbel.backends.postgres.job_rows import (
    alike_arrays,
    are_alike,
    is_plain,
    job_arrays,
    job_row,
    plain_row,
)
from umbel.backends.postgres.statements import KeyTaken, Row, Steps
from umbel.errors import DuplicateJob, Unavailable
from umbel.messages import Envelope, State

Queries = Mapping[str, bytes]

_ROUNDS = 5


def cannot_fail(envelopes: Sequence[Envelope]) -> bool:
    """Whether one statement does it all or nothing: no unique key can spoil half of a batch."""
    return len(envelopes) == 1 or all(
        e.unique is None or e.on_conflict == "return" for e in envelopes
    )


def inserting(
    sql: Queries, envelopes: Sequence[Envelope], *, alone: bool = False, idle: str = "queued"
) -> Steps[list[int]]:
    """Adds what is new. Gives the places of the envelopes that were not added.

    ``alone``: in no transaction, so that a statement that fails spoils nothing else. ``idle`` is
    the state of what is not scheduled.
    """
    state = {"idle": idle}
    if len(envelopes) == 1:
        rows = yield from _insert_one(sql, envelopes[0], state)
        return [] if rows else [0]
    if alone and are_alike(envelopes):
        rows = yield from _insert_alike(sql, envelopes, state)
    else:
        rows = yield sql["insert_jobs"], job_arrays(envelopes) | state
    added, places, _ = rows[0]
    if added == len(envelopes):
        return []
    left = [place - 1 for place in places or ()]
    if added + len(left) < len(envelopes):
        left += _repeated(envelopes, set(left))
    return left


def _insert_one(sql: Queries, envelope: Envelope, state: dict[str, str]) -> Steps[list[Row]]:
    if is_plain(envelope):
        return (yield sql["insert_plain"], plain_row(envelope) | state)
    return (yield sql["insert_job"], job_row(envelope) | state)


def _insert_alike(
    sql: Queries, envelopes: Sequence[Envelope], state: dict[str, str]
) -> Steps[list[Row]]:
    try:
        return (yield sql["insert_alike"], alike_arrays(envelopes) | state)
    except KeyTaken:  # published before; nothing was added, so each has to be looked at
        return (yield sql["insert_jobs"], job_arrays(envelopes) | state)


def publishing(sql: Queries, envelopes: Sequence[Envelope]) -> Steps[list[Published]]:
    """All envelopes, in one go and in one transaction of whoever runs it.

    Raises:
        DuplicateJob: a live job holds the unique key and the envelope says to raise.
    """
    left = yield from inserting(sql, envelopes)
    return (yield from resolving(sql, envelopes, left))


def resolving(
    sql: Queries, envelopes: Sequence[Envelope], left: Sequence[int], *, strict: bool = True
) -> Steps[list[Published]]:
    """What became of each, when those at the places ``left`` could not be added at first.

    Not ``strict``: a conflict that would raise keeps the holder instead.
    """
    published = [Published(envelope.id) for envelope in envelopes]
    # A key that several of them replace changes hands once a round.
    for _ in range(_ROUNDS + len(left)):
        if not left:
            return published
        why = yield from _explained(sql, [envelopes[place] for place in left], strict)
        for place, found in zip(left, why, strict=True):
            published[place] = found or published[place]
        left = [place for place, found in zip(left, why, strict=True) if found is None]
        if left:  # the holder was replaced, or has finished meanwhile: the key is free
            again = yield from inserting(sql, [envelopes[place] for place in left])
            left = [left[place] for place in again]
    raise Unavailable("the unique key changes hands too quickly; try again")


def _explained(
    sql: Queries, envelopes: Sequence[Envelope], strict: bool
) -> Steps[list[Published | None]]:
    """Why each of these was not added; None when it can be added now."""
    asked = {
        "id": texts([e.id for e in envelopes]),
        "namespace": texts([e.namespace for e in envelopes]),
    }
    known = set((yield sql["known_ids"], asked))
    holders = yield from _holders(sql, [e for e in envelopes if e.unique is not None])
    found: list[Published | None] = []
    for envelope in envelopes:
        # Taken out: who comes after one that replaces has that one for a holder, not this.
        holder = holders.pop((envelope.namespace, envelope.unique), None)
        if (envelope.namespace, envelope.id.lower()) in known:
            answer: Published | None = Published(envelope.id, existing=True)
        elif holder is None:
            answer = None
        else:
            answer = yield from _conflict(sql, envelope, *holder, strict)
        if holder is not None and answer is not None:
            holders[envelope.namespace, envelope.unique] = holder
        found.append(answer)
    return found


def _conflict(
    sql: Queries, envelope: Envelope, holder: str, state: str, strict: bool
) -> Steps[Published | None]:
    """What becomes of an envelope whose unique key a live job holds."""
    if envelope.on_conflict == "replace" and state != State.RUNNING:
        values = {
            "namespace": envelope.namespace,
            "id": texts([holder]),
            "reason": texts([f"replaced by {envelope.id}"]),
            "final": State.CANCELLED.value,
        }
        yield sql["cancel_idle"], values
        return None
    if envelope.on_conflict != "return" and strict:
        raise DuplicateJob(envelope.unique or "", holder)
    return Published(holder, existing=True)


def _holders(
    sql: Queries, envelopes: Sequence[Envelope]
) -> Steps[dict[tuple[str, str | None], tuple[str, str]]]:
    if not envelopes:
        return {}
    keys = {
        "namespace": texts([e.namespace for e in envelopes]),
        "unique_key": texts([e.unique for e in envelopes]),
    }
    rows = yield sql["unique_holders"], keys
    return {(namespace, key): (job, state) for namespace, key, job, state in rows}


def _repeated(envelopes: Sequence[Envelope], left: set[int]) -> list[int]:
    """Places of envelopes whose id stands in the batch before them, in the same namespace."""
    seen: set[tuple[str, str]] = set()
    repeated = []
    for place, envelope in enumerate(envelopes):
        key = envelope.namespace, envelope.id.lower()
        if key in seen and place not in left:
            repeated.append(place)
        seen.add(key)
    return repeated
