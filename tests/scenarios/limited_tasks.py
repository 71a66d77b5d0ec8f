"""A workflow with a limit, and a worker that kills itself where a run gets or gives back its place.

``KILL_POINT`` is ``before`` or ``after``, and the call: ``commit`` or ``resolve``. It counts once
the file ``armed`` exists.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from umbel import Signal, Umbel, chain
from umbel.backends import Roles

app = Umbel(namespace="scenario")
POINT = os.environ.get("KILL_POINT", "")
FOLDER = Path(os.environ.get("TRACES", "."))


@app.task(name="note", max_deaths=100)
async def note(number: int) -> int:
    return number


@app.workflow(name="limited", limit=1)
def limited(number: int) -> Any:
    return chain(note.s(number).after(Signal("go").after(note.s(0))), note.s())


def die_once(point: str) -> None:
    if point == POINT and (FOLDER / "armed").exists():
        try:
            (FOLDER / "killed").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


class Mortal:
    """A role whose calls for runs of workflows may be the last of the process."""

    def __init__(self, role: Any) -> None:
        self._role = role

    def __getattr__(self, name: str) -> Any:
        return getattr(self._role, name)

    async def commit(self, checks: Mapping[str, int], *changes: Any, **named: Any) -> Any:
        is_of_runs = any(key.startswith("runs/") for key in checks)
        return await self._call("commit", is_of_runs, checks, *changes, **named)

    async def resolve(self, *given: Any) -> Any:
        return await self._call("resolve", True, *given)

    async def _call(self, name: str, is_meant: bool, *given: Any, **named: Any) -> Any:
        if is_meant:
            die_once(f"before {name}")
        answer = await getattr(self._role, name)(*given, **named)
        if is_meant:
            die_once(f"after {name}")
        return answer


if POINT:
    open_roles = app.backend.open

    def open_mortal(**options: Any) -> Roles:
        roles: Roles = open_roles(**options)
        changed: Any = {one: Mortal(getattr(roles, one)) for one in ("joins", "coordination")}
        return replace(roles, **changed)

    app.backend.open = open_mortal  # type: ignore[method-assign]
