"""Redis and Valkey as a broker and store, or as a transport for another store.

Owns: all code that knows Redis: connections, Lua scripts (keys.lua describes the keys), roles.
Called by: the choice of a backend by its URL, and ``backends.pairs``.
Never: imports another backend, or reads a clock other than the server's in a script.
"""
