"""Owns schedules: when they fire, how they are declared and changed, and who publishes their ticks.

Called by: workers and routers, which run the scheduler, and operations.
Never: knows a server or a task; everything here is entries in ``backends.Coordination``.
"""
