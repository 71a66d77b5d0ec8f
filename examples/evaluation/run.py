"""Start three executors, a worker with six slots and the API: ``python run.py``.

Ctrl-C stops them in order. A process that dies is restarted. Waiting and running jobs are in the
database (``UMBEL_URL``, or umbel.db in the current folder), so the next start continues with them.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from service import URLS

HERE = Path(__file__).parent
PORT = os.environ.get("PORT", "8100")
PATH = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
ENVIRONMENT = {**os.environ, "PYTHONPATH": PATH}
PORTS = [url.rpartition(":")[2] for url in URLS]
COMMANDS = {  # in the order in which they are stopped
    "web": ["-m", "uvicorn", "web:site", "--port", PORT, "--log-level", "warning"],
    "worker": ["-m", "umbel", "-A", "service", "worker", "--io", "6", "--cpu", "0", "--lease", "3"],
    **{
        f"executor {port}": [str(HERE / "executor.py"), port, f"calls-{port}.jsonl"]
        for port in PORTS
    },
}


def start(name: str) -> subprocess.Popen[bytes]:
    # A new session, so that Ctrl-C reaches only this process, which stops the others in order.
    command = [sys.executable, *COMMANDS[name]]
    return subprocess.Popen(command, env=ENVIRONMENT, start_new_session=True)


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parts = {name: start(name) for name in reversed(COMMANDS)}
    print(f"http://127.0.0.1:{PORT}", flush=True)
    try:
        while True:
            time.sleep(0.5)
            for name, part in parts.items():
                if part.poll() is not None:
                    print(f"{name} has died; starting it again", flush=True)
                    parts[name] = start(name)
    except KeyboardInterrupt:
        for name in COMMANDS:
            parts[name].terminate()
            parts[name].wait()


if __name__ == "__main__":
    main()
