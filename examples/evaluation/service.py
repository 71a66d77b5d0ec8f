"""The service's one task: hand a program to an executor that nobody else uses meanwhile."""

import logging
import os
from typing import TypedDict

import httpx

from umbel import Retry, Umbel, current

WHERE = "http://127.0.0.1:8101 http://127.0.0.1:8102 http://127.0.0.1:8103"
URLS = os.environ.get("EXECUTORS", WHERE).split()

app = Umbel()  # sqlite:///umbel.db, or what UMBEL_URL says
client = httpx.AsyncClient(timeout=60)
logging.getLogger("httpx").setLevel(logging.WARNING)  # else a line for every call


class Verdict(TypedDict, total=False):
    """What became of a program."""

    value: float
    error: str
    executor: str


async def answers(executor: str) -> bool:
    """The health check, made before an executor is handed out: false or an error sets it aside."""
    return (await client.get(f"{executor}/health", timeout=2)).is_success


executors = app.pool("executors", members=URLS, check=answers)


@app.task(
    name="evaluate",
    pool=executors,
    retry=Retry(5, first=0.2),
    interruptible=True,  # on Ctrl-C back into the line, at once
    max_deaths=100,  # programs run elsewhere: none can be why a worker died
)
async def evaluate(program: str) -> Verdict:
    """Waits in line without a slot, a retry or a timer; runs once an executor is its own."""
    lease = current.lease
    call = {"program": program, "job": lease.job, "fence": lease.fence}
    answer = await client.post(f"{lease.member}/execute", json=call)
    answer.raise_for_status()
    verdict: Verdict = answer.json()
    verdict["executor"] = lease.member
    return verdict
