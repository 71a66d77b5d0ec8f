"""Bugs to plant in workers, to show that the checker finds them."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from umbel.backends import queries
from umbel.backends.pairs import PairBroker
from umbel.messages import Lease, Settlement, Succeeded
from umbel.router import Router

PLANTS = ("fence", "record", "pause")

_LUA = {
    "fence": (r"if fences\[key\]\[id\] ~= fence then return false end", ""),
    "pause": (r"if #keys == 0 then return paused end", "if true then return paused end"),
}
"""The same bugs in the scripts of Redis: a pattern, and its replacement."""


def plant(name: str) -> None:
    """Plant the bug in this process. The adapters must not be loaded yet."""
    if os.environ.get("UMBEL_URL", "").startswith("redis") and name in _LUA:
        _spoil_scripts(*_LUA[name])
    else:
        {"fence": _no_fence, "record": _lost_records, "pause": _no_pause}[name]()


def _no_fence() -> None:
    """Accept outcomes from every worker that ever held the job: owner and fence are not checked."""
    names = ("finish", "delete_leased", "again")
    _spoil(names, r"and (j\.)?owner = (:owner|s\.owner)", "")
    _spoil(names, r"and (j\.)?fence = (:fence|s\.fence)", "")


def _no_pause() -> None:
    """Claims do not check for pauses."""
    _spoil(("claim", "pauses", "take"), r"(pause( p)?\s+where)", r"\1 1 = 0 and")


def _lost_records() -> None:
    """One success in eight is acknowledged, but leaves no record."""
    plain = Router.settle
    PairBroker.settle = lambda self, settlements: self._job_store.settle(settlements)  # type: ignore[method-assign]

    async def settle(self: Router, settlements: Sequence[Settlement]) -> list[Lease]:
        return await plain(self, [_forget_some(settlement) for settlement in settlements])

    Router.settle = settle  # type: ignore[method-assign]


def _forget_some(settlement: Settlement) -> Settlement:
    unlucky = int(settlement.lease.job[-2:], 16) % 8 == 0
    if unlucky and isinstance(settlement.outcome, Succeeded):
        return replace(settlement, keep=False)
    return settlement


def _spoil(names: Sequence[str], pattern: str, by: str) -> None:
    """Change the text of the brokers' queries of these names, as they are loaded from now on."""
    plain: Callable[[str, str], dict[str, str]] = queries.load

    def load(package: str, filename: str) -> dict[str, str]:
        found = plain(package, filename)
        if filename != "broker.sql":
            return found
        spoilt = {name: re.sub(pattern, by, found[name]) for name in names if name in found}
        if all(found[name] == text for name, text in spoilt.items()):
            raise RuntimeError(f"nothing to spoil: {pattern} is in none of {names} of {package}")
        return found | spoilt

    queries.load = load
    for module in ("umbel.backends.sqlite.job_rows", "umbel.backends.postgres.address"):
        _use(module, load)


def _spoil_scripts(pattern: str, by: str) -> None:
    """Change the text of Redis' scripts."""
    from umbel.backends.redis.scripts import scripts as room

    module = sys.modules[room.__module__]
    plain: Callable[[str], object] = vars(module)["_script"]
    changes = 0

    def spoilt(text: str) -> object:
        nonlocal changes
        text, many = re.subn(pattern, by, text)
        changes += many
        return plain(text)

    vars(module)["_script"] = spoilt
    importlib.import_module("umbel.backends.redis.broker")
    if not changes:
        raise RuntimeError(f"nothing to spoil: {pattern} is in none of Redis' scripts")


def _use(module: str, load: Callable[[str, str], dict[str, str]]) -> None:
    """Replace the function in a module that has imported it by name."""
    loaded = importlib.import_module(module)
    if hasattr(loaded, "load"):
        loaded.load = load  # type: ignore[attr-defined]
    known: dict[str, str] | None = getattr(loaded, "SQL", None)
    if known is not None:
        known |= load("umbel.backends.sqlite", "broker.sql")
