"""Umbel, wherever it works."""

from __future__ import annotations

WORKER = (
    *("umbel", "-A", "benchmarks.peers.umbel:app", "worker"),
    *("--io", "300", "--cpu", "100"),
    *("--processes", "{processes}", "--log-level", "warning"),
)
SETUP = "umbel worker --io 300 --cpu 100, uvloop"
RECORDED = "state and record of every job, settled in one transaction, fenced"

IN_POSTGRES = "select count(*) from umbel.job"
IN_REDIS = "return redis.call('ZCARD', 'umbel:{$name}:live')"
