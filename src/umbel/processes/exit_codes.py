"""Exit codes of the command line and of the processes that it runs; 0 is success."""

FAILED = 1
"""The command was understood and did not succeed, or a process ended with an error."""
USAGE = 2
"""The command line, the application or its configuration is wrong. A retry cannot help."""
UNREACHABLE = 3
"""The server cannot be reached."""
OTHER_DEPLOYMENT = 4
"""Another deployment is in progress, or has taken over."""
