"""Owns the roles, or the parts of them, that are the same on SQLite and PostgreSQL.

Called by: the packages of the two servers, which supply the queries and a ``SqlDatabase``.
Never: imports a driver, or contains the SQL of one server.
"""
