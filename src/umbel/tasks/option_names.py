"""Checks the names of options, and says what to write instead of an unknown one."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from umbel.errors import ConfigurationError

_RETRY = (
    "retry=3 retries three times; retry=Retry(3, first=2, factor=2, cap=60) also sets the waits"
)
_RETRY_ON = "retry=Retry(3, on=ConnectionError) retries only these errors"
_TIMEOUT = "timeout=30 stops an attempt after 30 seconds"
_DELAY = "delay=30 waits 30 seconds before the first run"
_EXPIRES = "expires=60 starts the job within 60 seconds or never"
_REDELIVERY = (
    "leave it out: a job is acknowledged after it ran, and runs again if its worker dies;"
    " with max_deaths=1 it does not"
)
_KEPT = 'track="state" keeps no return value, track="failures" nothing of a success'
_HISTORY = "keep=3600 deletes the record of a success after an hour"
_CURRENT = "from umbel import current; current.job is the running job"
_CHOSEN_ID = "task.options(id=...) sets the id of one call"

_FROM_OTHER_LIBRARIES = {
    **dict.fromkeys(("retries", "max_retries", "max_tries", "retry_kwargs"), _RETRY),
    **dict.fromkeys(("default_retry_delay", "retry_backoff", "retry_backoff_max"), _RETRY),
    **dict.fromkeys(("retry_jitter", "min_backoff", "max_backoff", "retry_delay"), _RETRY),
    **dict.fromkeys(("autoretry_for", "retry_for", "retry_when"), _RETRY_ON),
    **dict.fromkeys(
        ("dont_autoretry_for", "throws"), "retry=Retry(3, never=ValueError) excludes errors"
    ),
    **dict.fromkeys(("time_limit", "soft_time_limit", "job_timeout"), _TIMEOUT),
    **dict.fromkeys(("countdown", "delay_seconds"), _DELAY),
    "eta": "task.options(not_before=datetime(...)) sets the earliest start of one call",
    **dict.fromkeys(("ttl", "max_age"), _EXPIRES),
    **dict.fromkeys(
        ("acks_late", "reject_on_worker_lost", "acks_on_failure_or_timeout"), _REDELIVERY
    ),
    "rate_limit": 'rate="10/s" starts ten in a second',
    **dict.fromkeys(("concurrency", "max_concurrency"), "limit=2 runs two at once"),
    **dict.fromkeys(("ignore_result", "store_results", "store_errors_even_if_ignored"), _KEPT),
    **dict.fromkeys(("result_ttl", "failure_ttl", "result_expires"), _HISTORY),
    **dict.fromkeys(("bind", "pass_context", "context"), _CURRENT),
    **dict.fromkeys(("routing_key", "queue_name", "exchange"), 'queue="mail" names the queue'),
    **dict.fromkeys(("actor_name", "task_name"), 'name="mail" names the task'),
    **dict.fromkeys(("task_id", "job_id"), _CHOSEN_ID),
    **dict.fromkeys(("lock", "queueing_lock", "singleton", "once"), "unique=True allows one job"),
    "serializer": 'Umbel(format="msgpack") sets the format of all messages',
    "track_started": "leave it out: the start of a job is always recorded",
    "at_front": "priority=1 runs before jobs of priority 0",
}


def check_option_names(given: Iterable[str], known: Collection[str], where: str) -> None:
    """Refuse names that are not options.

    Raises:
        ConfigurationError: a name is unknown; the text names it and says what to write instead.
    """
    for name in given:
        if name not in known:
            raise ConfigurationError(f"{name}: not an option of {where}; {_remedy(name, known)}")


def _remedy(name: str, known: Collection[str]) -> str:
    if name in _FROM_OTHER_LIBRARIES:
        return f"write instead: {_FROM_OTHER_LIBRARIES[name]}"
    import difflib

    near = difflib.get_close_matches(name.lower(), known, n=1)
    listed = f"the options are {', '.join(known)}"
    return f"did you mean {near[0]}? If not, {listed}" if near else listed
