"""``python -m umbel`` is the command line."""

from umbel.cli import main

main()
