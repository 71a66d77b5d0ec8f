"""Owns what operators see of telemetry: log lines, metrics, health endpoints.

Called by: the command line and processes, which subscribe these to telemetry.
Never: decides anything, or uses a broker.
"""
