"""A valid event with every field, for tests that change it."""

from __future__ import annotations

from typing import Any

import targets

from umbel.messages import JSON

EVENT: dict[str, Any] = {
    "specversion": "1.0",
    "id": targets.JOB,
    "type": "umbel.command",
    "source": "/fuzz",
    "subject": "zoo.plain",
    "data": {"args": [1, "x"], "kwargs": {}},
    "time": "2026-01-31T12:00:00Z",
    "datacontenttype": JSON,
    "namespace": "umbel",
    "queue": "default",
    "kind": "io",
    "priority": 1,
    "notbefore": "2026-01-31T12:00:00Z",
    "expiry": "2027-01-31T12:00:00Z",
    "attempt": 1,
    "maxdeaths": 3,
    "uniquekey": "only",
    "onconflict": "raise",
    "traceparent": "00-a-b-01",
    "tenant": "acme",
}
