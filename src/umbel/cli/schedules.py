"""``umbel schedules [list] | show | next | history | add | edit | pause | resume | …``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from umbel.cli.arguments import build_cloudevent, fit_to_task, parse
from umbel.cli.command_context import CommandContext, command, group
from umbel.cli.formatting import count as counted
from umbel.cli.formatting import relative_time
from umbel.cli.operator import operator_name
from umbel.cli.output import print_json, print_line, print_note, print_table
from umbel.cli.short_names import find_callable
from umbel.clock import iso_time
from umbel.messages import Envelope, State
from umbel.messages.wire import read
from umbel.operations import Operations, ScheduleView

if TYPE_CHECKING:
    from umbel.app import Umbel
    from umbel.schedules import Plan, Timing

_FIELDS = ("fires", "zone", "overlap", "catch_up", "jitter")


class Moment(click.ParamType[datetime]):
    """A date and time of ISO 8601."""

    name = "TIME"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        try:
            return datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r:.80}: give a time, as in 2030-01-31T09:00", param, ctx)


def _plan_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say when a schedule fires."""
    for option in reversed(
        [
            click.option("--cron", metavar="EXPR", help="Cron expression, as in '0 3 * * *'."),
            click.option("--every", type=int, metavar="SECONDS", help="Interval."),
            click.option("--phase", type=int, metavar="SECONDS", help="Delay of --every (0)."),
            click.option("--at", type=Moment(), help="Once, at this time in the zone."),
            click.option("--zone", metavar="ZONE", help="Time zone, as in Europe/Vienna (UTC)."),
            click.option(
                "--overlap",
                type=click.Choice(["skip", "queue", "allow"]),
                help="If the job before has not ended (skip).",
            ),
            click.option(
                "--catch-up",
                type=click.Choice(["none", "last", "all"]),
                help="Which missed ticks to publish (last).",
            ),
            click.option("--jitter", type=int, metavar="SECONDS", help="Maximum delay (0)."),
        ]
    ):
        function = option(function)
    return function


# --- reading ---------------------------------------------------------------------------------


@group()
def schedules(context: CommandContext, as_json: bool) -> None:
    """Show schedules and their next times; add, edit, pause, trigger."""
    _show_list(context, as_json)


@command(name="list")
def list_schedules(context: CommandContext, as_json: bool) -> None:
    """List all schedules with their next and last times."""
    _show_list(context, as_json)


def _show_list(context: CommandContext, as_json: bool) -> None:
    async def work(operations: Operations) -> list[ScheduleView]:
        return await operations.schedules.all()

    found = context.run(work)
    if as_json:
        print_json([_document(one) for one in found])
    elif not found:
        print_line("There are no schedules. A worker declares those of its code when it starts.")
    else:
        head = ("name", "fires", "next", "last", "state", "missed")
        print_table(head, [*map(_row, found)], right=("missed",), optional=("missed", "last"))


def _row(view: ScheduleView) -> tuple[object, ...]:
    return (
        view.name,
        view.plan.timing.describe(),
        relative_time(view.next, view.now),
        relative_time(view.last, view.now),
        view.state + (", changed" if view.changes else ""),
        view.missed or "",
    )


@command()
@click.argument("name")
def show(context: CommandContext, name: str, as_json: bool) -> None:
    """Show one schedule: what the code says, and what an operator has changed."""

    async def work(operations: Operations) -> ScheduleView:
        return await operations.schedules.show(name)

    view = context.run(work)
    if as_json:
        print_json(_document(view))
        return
    by = f" by {view.changed_by}" if view.changed_by else ""
    reason = f": {view.reason}" if view.reason else ""
    origin = "declared in code" if view.origin == "code" else f"added{by}"
    print_line(f"{view.name}: {view.state}{reason}; {origin}")
    print_line(f"task {view.task}")
    in_force, defined = _values(view.plan), _values(view.defined)
    edited = {"fires" if field == "timing" else field for field in view.changes}
    rows = [
        (
            field.replace("_", "-"),
            in_force[field],
            defined[field],
            f"changed{by}" if field in edited else "",
        )
        for field in _FIELDS
    ]
    origin_name = "in code" if view.origin == "code" else "added as"
    print_table(("field", "in force", origin_name, ""), rows)
    print_line(f"next {_time(view.next, view)}")
    print_line(f"last {_time(view.last, view)}")
    print_line(
        f"{counted(view.published, 'tick')} published, {view.missed:,} missed,"
        f" {view.skipped:,} skipped"
    )


def _values(plan: Plan) -> dict[str, str]:
    timing = plan.timing
    fires = timing.cron if timing.cron is not None else timing.describe()
    values = (fires, timing.zone, plan.overlap, plan.catch_up, f"{plan.jitter} s")
    return dict(zip(_FIELDS, values, strict=True))


@command(name="next")
@click.argument("name", required=False)
@click.option("-n", "--count", default=5, show_default=True, type=click.IntRange(1, 1_000))
def next_times(context: CommandContext, name: str | None, count: int, as_json: bool) -> None:
    """Print the next times of a schedule, or of all, in its time zone with the offset."""
    if name is None:
        _show_upcoming(context, count, as_json)
        return

    async def work(operations: Operations) -> tuple[ScheduleView, list[int]]:
        view = await operations.schedules.show(name)
        return view, await operations.schedules.next_times(name, count)

    view, found = context.run(work)
    if as_json:
        print_json([_local(one, view).isoformat() for one in found])
        return
    if view.state in ("paused", "retired"):
        print_note(f"{name} is {view.state}: it does not fire at these times.")
    if not found:
        print_line(f"{name} has no next time.")
    for one in found:
        print_line(_time(one, view))


def _show_upcoming(context: CommandContext, count: int, as_json: bool) -> None:
    async def work(operations: Operations) -> list[tuple[int, ScheduleView]]:
        return await operations.schedules.upcoming(count)

    found = context.run(work)
    if as_json:
        times = [(_local(at, view).isoformat(), view.name) for at, view in found]
        print_json([{"time": time, "name": name} for time, name in times])
    elif not found:
        print_line("No schedule has a next time.")
    else:
        rows = [
            (_local(at, view).isoformat(sep=" "), relative_time(at, view.now), view.name)
            for at, view in found
        ]
        print_table(("time", "in", "name"), rows)


@command()
@click.argument("name")
def history(context: CommandContext, name: str, as_json: bool) -> None:
    """List the last ticks of a schedule with their jobs, newest first."""

    async def work(operations: Operations) -> Any:
        return await operations.schedules.history(name)

    lines = context.run(work)
    if as_json:
        print_json([{**_as_dict(one), "nominal": iso_time(one.nominal)} for one in lines])
        return
    if not lines:
        print_line(f"{name} has not fired yet.")
        return
    rows = [
        (
            datetime.fromtimestamp(one.nominal).astimezone().isoformat(sep=" "),
            "" if one.job is None else one.job[:8],
            f"{one.missed:,} missed" if one.missed else (one.state or "deleted"),
            one.reason,
        )
        for one in lines
    ]
    print_table(("due", "job", "state", "reason"), rows)


def _as_dict(value: Any) -> dict[str, Any]:
    import msgspec

    return msgspec.structs.asdict(value)


# --- changing --------------------------------------------------------------------------------


@command()
@click.argument("name")
@click.argument("task")
@click.argument("words", metavar="[ARGS | KEY=VALUE]…", nargs=-1)
@click.option("--queue", help="Put the jobs into this queue instead of the task's own.")
@_plan_options
def add(
    context: CommandContext,
    name: str,
    task: str,
    words: tuple[str, ...],
    queue: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Add a schedule that publishes TASK, a task or a workflow, with these arguments.

    It does not depend on the code: it stays until umbel schedules remove.

    \b
    umbel -A tasks schedules add nightly report 7 --cron '0 3 * * *' --zone Europe/Vienna
    """
    from umbel.schedules import Plan, make_timing

    app = context.app_or_bare
    timing = make_timing(**_given(options, "cron", "every", "phase", "at", "zone"))
    plan = Plan(timing=timing, **_given(options, "overlap", "catch_up", "jitter"))
    template = _template(app, name, task, words, queue)

    async def work(operations: Operations) -> ScheduleView:
        return await operations.schedules.add(name, plan, template, operator_name())

    _report(context.run(work), "added", as_json)


def _template(
    app: Umbel, name: str, task: str, words: tuple[str, ...], queue: str | None
) -> Envelope:
    from umbel.app.schedules import make_template

    call, chosen = parse([*words], None), {"queue": queue} if queue else {}
    if not len(app.registry):
        # Without an application the task is unknown here; its worker checks the arguments.
        found = read(build_cloudevent(task, call, chosen))
        return Envelope(id="", subject=task, body=found.body, queue=found.queue)
    known = find_callable(app, task)
    args, kwargs = fit_to_task(known, call)
    options: Any = chosen
    return make_template(name, known.options(**options).s(*args, **kwargs), app.build)


@command()
@click.argument("name")
@_plan_options
@click.option("--reset", is_flag=True, help="Take back all earlier changes first.")
def edit(context: CommandContext, name: str, reset: bool, as_json: bool, **options: Any) -> None:
    """Change a schedule. The change wins over the code, field by field, until --reset.

    It applies to later times only. Editing a schedule never publishes a job.

    \b
    umbel schedules edit nightly --cron '0 4 * * *'
    umbel schedules edit nightly --reset
    """
    changes = _given(options, "zone", "overlap", "catch_up", "jitter")
    timing = _given(options, "cron", "every", "phase", "at")
    if not reset and not changes and not timing:
        raise click.UsageError("nothing to change: give an option, or --reset.")

    async def work(operations: Operations) -> ScheduleView:
        if timing:
            old = (await operations.schedules.show(name)).plan.timing
            every = {"every": old.every} if timing.keys() == {"phase"} else {}
            changes["timing"] = _timing({**every, **timing}, options["zone"] or old.zone)
        return await operations.schedules.edit(name, changes, reset=reset, who=operator_name())

    _report(context.run(work), "reset" if reset and len(changes) == 0 else "changed", as_json)


def _timing(options: dict[str, Any], zone: str) -> Timing:
    from umbel.schedules import make_timing

    return make_timing(**options, zone=zone)


@command()
@click.argument("name")
@click.option("--reason", default="", help="Reason, shown to operators.")
def pause(context: CommandContext, name: str, reason: str, as_json: bool) -> None:
    """Publish no more jobs of a schedule. Ticks during the pause are not caught up."""

    async def work(operations: Operations) -> ScheduleView:
        return await operations.schedules.pause(name, reason, operator_name())

    _report(context.run(work), "paused", as_json)


@command()
@click.argument("name")
def resume(context: CommandContext, name: str, as_json: bool) -> None:
    """Publish the jobs of a schedule again, from its next time on."""

    async def work(operations: Operations) -> ScheduleView:
        return await operations.schedules.resume(name)

    _report(context.run(work), "resumed", as_json)


@command()
@click.argument("name")
def trigger(context: CommandContext, name: str, as_json: bool) -> None:
    """Publish a job of a schedule now, in addition to its ticks, and print its id."""

    async def work(operations: Operations) -> tuple[str, State]:
        return await operations.schedules.trigger(name)

    job, state = context.run(work)
    if as_json:
        print_json({"id": job, "state": state})
        return
    if state is State.CANCELLED:
        print_note("It was skipped: the job before it has not ended.")
    print_line(job)


@command()
@click.argument("name")
def remove(context: CommandContext, name: str, as_json: bool) -> None:
    """Delete a schedule that was added, or a retired one, with its history."""

    async def work(operations: Operations) -> None:
        await operations.schedules.remove(name)

    context.run(work)
    if as_json:
        print_json({"removed": name})
    else:
        print_line(f"{name}: removed")


def _given(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: options[name] for name in names if options[name] is not None}


def _report(view: ScheduleView, done: str, as_json: bool) -> None:
    if as_json:
        print_json(_document(view))
        return
    if view.plan.warning and done in ("added", "changed"):
        print_note(f"warning: {view.plan.warning}")
    following = f"; next {_time(view.next, view)}" if view.next is not None else ""
    print_line(f"{view.name}: {done}{following}")


def _document(view: ScheduleView) -> dict[str, Any]:
    """Return a schedule for programs."""
    times = {name: iso_time(getattr(view, name)) for name in ("next", "last")}
    plans = {name: _values(getattr(view, name)) for name in ("plan", "defined")}
    return {**_as_dict(view), **plans, **times, "now": iso_time(view.now)}


def _local(seconds: float, view: ScheduleView) -> datetime:
    return datetime.fromtimestamp(seconds, view.plan.timing.tzinfo)


def _time(seconds: float | None, view: ScheduleView) -> str:
    if seconds is None:
        return "never"
    return f"{_local(seconds, view).isoformat(sep=' ')}  {relative_time(seconds, view.now)}"


for _command in (list_schedules, show, next_times, history, add, edit, pause, resume):
    schedules.add_command(_command)
schedules.add_command(trigger)
schedules.add_command(remove)
