"""The child's side of a fleet: a worker process and what it knows of its parent."""

from __future__ import annotations

import os
import signal
import sys

from umbel.processes.exit_codes import FAILED

VARIABLE = "UMBEL_FLEET"
"""The environment variable with which a parent describes itself: ``PID:FILE_DESCRIPTOR``."""

_PR_SET_PDEATHSIG = 1


class FleetMember:
    """One child of a fleet."""

    def __init__(self, parent: int, error_token: int) -> None:
        self._parent = parent
        self._error_token = error_token

    @classmethod
    def from_environment(cls) -> FleetMember | None:
        """Return the membership of this process, or None if it belongs to no fleet.

        The variable is removed, so that processes which tasks start do not inherit it.
        """
        text = os.environ.pop(VARIABLE, "")
        if not text:
            return None
        parent, _, error_token = text.partition(":")
        return cls(int(parent), int(error_token))

    def to_environment(self) -> None:
        """Set the variable again, before this process replaces itself by a new interpreter."""
        os.environ[VARIABLE] = f"{self._parent}:{self._error_token}"

    def end_with_parent(self) -> None:
        """Let Linux send SIGTERM to this process when the parent ends, even by SIGKILL.

        Raises SystemExit if the parent has ended already.
        """
        if sys.platform == "linux":
            import ctypes  # 1 MB, which the parent does not need

            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != self._parent:  # it ended before that line
            raise SystemExit(FAILED)

    def may_report_error(self) -> bool:
        """Return True to the first child that asks after the children were started.

        All children have the same application and options. Without this, a mistake in them would
        be printed once for each child.
        """
        try:
            os.read(self._error_token, 1)
        except BlockingIOError:
            return False
        except OSError:  # no such descriptor: better twice than not at all
            return True
        return True
