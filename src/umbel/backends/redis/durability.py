"""Describing which data is lost if the server dies, as far as its settings can be read."""

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

_UNKNOWN_FSYNC = (
    "A little confirmed work may be lost when the server dies (appendfsync cannot be read)"
)
_REMEDY = ": set appendonly yes"


def describe_durability(settings: Mapping[str, str], replicas: int | None) -> str:
    """Return the description. ``settings`` has only those that could be read."""
    parts = [_describe_persistence(settings)]
    policy = settings.get("maxmemory-policy", "noeviction")
    if policy != "noeviction" and settings.get("maxmemory", "0") != "0":
        parts.append(
            f"it drops keys, jobs included, when its memory is full ({policy}): set"
            " maxmemory-policy noeviction"
        )
    if replicas:
        parts.append(f"{replicas} connected replica{'s' if replicas > 1 else ''} may lag behind")
    return "; ".join(parts) + "."


def _describe_persistence(settings: Mapping[str, str]) -> str:
    appends = settings.get("appendonly")
    if appends is None:
        return _UNKNOWN
    if appends == "yes":
        fsync = settings.get("appendfsync", "")
        return _FSYNC.get(fsync, _UNKNOWN_FSYNC)
    saves = settings.get("save")
    if saves == "":
        return f"Everything is lost when the server dies (appendonly no, no snapshots){_REMEDY}"
    snapshots = f"; a snapshot after {_describe_snapshots(saves)}" if saves else ""
    return (
        "Everything since the last snapshot is lost when the server dies"
        f" (appendonly no{snapshots}){_REMEDY}"
    )


def _describe_snapshots(saves: str) -> str:
    """Return ``900 1 60 1000`` in words."""
    parts = saves.split()
    pairs = zip(parts[::2], parts[1::2], strict=False)
    return " or ".join(f"{writes} writes in {seconds} s" for seconds, writes in pairs)
