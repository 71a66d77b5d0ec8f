"""Changes JSON as JSON. Bytes changed blindly are mostly no JSON any more, and lead nowhere."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from hostile import ODD_NUMBERS, ODD_TEXT, written

WORDS = (
    *("specversion", "1.0", "id", "type", "umbel.command", "source", "subject", "time", "data"),
    *("data_base64", "datacontenttype", "namespace", "queue", "kind", "priority", "notbefore"),
    *("expiry", "attempt", "maxdeaths", "uniquekey", "onconflict", "traceparent", "malformed"),
    *("io", "cpu", "raise", "return", "replace", "application/json", "application/msgpack"),
    *("args", "kwargs", "retry", "times", "first", "factor", "cap", "jitter", "timeout", "track"),
    *("number", "worker", "started", "finished", "ended", "failure", "message", "traceback"),
    *("2026-01-31T12:00:00Z", "0001-01-01T00:00:00+01:00", "red", "1.5", "PT1S", "[]", "{}"),
)
LITERALS = (None, True, False, *ODD_NUMBERS, *(text for text in ODD_TEXT if len(text) < 100))


def mutate_json(data: bytes, random: Random) -> bytes | None:
    """The JSON with one to three places changed; None for what is no JSON container."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict | list):
        return None
    for _ in range(random.randint(1, 3)):
        _change(random.choice(_containers(document)), random)
    return written(document).encode()


def _containers(value: Any) -> list[Any]:
    found, waiting = [], [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict | list):
            found.append(one)
            waiting += one.values() if isinstance(one, dict) else one
    return found


def _change(container: Any, random: Random) -> None:
    """Put something new into it, or something else into one of its places, or take one out."""
    keys = list(container) if isinstance(container, dict) else list(range(len(container)))
    act = random.randrange(4)
    if keys and act == 0:
        del container[random.choice(keys)]
    elif keys and act in (1, 2):
        container[random.choice(keys)] = _fresh(random)
    elif isinstance(container, dict):
        container[random.choice(WORDS)] = _fresh(random)
    else:
        container.append(_fresh(random))


def _fresh(random: Random) -> Any:
    match random.randrange(5):
        case 0:
            return random.randint(-2, 20)
        case 1:
            return random.choice(LITERALS)
        case 2:
            return {random.choice(WORDS): random.choice(LITERALS)}
        case 3:
            return [random.choice(WORDS)]
        case _:
            return random.choice(WORDS)
