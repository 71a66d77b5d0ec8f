"""The steps of publishing, for any kind of connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from umbel.backends.broker import Published, unique_key_taken
from umbel.backends.postgres.arrays import texts
from umbel.backends.postgres.job_rows import (
    is_plain,
    is_uniform,
    job_arrays,
    job_row,
    plain_row,
    uniform_arrays,
)
from umbel.backends.postgres.statements import KeyTaken
from umbel.backends.sql.statements import Row, Steps
from umbel.errors import DuplicateJob, Unavailable
from umbel.messages import Envelope, State

Queries = Mapping[str, bytes]

_MAX_ROUNDS = 5


def is_one_statement(envelopes: Sequence[Envelope]) -> bool:
    """Return whether one statement is enough: no unique key can refuse a part of the batch."""
    return len(envelopes) == 1 or all(
        e.unique is None or e.on_conflict == "return" for e in envelopes
    )


def insert_steps(
    sql: Queries,
    envelopes: Sequence[Envelope],
    *,
    alone: bool = False,
    idle: str = "queued",
    part: bool = False,
) -> Steps[list[int]]:
    """Add new jobs. Return the places of the envelopes that were not added.

    ``alone``: no transaction is open, so a statement that fails affects nothing else. ``idle`` is
    the state of jobs that are not scheduled, or "blocked" for all of them. ``part``: joins count
    their ends.
    """
    state = {"idle": idle, "part": part}
    if len(envelopes) == 1:
        rows = yield from _insert_one(sql, envelopes[0], state)
        return [] if rows else [0]
    if alone and is_uniform(envelopes):
        rows = yield from _insert_uniform(sql, envelopes, state)
    else:
        rows = yield sql["insert_jobs"], job_arrays(envelopes) | state
    added, places, _ = rows[0]
    if added == len(envelopes):
        return []
    left = [place - 1 for place in places or ()]
    if added + len(left) < len(envelopes):
        left += _repeated(envelopes, set(left))
    return left


def _insert_one(sql: Queries, envelope: Envelope, state: dict[str, Any]) -> Steps[list[Row]]:
    if is_plain(envelope) and state["idle"] != "blocked" and not state["part"]:
        return (yield sql["insert_plain"], plain_row(envelope) | state)
    return (yield sql["insert_job"], job_row(envelope) | state)


def _insert_uniform(
    sql: Queries, envelopes: Sequence[Envelope], state: dict[str, Any]
) -> Steps[list[Row]]:
    try:
        return (yield sql["insert_uniform"], uniform_arrays(envelopes) | state)
    except KeyTaken:  # an id is known, so nothing was added: find out which
        return (yield sql["insert_jobs"], job_arrays(envelopes) | state)


def publish_steps(sql: Queries, envelopes: Sequence[Envelope]) -> Steps[list[Published]]:
    """Publish all envelopes in the open transaction.

    Raises:
        DuplicateJob: a live job holds the unique key, and ``on_conflict`` is "raise".
    """
    left = yield from insert_steps(sql, envelopes)
    return (yield from resolve_steps(sql, envelopes, left))


def resolve_steps(
    sql: Queries,
    envelopes: Sequence[Envelope],
    left: Sequence[int],
    *,
    strict: bool = True,
    idle: str = "queued",
    part: bool = False,
) -> Steps[list[Published]]:
    """Resolve the conflicts of the envelopes at the places ``left``. Return the result of each.

    Without ``strict``, a conflict that would raise returns the holder instead.
    """
    published = [Published(envelope.id) for envelope in envelopes]
    # If several of them replace the holder of one key, it changes once per round.
    for _ in range(_MAX_ROUNDS + len(left)):
        if not left:
            return published
        why = yield from _resolve_once(sql, [envelopes[place] for place in left], strict)
        for place, found in zip(left, why, strict=True):
            published[place] = found or published[place]
        left = [place for place, found in zip(left, why, strict=True) if found is None]
        if left:  # the holder was replaced or has finished, so the key is free
            some = [envelopes[place] for place in left]
            again = yield from insert_steps(sql, some, idle=idle, part=part)
            left = [left[place] for place in again]
    raise Unavailable("the unique key changes hands too quickly; try again")


def publish_or_record_steps(
    sql: Queries, envelopes: Sequence[Envelope], *, idle: str = "queued", part: bool = False
) -> Steps[list[Published]]:
    """Publish all envelopes in the open transaction, without raising for a unique key.

    An envelope whose unique key is taken becomes a cancelled record that names the holder.
    """
    left = yield from insert_steps(sql, envelopes, idle=idle, part=part)
    state: dict[str, Any] = {"idle": idle, "part": part}
    published = yield from resolve_steps(sql, envelopes, left, strict=False, **state)
    for place, (envelope, found) in enumerate(zip(envelopes, published, strict=True)):
        if found.existing and found.id.lower() != envelope.id.lower():
            without_key = replace(envelope, unique=None)
            yield from insert_steps(sql, [without_key], idle="blocked", part=part)
            values = {
                "namespace": envelope.namespace,
                "id": texts([envelope.id]),
                "reason": unique_key_taken(envelope.unique, found.id),
                "final": State.CANCELLED.value,
            }
            yield sql["cancel_idle"], values
            published[place] = Published(envelope.id)
    return published


def _resolve_once(
    sql: Queries, envelopes: Sequence[Envelope], strict: bool
) -> Steps[list[Published | None]]:
    """Return the result of each envelope; None if it can be added now."""
    asked = {
        "id": texts([e.id for e in envelopes]),
        "namespace": texts([e.namespace for e in envelopes]),
    }
    known = set((yield sql["known_ids"], asked))
    holders = yield from _holders(sql, [e for e in envelopes if e.unique is not None])
    found: list[Published | None] = []
    for envelope in envelopes:
        # Removed: for the envelopes after one that replaces, that one is the holder.
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
    """Resolve a unique key that a live job holds. Return None if the envelope can be added now."""
    if envelope.on_conflict == "replace" and state != State.RUNNING:
        values = {
            "namespace": envelope.namespace,
            "id": texts([holder]),
            "reason": f"replaced by {envelope.id}",
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
    """Return the places of envelopes whose id is already in the batch before them."""
    seen: set[tuple[str, str]] = set()
    repeated = []
    for place, envelope in enumerate(envelopes):
        key = envelope.namespace, envelope.id.lower()
        if key in seen and place not in left:
            repeated.append(place)
        seen.add(key)
    return repeated
