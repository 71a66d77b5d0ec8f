"""Tests of tasks, without a server and without a worker process.

Run the tests:     pytest 07_tests.py
Or the same code:  python 07_tests.py
"""

import pytest

from umbel import Retry, Umbel, current
from umbel.testing import InMemoryJobs, in_memory

app = Umbel()


@app.task(retry=Retry(5, first=60))
def charge(order: int) -> str:
    if current.job.attempt < 3:
        raise ConnectionError("the bank does not answer")
    remind.options(queue="mail", delay=86_400).delay(order)
    return f"order {order} paid in attempt {current.job.attempt}"


@app.task
async def remind(order: int) -> str:
    return f"please rate order {order}"


@pytest.fixture
def umbel_app() -> Umbel:
    return app


def test_an_order_is_paid_and_rated(umbel_jobs: InMemoryJobs) -> None:
    charge.delay(7)
    [paid] = umbel_jobs.drain(within=3600)
    assert paid.result == "order 7 paid in attempt 3"
    umbel_jobs.assert_published(remind.options(delay=86_400), 7)
    [rated] = umbel_jobs.drain()
    assert rated.result == "please rate order 7"


def test_an_eager_call_returns_when_its_job_has_ended(umbel_jobs: InMemoryJobs) -> None:
    with umbel_jobs.eager():
        assert charge.delay(7).state == "succeeded"


def main() -> None:
    with in_memory(app) as jobs:
        charge.delay(7)
        print("published:", *jobs.published)
        for job in jobs.drain():
            print(f"{job.task.partition('.')[2]}: {job.state}, {job.result}")


if __name__ == "__main__":
    main()
