"""Seeds that find a bug which was real once, when it is put back. They stay, so it stays away.

A change of the simulation, or of what workers say to the database, gives a seed another run. So
each of these bugs is also told in ``test_found.py`` or planted in ``planted.py``.
"""

from __future__ import annotations

KEPT: dict[int, str] = {
    15: "a worker left, and a claim it had never received was counted as a death",
    49: "a watcher took the time before a slow answer, and ended a life that had just beaten",
    67: "a heart waited for the server's word on control and forgot to beat",
    612: "a life whose enlisting was never confirmed held jobs and did not stop itself",
    7002: "a clock set back stamped a claim, was right again, and the claim was taken for unseen",
}
