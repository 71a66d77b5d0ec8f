"""One adapter a peer. Each runs in that peer's own virtual environment, never in the runner."""
