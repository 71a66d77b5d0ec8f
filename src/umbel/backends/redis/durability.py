"""What is lost when the server dies, in one sentence, as far as it tells."""

from __future__ import annotations

from collections.abc import Mapping

_UNKNOWN = "The server does not say how it keeps its data (CONFIG is forbidden to this user)"
_FSYNC = {
    "always": "Nothing that was confirmed is lost when the server dies (appendfsync always)",
    "everysec": "Up to a second of confirmed work is lost when the server dies"
    " (appendfsync everysec)",
    "no": "Some thirty seconds of confirmed work may be lost when the machine dies"
    " (appendfsync no)",
}

_SOME = "A little confirmed work may be lost when the server dies (appendfsync is not told)"
_REMEDY = ": set appendonly yes"


def verdict(settings: Mapping[str, str], replicas: int | None) -> str:
    """The sentence, from the server's settings; those it did not tell are missing."""
    parts = [_kept(settings)]
    policy = settings.get("maxmemory-policy", "noeviction")
    if policy != "noeviction" and settings.get("maxmemory", "0") != "0":
        parts.append(
            f"it drops keys, jobs included, when its memory is full ({policy}): set"
            " maxmemory-policy noeviction"
        )
    if replicas:
        parts.append(f"{replicas} connected replica{'s' if replicas > 1 else ''} may lag behind")
    return "; ".join(parts) + "."


def _kept(settings: Mapping[str, str]) -> str:
    appends = settings.get("appendonly")
    if appends is None:
        return _UNKNOWN
    if appends == "yes":
        fsync = settings.get("appendfsync", "")
        return _FSYNC.get(fsync, _SOME)
    saves = settings.get("save")
    if saves == "":
        return f"Everything is lost when the server dies (appendonly no, no snapshots){_REMEDY}"
    often = f"; a snapshot after {_often(saves)}" if saves else ""
    return (
        "Everything since the last snapshot is lost when the server dies"
        f" (appendonly no{often}){_REMEDY}"
    )


def _often(saves: str) -> str:
    """``900 1 60 1000`` in words."""
    parts = saves.split()
    pairs = zip(parts[::2], parts[1::2], strict=False)
    return " or ".join(f"{writes} writes in {seconds} s" for seconds, writes in pairs)
