"""Publishing: one by one, with confirms, from sixteen threads together, in bulk."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.figures import Measures, known, per_job
from benchmarks.meters import spent
from benchmarks.scales import Scale
from benchmarks.stand import Stand


def one_by_one(stand: Stand, scale: Scale) -> Measures | None:
    return _publish(stand, "one_by_one", scale.publish, scale.publish_seconds)


def confirmed(stand: Stand, scale: Scale) -> Measures | None:
    """Where a system may be told to wait until RabbitMQ has a message, it is told to."""
    if stand.system.database != "rabbitmq":
        return None
    return _publish(
        stand, "one_by_one", scale.publish, scale.publish_seconds, {"BENCH_CONFIRM": "1"}
    )


def threads(stand: Stand, scale: Scale) -> Measures | None:
    return _publish(stand, "threads", scale.publish, scale.publish_seconds)


def in_bulk(stand: Stand, scale: Scale) -> Measures | None:
    return _publish(stand, "in_bulk", scale.bulk, scale.publish_seconds)


def _publish(
    stand: Stand, action: str, jobs: int, seconds: float, settings: Mapping[str, str] | None = None
) -> Measures | None:
    stand.fresh()
    stand.settings.update(settings or {})
    place = stand.place
    ended = place.transactions()
    with stand.caller(action, jobs=jobs, seconds=seconds) as caller:
        if not caller.offered:
            return None
        before = stand.read()
        result = caller.go()
        after = stand.read()
    done = int(result["jobs"])
    return known(
        {
            "rate": done / result["seconds"],
            "client": result["cpu"] / done,
            "server": per_job(0.0, spent(before.server, after.server), done),
            "transactions": per_job(ended, place.transactions(), done + int(result["warm"])),
            "log": per_job(before.log, after.log, done),
        }
    )
