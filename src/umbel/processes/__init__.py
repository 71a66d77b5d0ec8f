"""Owns operating system processes: a worker, several workers, a router, a publisher daemon.

Called by: the command line. Nothing here needs click.
Never: parses a command line, prints an answer, or decides anything about a job.
"""
