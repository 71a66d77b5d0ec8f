"""Owns connections to servers and files: opens them, keeps their schema, maps their errors.

Called by: brokers and stores, never by anything above them.
Never: knows what a job is beyond the tables that hold one.
"""
