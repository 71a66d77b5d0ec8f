"""Texts about pauses: what is paused, and how the pause ends."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from umbel.control import DEPLOY, MISSING, Pause
from umbel.messages import Record
from umbel.urls import mask_secrets


def paused_subject(pause: Pause) -> str:
    """Return what is paused: ``everything``, ``queue mail``, ``task shop.mail``."""
    return "everything" if pause.scope == "all" else f"{pause.scope} {pause.name}"


def paused_by(pause: Pause) -> str:
    """Return who paused it: ``an operator``, ``a deployment``, ``workers``."""
    return {"": "an operator", DEPLOY: "a deployment", MISSING: "workers"}.get(
        pause.holder, pause.holder
    )


def how_it_ends(pause: Pause) -> str:
    """Return what ends the pause, as one sentence."""
    if pause.holder == DEPLOY:
        return "It ends with the deployment: umbel deploy status"
    if pause.holder == MISSING:
        return "It ends when a worker has the task."
    if pause.holder:
        return f"It ends when {pause.holder} ends it."
    target = "" if pause.scope == "all" else f" --{pause.scope} {shlex.quote(pause.name)}"
    return f"Resume it: umbel resume{target}"


def without_missing_tasks(pauses: Iterable[Pause]) -> list[Pause]:
    """Return the pauses of operators and deployments.

    The other ones are of tasks that no running worker has, which has its own messages.
    """
    return [pause for pause in pauses if pause.holder != MISSING]


def pauses_of_job(record: Record, pauses: Sequence[Pause]) -> list[Pause]:
    """Return the pauses for which a waiting job does not start, whatever worker fetches."""
    names = {"all": "", "queue": record.queue, "task": record.task, "gate": record.gate}
    return [
        pause
        for pause in without_missing_tasks(pauses)
        if pause.scope in names and pause.name == names[pause.scope]
    ]


def why_paused(pause: Pause) -> str:
    """Return why a job does not start and what ends the pause, as two sentences."""
    subject = "Everything" if pause.scope == "all" else f"The {pause.scope} {pause.name}"
    reason = f" ({mask_secrets(pause.reason)})" if pause.reason else ""
    return f"{subject} is paused by {paused_by(pause)}{reason}. {how_it_ends(pause)}"
