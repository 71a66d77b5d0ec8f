"""The schedules that an application declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from umbel.clock import Clock
from umbel.errors import BadArguments, ConfigurationError
from umbel.graphs import label_of
from umbel.messages import Envelope
from umbel.schedules import Calendar, Declared, Plan, check_name, make_timing
from umbel.schedules.timing import next_function
from umbel.tasks import CallOptions, Task
from umbel.tasks.composing import Composable

_TIMING = ("cron", "every", "at", "calendar", "phase", "zone")
Build = Callable[[Composable[Any]], Envelope]


class DeclaredSchedules:
    """Plans and signatures by name. Their jobs are built when a worker starts."""

    def __init__(self, build: Build, clock: Clock) -> None:
        self._build = build
        self._clock = clock
        self._declared: dict[str, tuple[Composable[Any], Plan, Calendar | None]] = {}

    def add(self, name: str, signature: Composable[Any], **options: Any) -> None:
        """Declare a schedule. Raise ConfigurationError if it is wrong or the name is taken."""
        check_name(name)
        if not isinstance(signature, Composable):
            raise ConfigurationError(
                f"schedule {name!r}: {signature!r:.80} is no signature; give one, as in report.s(7)"
            )
        known = self._declared.get(name)
        if known is not None and label_of(known[0]) != label_of(signature):
            raise ConfigurationError(f"two schedules are named {name!r}; give another name")
        plan = _plan(name, options, self._clock.now())
        self._template(name, signature)  # raises if its job cannot be stored
        self._declared[name] = (signature, plan, options.get("calendar"))

    def add_task(self, task: Task[..., Any]) -> None:
        """Declare the schedule in a task's own options, if there is one."""
        options = task.declared.schedule_options()
        if not options:
            return
        if not ({"cron", "every"} & {*options}):
            raise ConfigurationError(
                f"{', '.join(options)} of task {task.name}: give cron=... or every=... with it"
            )
        try:
            signature = task.s()
        except BadArguments as error:
            raise ConfigurationError(
                f"{next(iter(options))} of task {task.name}: {error}; give the arguments with"
                f" app.schedule(name, {task.function.__name__}.s(...))"
            ) from None
        self.add(task.name, signature, **options)

    def preview(self, name: str, count: int = 5, after: datetime | None = None) -> list[datetime]:
        """Return the next times of a schedule, in its zone, without jitter.

        Raises:
            ConfigurationError: there is no such schedule.
        """
        if name not in self._declared:
            known = ", ".join(self._declared) or "none"
            raise ConfigurationError(f"no schedule {name!r} is declared here; known: {known}")
        _, plan, calendar = self._declared[name]
        find_next, zone = next_function(plan.timing, calendar), plan.timing.tzinfo
        found: list[datetime] = []
        last = find_next(int(self._clock.now() if after is None else after.timestamp()))
        while last is not None and len(found) < count:
            found.append(datetime.fromtimestamp(last, zone))
            last = find_next(last)
        return found

    def all(self) -> Sequence[Declared]:
        """Return all of them, with the templates of their jobs."""
        return [
            Declared(name=name, plan=plan, template=self._template(name, signature), calendar=given)
            for name, (signature, plan, given) in self._declared.items()
        ]

    def _template(self, name: str, signature: Composable[Any]) -> Envelope:
        return make_template(name, signature, self._build)


def make_template(name: str, signature: Composable[Any], build: Build) -> Envelope:
    """Return the job of each tick, without what only one tick has. Raise ConfigurationError."""
    options: CallOptions = signature.call_options  # type: ignore[attr-defined]
    for field in ("worker", "connection", "id", "not_before"):
        if getattr(options, field) is not None:
            raise ConfigurationError(f"schedule {name!r}: {field}= cannot be scheduled; remove it")
    if options.stay:
        raise ConfigurationError(f"schedule {name!r}: stay= cannot be scheduled; give affinity=")
    template = replace(build(signature), id="", traceparent=None, created=0.0)
    Declared(name=name, plan=_ANY, template=template).definition.encode(name)
    return template


def _plan(name: str, options: dict[str, Any], now: float) -> Plan:
    try:
        timing = make_timing(**{key: options[key] for key in _TIMING if key in options})
        timing.check_fires(now)
        others = {key: value for key, value in options.items() if key not in _TIMING}
        return Plan(timing=timing, **others)
    except ConfigurationError as error:
        raise ConfigurationError(f"schedule {name!r}: {error}") from None


_ANY = Plan(timing=make_timing(every=1))
