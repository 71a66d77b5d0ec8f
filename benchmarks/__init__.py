"""Umbel beside its peers: the same work, on the same server, in the same run."""
