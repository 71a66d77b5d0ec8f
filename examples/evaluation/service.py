"""The only task of the service: send a program to an executor that no other job uses."""

import logging
import os
from typing import TypedDict

import httpx

from umbel import Retry, Umbel, current

WHERE = "http://127.0.0.1:8101 http://127.0.0.1:8102 http://127.0.0.1:8103"
URLS = os.environ.get("EXECUTORS", WHERE).split()

app = Umbel()  # sqlite:///umbel.db, or UMBEL_URL
client = httpx.AsyncClient(timeout=60)
logging.getLogger("httpx").setLevel(logging.WARNING)  # otherwise it logs every call


class Verdict(TypedDict, total=False):
    """The result of a program."""

    value: float
    error: str
    executor: str


async def answers(executor: str) -> bool:
    """Check an executor before a job gets it. False or an error puts it into quarantine."""
    return (await client.get(f"{executor}/health", timeout=2)).is_success


executors = app.pool("executors", members=URLS, check=answers)


@app.task(
    name="evaluate",
    pool=executors,
    retry=Retry(5, first=0.2),
    interruptible=True,  # on Ctrl-C, it returns to the waiting list immediately
    max_deaths=100,  # programs run in executors, so they cannot kill a worker
)
async def evaluate(program: str) -> Verdict:
    """Run a program. The job waits without a slot, a retry or a timer until it has an executor."""
    lease = current.lease
    call = {"program": program, "job": lease.job, "fence": lease.fence}
    answer = await client.post(f"{lease.member}/execute", json=call)
    answer.raise_for_status()
    verdict: Verdict = answer.json()
    verdict["executor"] = lease.member
    return verdict
