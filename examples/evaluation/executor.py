"""An executor: it runs one small program at a time, and logs every call.

    python executor.py PORT CALLS.jsonl

A program is arithmetic, such as "2 * (3 + 4)"; each operation takes a while. Each call carries a
fencing number that grows whenever Umbel assigns this executor to a job. A call with a higher number
than the running one replaces it: Umbel assigns an executor to one job at a time, so the earlier
caller is dead or has given up. A call with a lower number is too late and is refused.
"""

import ast
import asyncio
import json
import math
import operator
import sys
import time
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

OPERATION_SECONDS = 0.02
LONGEST_PROGRAM = 10_000
OPERATIONS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


async def compute(node: ast.AST) -> float:
    """Return the value of a program without running it as Python. Raise ValueError and others."""
    match node:
        case ast.Expression():
            return await compute(node.body)
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.UnaryOp(op=ast.USub()):
            return -await compute(node.operand)
        case ast.BinOp() if type(node.op) in OPERATIONS:
            left, right = await compute(node.left), await compute(node.right)
            await asyncio.sleep(OPERATION_SECONDS)
            return float(OPERATIONS[type(node.op)](left, right))
    raise ValueError("a program has numbers, + - * / and parentheses")


async def verdict(program: str) -> dict[str, Any]:
    """Return the value of a program, or its error."""
    if len(program) > LONGEST_PROGRAM:
        return {"error": f"longer than {LONGEST_PROGRAM} characters"}
    try:
        value = await compute(ast.parse(program.strip(), mode="eval"))
    except SyntaxError as error:
        return {"error": error.msg}
    except (ArithmeticError, ValueError, RecursionError, MemoryError) as error:
        return {"error": str(error) or type(error).__name__}
    return {"value": value} if math.isfinite(value) else {"error": "too large a number"}


class Executor:
    """Runs one program at a time. Its last fencing number is read from the file after a restart."""

    def __init__(self, calls: Path) -> None:
        known = calls.read_text().splitlines() if calls.exists() else []
        self._fence = max((json.loads(line)["fence"] for line in known), default=0)
        self._calls = calls.open("a", buffering=1)
        self._alone = asyncio.Lock()
        self._running: asyncio.Task[dict[str, Any]] | None = None
        self._job = ""

    async def execute(self, request: Request) -> Response:
        try:
            call = await request.json()
        except ClientDisconnect:  # its worker died while it sent the request
            return Response(status_code=400)
        job, fence, found = call["job"], call["fence"], self._job
        if fence < self._fence:
            return self._refuse(job, fence, found)
        self._fence = fence
        if self._running is not None:
            self._running.cancel()
        async with self._alone:
            if fence < self._fence:  # a newer call came while this one waited for the lock
                return self._refuse(job, fence, found)
            return await self._run(call["program"], job, fence, found)

    def _refuse(self, job: str, fence: int, found: str) -> Response:
        self._note("refused", job, fence, found)
        return JSONResponse({"refused": f"fence {fence} is older than {self._fence}"}, 409)

    async def _run(self, program: str, job: str, fence: int, found: str) -> Response:
        self._note("start", job, fence, found)
        self._job, self._running = job, asyncio.create_task(verdict(program))
        await asyncio.wait([self._running])
        ended = "ended" if self._running.cancelled() else "done"
        answer = {} if ended == "ended" else self._running.result()
        self._job, self._running = "", None
        self._note(ended, job, fence)
        if ended == "ended":
            return JSONResponse({"refused": "a newer call took its place"}, 409)
        return JSONResponse(answer)

    async def health(self, request: Request) -> Response:
        return JSONResponse({"job": self._job, "fence": self._fence})

    def _note(self, what: str, job: str, fence: int, found: str = "") -> None:
        """Log a call. ``found`` is the job whose call was still running when this one arrived."""
        line = {"what": what, "job": job, "fence": fence, "at": time.time(), "found": found}
        self._calls.write(json.dumps(line) + "\n")


def main(port: int, calls: Path) -> None:
    async def serve() -> None:
        executor = Executor(calls)
        routes = [
            Route("/execute", executor.execute, methods=["POST"]),
            Route("/health", executor.health),
        ]
        options = uvicorn.Config(Starlette(routes=routes), port=port, log_level="warning")
        await uvicorn.Server(options).serve()

    asyncio.run(serve())


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
