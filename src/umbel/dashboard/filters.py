"""Filters of jobs, as they are in addresses of pages and in actions on many jobs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from umbel.backends import JobFilter
from umbel.errors import ConfigurationError
from umbel.messages import State
from umbel.operations import JobSearch

JOB_FILTERS = ("task", "queue", "worker", "error", "text", "from", "to")
STATES = ("all", *(one.value for one in State))
PAGE_JOBS = 50


def job_search(texts: Mapping[str, str]) -> JobSearch:
    """Return the search for the jobs that match a filter. Raises ConfigurationError."""
    state = texts.get("state", "") or "all"
    if state not in STATES:
        raise ConfigurationError(f"state={state!r:.40}: give one of {', '.join(STATES)}")
    error, text = (texts.get(name, "").strip() for name in ("error", "text"))
    return JobSearch(
        wanted=JobFilter(
            states=() if state == "all" else (State(state),),
            task=texts.get("task") or None,
            queue=texts.get("queue") or None,
            worker=texts.get("worker") or None,
            since=_seconds(texts, "from"),
            until=_seconds(texts, "to"),
            limit=PAGE_JOBS,
        ),
        error=error or None,
        arguments=(text,) if text else (),
    )


def _seconds(texts: Mapping[str, str], name: str) -> float | None:
    """Return a time: ISO 8601, in UTC if it names no zone. Raises ConfigurationError."""
    text = texts.get(name, "")
    if not text:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"{name}={text!r:.40}: give a time in ISO 8601") from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
