"""Counters and gauges made from telemetry, in Prometheus' text format."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Literal

from umbel.telemetry import events

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

UNKNOWN = "unknown"
"""The label of tasks that the application does not have: a message may contain any name."""

_OUTCOMES: dict[type[events.Event], str] = {
    events.JobSucceeded: "succeeded",
    events.JobRetried: "retried",
    events.JobBuried: "buried",
    events.JobRejected: "rejected",
    events.JobSnoozed: "snoozed",
    events.JobInterrupted: "interrupted",
    events.JobParked: "parked",
    events.JobCancelled: "cancelled",
    events.JobExpired: "expired",
    events.OutcomeRefused: "refused",
    events.DuplicateDiscarded: "duplicate",
}

Labels = tuple[tuple[str, str], ...]
Kind = Literal["counter", "gauge", "summary"]

HELP: dict[str, tuple[Kind, str]] = {
    "umbel_jobs_started_total": ("counter", "Runs started, by task."),
    "umbel_jobs_total": ("counter", "Runs ended, by task and outcome."),
    "umbel_job_seconds": ("summary", "Duration of runs that succeeded or failed, by task."),
    "umbel_jobs_recovered_total": ("counter", "Jobs of dead workers that were requeued or buried."),
    "umbel_workers_lost_total": ("counter", "Other workers found dead."),
    "umbel_leases_lost_total": ("counter", "Times this worker lost all its leases."),
    "umbel_loop_blocked_total": ("counter", "Times the event loop was found blocked."),
    "umbel_stalls_total": (
        "counter",
        "Times jobs waited and slots were free, but nothing was fetched.",
    ),
    "umbel_service_failures_total": (
        "counter",
        "Failures of a service, after which it was restarted.",
    ),
    "umbel_unreachable_total": ("counter", "Times a server could not be reached, by service."),
    "umbel_unreachable": ("gauge", "1 while a service cannot reach its server."),
    "umbel_inbox_refused_total": ("counter", "Messages to this worker's inbox that were refused."),
    "umbel_ticks_total": ("counter", "Jobs that schedules have published, by schedule."),
    "umbel_ticks_missed_total": ("counter", "Ticks that no scheduler published in time."),
    "umbel_records_pruned_total": ("counter", "Old job records deleted."),
    "umbel_running": ("gauge", "Tasks running now."),
    "umbel_free_slots": ("gauge", "Tasks that could start now, by kind."),
    "umbel_paused": ("gauge", "Pauses in effect for this worker."),
    "umbel_stopping": ("gauge", "1 while the worker is stopping."),
    "umbel_last_beat_seconds": ("gauge", "Seconds since the last successful heartbeat."),
    "umbel_last_fetch_seconds": ("gauge", "Seconds since the last fetch returned."),
    "umbel_loop_lag_seconds": ("gauge", "How late the event loop ran its last timer."),
    "umbel_log_lines_lost_total": ("counter", "Log lines that could not be written."),
}
"""All metrics: type and help text."""

Gauge = Callable[[], Iterable[tuple[str, Labels, float]]]


class Metrics:
    """Counts events, from any thread. ``has_task`` returns whether a task gets its own label."""

    def __init__(self, has_task: Callable[[str], bool]) -> None:
        # Reentrant: a signal handler or a finalizer that publishes may interrupt the counting.
        self._lock = threading.RLock()
        self._values: dict[tuple[str, Labels], float] = {}
        self._has_task = has_task
        self._gauges: list[Gauge] = []

    def add_gauge(self, gauge: Gauge) -> None:
        """Call this for further values whenever metrics are rendered."""
        self._gauges.append(gauge)

    @property
    def unreachable(self) -> list[str]:
        """The services that cannot reach their server now."""
        with self._lock:
            return sorted(
                dict(labels)["service"]
                for (name, labels), value in list(self._values.items())
                if name == "umbel_unreachable" and value
            )

    def count(self, event: events.Event) -> None:
        """Count an event. Subscribe this method to telemetry."""
        with self._lock:
            if isinstance(event, events.JobEvent):
                self._count_job(event)
            else:
                self._count_other(event)

    def render(self) -> str:
        """Return all metrics in Prometheus' text format."""
        with self._lock:
            values = dict(self._values)
        for gauge in self._gauges:
            values.update({(name, labels): value for name, labels, value in gauge()})
        lines: list[str] = []
        for name, (kind, text) in HELP.items():
            names = (f"{name}_sum", f"{name}_count") if kind == "summary" else (name,)
            samples = sorted((k, v) for k, v in values.items() if k[0] in names)
            if samples:
                lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
                lines += [
                    f"{key[0]}{_render_labels(key[1])} {value:.17g}" for key, value in samples
                ]
        return "\n".join(lines) + "\n"

    def _add(self, name: str, value: float = 1.0, **labels: str) -> None:
        key = (name, tuple(labels.items()))
        self._values[key] = self._values.get(key, 0.0) + value

    def _count_job(self, event: events.JobEvent) -> None:
        task = event.task if self._has_task(event.task) else UNKNOWN
        if isinstance(event, events.JobStarted):
            self._add("umbel_jobs_started_total", task=task)
            return
        self._add("umbel_jobs_total", task=task, outcome=_OUTCOMES.get(type(event), "other"))
        if isinstance(event, events.JobSucceeded | events.JobRetried | events.JobBuried):
            self._add("umbel_job_seconds_sum", event.seconds, task=task)
            self._add("umbel_job_seconds_count", task=task)

    def _count_other(self, event: events.Event) -> None:
        match event:
            case events.JobsRecovered(jobs=jobs):
                self._add("umbel_jobs_recovered_total", jobs)
            case events.RecordsPruned(records=records):
                self._add("umbel_records_pruned_total", records)
            case events.TickPublished(schedule=schedule):
                self._add("umbel_ticks_total", schedule=schedule)
            case events.TicksMissed(schedule=schedule, missed=missed):
                self._add("umbel_ticks_missed_total", missed, schedule=schedule)
            case events.InboxRefused(why=why):
                self._add("umbel_inbox_refused_total", why=why)
            case events.WorkerLost():
                self._add("umbel_workers_lost_total")
            case events.LeasesLost():
                self._add("umbel_leases_lost_total")
            case events.LoopBlocked():
                self._add("umbel_loop_blocked_total")
            case events.WorkerStalled():
                self._add("umbel_stalls_total")
            case events.ServiceFailed(service=service):
                self._add("umbel_service_failures_total", service=service)
            case events.Unreachable(service=service):
                self._add("umbel_unreachable_total", service=service)
                self._values["umbel_unreachable", (("service", service),)] = 1.0
            case events.Reachable(service=service):
                self._values["umbel_unreachable", (("service", service),)] = 0.0


def _render_labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels) + "}"


def _escape(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return escaped.encode("utf-8", "replace").decode()
