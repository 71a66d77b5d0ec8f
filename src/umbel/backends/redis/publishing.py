"""What a publish sends, and what its answer means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from umbel.backends.broker import Published
from umbel.backends.redis.job_rows import by_place, job_row, plain_row
from umbel.backends.redis.scripts import Arguments, Script, pack, scripts
from umbel.backends.redis.values import text
from umbel.errors import DuplicateJob
from umbel.messages import Envelope

PUBLISHING = {
    name: script
    for file in ("publishing.lua", "plain.lua")
    for name, script in scripts(file).items()
}

_HANDED = 2
"""What ``publish_plain`` says when somebody has it already."""


def publish_step(envelopes: Sequence[Envelope], idle: str = "queued") -> tuple[Script, Arguments]:
    """The script that publishes these, and its arguments.

    ``idle`` is the state of what is not scheduled: queued, or sent.
    """
    if len(envelopes) == 1:
        plain = plain_row(envelopes[0], idle)
        if plain is not None:
            return PUBLISHING["publish_plain"], plain
    return PUBLISHING["publish"], [publish_arguments(envelopes, idle)]


def publish_arguments(envelopes: Sequence[Envelope], idle: str) -> bytes:
    """The arguments of ``publish``, which hands nothing over.

    What was sent already cannot be refused; and when no key can be, nobody has to look ahead.
    """
    strict = idle == "queued" and any(
        one.unique is not None and one.on_conflict != "return" for one in envelopes
    )
    return pack(idle, strict, [job_row(one) for one in envelopes])


def published(envelopes: Sequence[Envelope], answer: Sequence[Any]) -> list[Published]:
    """What became of each.

    Raises:
        DuplicateJob: a live job holds a unique key, and its envelope says to raise.
    """
    if not answer[0]:
        raise DuplicateJob(text(answer[1]), text(answer[2]))
    if len(answer) == 1:
        return [Published(one.id, handed=answer[0] == _HANDED) for one in envelopes]
    known = by_place(answer[1:])
    return [
        Published(known[place], existing=True) if place in known else Published(one.id)
        for place, one in enumerate(envelopes, 1)
    ]
