"""The calls that publish jobs, and reading their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from umbel.backends.broker import Published
from umbel.backends.redis.job_rows import job_row, read_existing, simple_arguments
from umbel.backends.redis.scripts import Arguments, Script, pack, scripts
from umbel.backends.redis.values import text
from umbel.errors import DuplicateJob
from umbel.messages import Envelope

PUBLISH_SCRIPTS = {
    name: script
    for file in ("publishing.lua", "publish_one.lua")
    for name, script in scripts(file).items()
}


def publish_call(envelopes: Sequence[Envelope], idle: str = "queued") -> tuple[Script, Arguments]:
    """Return the script that publishes these envelopes, and its arguments.

    ``idle`` is the state of jobs that are not scheduled: queued, or sent.
    """
    if len(envelopes) == 1:
        simple = simple_arguments(envelopes[0], idle)
        if simple is not None:
            return PUBLISH_SCRIPTS["publish_one"], simple
    return PUBLISH_SCRIPTS["publish"], [publish_arguments(envelopes, idle)]


def publish_arguments(envelopes: Sequence[Envelope], idle: str) -> bytes:
    """Return the arguments of ``publish``, which never hands a job over.

    It checks all unique keys first only if that can lead to an error: sent jobs are never refused.
    """
    strict = idle == "queued" and any(
        one.unique is not None and one.on_conflict != "return" for one in envelopes
    )
    return pack(idle, strict, [job_row(one) for one in envelopes])


def read_published(envelopes: Sequence[Envelope], answer: Sequence[Any]) -> list[Published]:
    """Return the result for each envelope.

    Raises:
        DuplicateJob: a live job holds a unique key, and its envelope says to raise.
    """
    if not answer[0]:
        raise DuplicateJob(text(answer[1]), text(answer[2]))
    if len(answer) == 1:
        return [Published(one.id) for one in envelopes]
    known = read_existing(answer[1:])
    return [
        Published(known[index], existing=True) if index in known else Published(one.id)
        for index, one in enumerate(envelopes, 1)
    ]
