"""Publish jobs by time: cron in a time zone, an interval, and a calendar of your own.

In one terminal:   umbel -A 08_schedules worker
In another:        python 08_schedules.py
"""

import asyncio
from datetime import UTC, datetime, timedelta

from umbel import Umbel, current

app = Umbel()


@app.task(every=1)
async def heartbeat() -> str:
    assert current.job.nominal is not None
    return current.job.nominal.isoformat()


@app.task(cron="30 2 * * *", zone="Europe/Vienna")
def back_up() -> None: ...


@app.task
def report(days: int) -> str:
    return f"report of {days} days"


def working_days(after: datetime) -> datetime:
    """Return nine o'clock of the next working day."""
    day = after.replace(hour=9, minute=0, second=0)
    while day <= after or day.weekday() > 4:
        day += timedelta(days=1)
    return day


app.schedule("weekly", report.s(7), cron="0 8 * * MON", zone="Europe/Vienna")
app.schedule("working days", report.s(1), calendar=working_days, zone="Europe/Vienna")


def show(name: str, after: datetime) -> None:
    times = app.schedules.preview(name, 3, after)
    print(f"{name:20}", ", ".join(f"{time:%a %d %b %H:%M%z}" for time in times))


async def wait_for_two_ticks() -> None:
    """Wait until the worker has run two ticks, and print how far they are apart."""
    operations = app.operations()
    done: list[int] = []
    while len(done) < 2:
        await asyncio.sleep(0.1)
        known = {one.name for one in await operations.schedules.all()}
        if "08_schedules.heartbeat" in known:
            history = await operations.schedules.history("08_schedules.heartbeat")
            done = [one.nominal for one in history if one.state == "succeeded"]
    await operations.close()
    print("heartbeat has run at whole seconds, each of them once:", len({*done}) == len(done))


if __name__ == "__main__":
    print("When summer time begins, 02:30 does not exist:")
    show("08_schedules.back_up", datetime(2026, 3, 28, 12, tzinfo=UTC))
    print("When it ends, 02:30 exists twice:")
    show("08_schedules.back_up", datetime(2026, 10, 24, 12, tzinfo=UTC))
    print("On a Friday:")
    show("weekly", datetime(2026, 11, 20, 12, tzinfo=UTC))
    show("working days", datetime(2026, 11, 20, 12, tzinfo=UTC))
    asyncio.run(wait_for_two_ticks())
    app.close()
