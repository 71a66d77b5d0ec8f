"""``make fuzz``: inputs that grow towards lines not run before, for each way in.

What breaks a promise is written to the corpus, where the tests find it. Each target has a process
of its own, because libFuzzer ends the process it runs in.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
NAMES = sorted(path.name for path in CORPUS.iterdir())


def main() -> int:
    """Fuzz every target for its share of the time. Exit code 1 when one is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together")
    parser.add_argument("--target", choices=NAMES, action="append", help="only this one")
    chosen = parser.parse_args()
    names = chosen.target or NAMES
    share = max(chosen.seconds // len(names), 1)
    broken = [name for name in names if _fuzz(name, share)]
    for name in broken:
        print(f"{name}: broken; the input is in {(CORPUS / name).relative_to(Path.cwd())}")
    return 1 if broken else 0


def _fuzz(name: str, seconds: int) -> int:
    print(f"--- {name}, {seconds} s", flush=True)
    with tempfile.TemporaryDirectory(prefix="umbel-fuzz-") as scratch:
        grown = Path(scratch) / "grown"
        grown.mkdir()
        options = (
            *(f"-max_total_time={seconds}", f"-artifact_prefix={CORPUS / name}/"),
            *("-max_len=4096", "-timeout=20", "-rss_limit_mb=2048", "-verbosity=1"),
            *("-print_final_stats=1", str(grown), str(CORPUS / name)),
        )
        command = [sys.executable, str(HERE / "one_target.py"), name, *options]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout[-4_000:])
    told = ("Done ", "SUMMARY", "artifact_prefix")
    lines = [line for line in done.stderr.splitlines() if line.startswith(told) or "DONE" in line]
    print("\n".join(lines), flush=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
