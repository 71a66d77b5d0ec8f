"""Redis and Valkey: few connections, one script for each step, woken by a channel.

Beside another store, Redis is a transport that only carries messages.
"""
