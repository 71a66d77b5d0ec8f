"""Reading the steps of jobs. Keeping them differs per server."""

from __future__ import annotations

from umbel.backends.sql.role import SqlRole
from umbel.errors import UnknownJob
from umbel.messages import Body, Step


class SqlSteps(SqlRole):
    """The part of ``umbel.backends.steps.Steps`` that both servers share."""

    files = ("steps.sql",)

    async def steps(self, job: str) -> list[Step]:
        try:
            rows = await self._rows("steps", id=self._database.stored_id(job))
        except UnknownJob:
            return []
        return [
            Step(number=number, name=name, result=Body(kind, data), started=began, finished=ended)
            for number, name, kind, data, began, ended in rows
        ]
