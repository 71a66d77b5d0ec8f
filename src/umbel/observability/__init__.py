"""Owns rendering what happened: log lines, counters, health endpoints.

Called by: the command line, which subscribes these to telemetry.
Never: decides anything or touches a broker.
"""
