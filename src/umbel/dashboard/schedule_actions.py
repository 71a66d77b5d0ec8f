"""What users can do with schedules."""

from __future__ import annotations

from typing import Any

from umbel.dashboard.action_requests import Action, ActionRequest
from umbel.errors import ConfigurationError, NotAllowed
from umbel.schedules import make_timing


async def _trigger(request: ActionRequest) -> str:
    job, state = await request.operations.schedules.trigger(request.get("schedule"))
    request.answer["id"] = job
    return f"Published the job {job}; it is {state.value}."


async def _pause_schedule(request: ActionRequest) -> str:
    await request.operations.schedules.pause(
        request.get("schedule"), request.reason, request.user.name
    )
    return "The schedule is paused."


async def _resume_schedule(request: ActionRequest) -> str:
    schedule, schedules = request.get("schedule"), request.operations.schedules
    if (await schedules.show(schedule)).state != "paused":
        raise NotAllowed("The schedule is not paused.")
    await schedules.resume(schedule)
    return "The schedule is active."


async def _edit_schedule(request: ActionRequest) -> str:
    schedule, schedules = request.get("schedule"), request.operations.schedules
    cron = request.optional("cron")
    every = request.number("every", 1, 366 * 86_400) if request.fields.get("every") else None
    zone = request.optional("zone")
    if cron is not None and every is not None:
        raise ConfigurationError("cron, every: give one of them")
    if cron is None and every is None and zone is None:
        raise ConfigurationError("cron, every, zone: give one of them")
    changes: dict[str, Any] = {} if zone is None else {"zone": zone}
    if cron is not None:
        changes["timing"] = make_timing(cron=cron, zone=zone)
    elif every is not None:
        phase = (await schedules.show(schedule)).plan.timing.phase
        changes["timing"] = make_timing(every=every, phase=phase % every)
    changed = await schedules.edit(schedule, changes, reset=False, who=request.user.name)
    return f"The schedule fires {changed.plan.timing.describe()}."


async def _reset_schedule(request: ActionRequest) -> str:
    schedule, schedules = request.get("schedule"), request.operations.schedules
    if not (await schedules.show(schedule)).changes:
        raise NotAllowed("The schedule has no changes.")
    changed = await schedules.edit(schedule, {}, reset=True, who=request.user.name)
    return f"The schedule fires {changed.plan.timing.describe()}, as in the code."


async def _remove_schedule(request: ActionRequest) -> str:
    await request.operations.schedules.remove(request.get("schedule"))
    return "The schedule and its history were removed."


SCHEDULE_ACTIONS = (
    Action(
        name="trigger",
        summary="Publish a job of a schedule now.",
        act=_trigger,
        fields=("schedule",),
        subject=("schedule",),
    ),
    Action(
        name="pause-schedule",
        summary="Publish no more jobs of a schedule.",
        act=_pause_schedule,
        fields=("schedule",),
        optional=("reason",),
        subject=("schedule",),
    ),
    Action(
        name="resume-schedule",
        summary="Publish jobs of a schedule again.",
        act=_resume_schedule,
        fields=("schedule",),
        subject=("schedule",),
    ),
    Action(
        name="edit-schedule",
        summary="Change when a schedule fires: by cron, every so many seconds, or its zone.",
        act=_edit_schedule,
        fields=("schedule",),
        optional=("cron", "every", "zone"),
        subject=("schedule",),
    ),
    Action(
        name="reset-schedule",
        summary="Take back all changes of a schedule.",
        act=_reset_schedule,
        fields=("schedule",),
        subject=("schedule",),
    ),
    Action(
        name="remove-schedule",
        summary="Remove a schedule that no running worker declares, with its history.",
        act=_remove_schedule,
        fields=("schedule",),
        subject=("schedule",),
    ),
)
"""The actions on schedules."""
