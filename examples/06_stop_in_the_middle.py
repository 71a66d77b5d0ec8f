"""SIGTERM while tasks run: the short task finishes, the interruptible one returns to its queue.

It starts its own workers:   python 06_stop_in_the_middle.py
"""

import asyncio
import signal
import subprocess
import sys
import time

from umbel import Handle, State, Umbel

app = Umbel()


@app.task
async def send_mail() -> str:
    """It is not interruptible: a worker that stops waits for it to finish."""
    await asyncio.sleep(1.5)
    return "mail sent once"


@app.task(interruptible=True)
async def crunch(seconds: float) -> str:
    """It can be stopped anywhere and run again."""
    await asyncio.sleep(seconds)
    return "crunched"


def start_worker(name: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "umbel", "-A", "06_stop_in_the_middle", "worker"]
    return subprocess.Popen([*command, "--name", name], stdout=subprocess.DEVNULL)


def wait_for(handle: Handle[str], state: State) -> None:
    while handle.state is not state:
        time.sleep(0.05)


def main() -> None:
    first = start_worker("first")
    mail, work = send_mail.delay(), crunch.delay(2.5)
    wait_for(mail, State.RUNNING)
    wait_for(work, State.RUNNING)
    first.send_signal(signal.SIGTERM)
    print("first worker ended with", first.wait(timeout=30))
    print("mail:", mail.get(timeout=1), "by", mail.record().worker)
    print("crunch:", work.state, "at attempt", work.record().attempt)

    second = start_worker("second")
    print("crunch:", work.get(timeout=30), "by", work.record().worker)
    print("its runs:", [attempt.ended for attempt in work.record().attempts])
    second.send_signal(signal.SIGTERM)
    print("second worker ended with", second.wait(timeout=30))


if __name__ == "__main__":
    main()
