"""Run everything in one process on SQLite, with example tasks. ``make run`` starts it."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from tasks import app, traffic  # noqa: E402 - found next to this file

if __name__ == "__main__":
    traffic.delay()
    app.close()
    folder = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    os.environ["PYTHONPATH"] = folder
    os.execv(sys.executable, [sys.executable, "-m", "umbel", "-A", "tasks:app", "dev"])
