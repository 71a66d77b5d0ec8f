"""What users can do with routes, and with the workers to which they lead."""

from __future__ import annotations

from umbel.dashboard.action_requests import Action, ActionRequest
from umbel.dashboard.rendering import plural
from umbel.errors import NotAllowed


async def _retire(request: ActionRequest) -> str:
    moved = await request.operations.retire(await _index(request, retiring=False))
    moves = plural(moved, "route moves", "routes move")
    return f"The worker gets no more routes; {moves} to other workers."


async def _unretire(request: ActionRequest) -> str:
    await request.operations.retire(await _index(request, retiring=True), retiring=False)
    return "The worker gets routes again."


async def _index(request: ActionRequest, *, retiring: bool | None = None) -> int:
    """Return the index that a request names. Raises NotAllowed if it is not in this state."""
    index = request.number("index", 0, 999_999)
    found = [one for one in await request.operations.worker_indexes() if one.index == index]
    if not found:
        raise NotAllowed(f"No worker has the index {index}.")
    if retiring is not None and found[0].retiring is not retiring:
        raise NotAllowed(f"The worker is {'not ' * retiring}retired.")
    return index


async def _move_route(request: ActionRequest) -> str:
    index = await _index(request)
    if await request.operations.move_route(request.get("key"), index, request.reason) is None:
        raise NotAllowed("The key has no route.")
    return f"The next route of the key goes to the worker with the index {index}."


async def _release(request: ActionRequest) -> str:
    if await request.operations.release(request.get("key"), request.reason) is None:
        raise NotAllowed("The key has no route.")
    return "The route ends; the next job with its key gets a new one."


ROUTE_ACTIONS = (
    Action(
        name="retire",
        summary="Give a worker no more routes, and move its own to other workers.",
        act=_retire,
        fields=("index",),
        subject=("index",),
    ),
    Action(
        name="unretire",
        summary="Give a worker routes again.",
        act=_unretire,
        fields=("index",),
        subject=("index",),
    ),
    Action(
        name="release",
        summary="End the route of a key.",
        act=_release,
        fields=("key",),
        optional=("reason",),
        subject=("key",),
    ),
    Action(
        name="move-route",
        summary="End the route of a key; its next route goes to the worker with this index.",
        act=_move_route,
        fields=("key", "index"),
        optional=("reason",),
        subject=("key", "index"),
    ),
)
"""The actions on routes."""
