"""Run the pages of the documentation, and write what they print into them.

``python docs/write_outputs.py [PAGE ...]`` replaces each output that differs. A comment before a
fenced block says what is done with it:

``<!-- run -->``             Python: runs, in the order of the page, in one process of the page
``<!-- run: worker -->``     the same, with a worker for the page's ``app``
``<!-- run: postgres -->``   the same on PostgreSQL, in another process; words combine
``<!-- run: greenlet -->``   the same, if that module is installed
``<!-- output -->``          is exactly what the block that ran before it printed
``<!-- file: NAME -->``      is written to a file; ``test_*.py`` is also given to pytest
``<!-- edit: NAME -->``      replaces the function of the same name in a file, or is added to it
``<!-- console -->``         every ``$`` line runs in a shell, and the lines below it are its output
``<!-- console: postgres -->``  the same with a database of its own, which pages call ``shop``
``<!-- start: NAME -->``     the command runs on, on a terminal; the lines below it come first
``<!-- log: NAME -->``       is what that command prints next; ``log: NAME SIGINT`` stops it first
``<!-- checked: TEST -->``   another test compares the block with the code
``<!-- not run: REASON -->`` is neither run nor compared

``<!-- run: file=NAME -->`` also writes the block to a file for the commands of the page. In the
output of commands, ``…`` stands for any text, and ids, times, durations and process ids may differ.
An id on the page stands for the same job in each block.
"""

from __future__ import annotations

import ast
import dataclasses
import fcntl
import importlib.util
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "examples").rglob("README.md")),
]
POSTGRES = os.environ.get("UMBEL_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
COLUMNS = 80
HANG_SECONDS = 180.0
"""Seconds after which a command is considered to hang."""


# --- blocks ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: its line and language, the comment before it, its text."""

    line: int
    language: str
    mark: str
    rest: str
    text: str

    @property
    def words(self) -> frozenset[str]:
        """The words after the mark."""
        return frozenset(self.rest.split())

    @property
    def file(self) -> str | None:
        """The name of the file that this block is written to."""
        if self.mark == "file":
            return self.rest
        return next((word[5:] for word in self.words if word.startswith("file=")), None)


_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*).*?$")
_MARK = re.compile(
    r"^ *<!-- (?P<mark>run|output|file|edit|console|start|log|checked|not run)"
    r"(?:: (?P<rest>.*?))? -->$"
)


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    at, mark = 0, None
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence is None:
            mark = _MARK.match(lines[at]) or (mark if not lines[at].strip() else None)
            at += 1
            continue
        end = next(n for n in range(at + 1, len(lines)) if lines[n].strip() == "```")
        indent = len(fence["indent"])
        text = "".join(f"{line[indent:]}\n" for line in lines[at + 1 : end])
        name, rest = (mark["mark"], mark["rest"] or "") if mark else ("", "")
        found.append(Block(at + 1, fence["language"], name, rest, text))
        at, mark = end + 1, None
    return found


def replace_texts(page: Path, texts: dict[int, str]) -> None:
    """Write other texts into the blocks that begin in these lines."""
    lines = page.read_text(encoding="utf-8").splitlines(keepends=True)
    for block in sorted(blocks(page), key=lambda block: -block.line):
        if block.line in texts:
            end = block.line + block.text.count("\n")
            lines[block.line : end] = texts[block.line].splitlines(keepends=True)
    page.write_text("".join(lines), encoding="utf-8")


# --- Python ----------------------------------------------------------------------------------

_PYTHON = """
import ast, asyncio, contextlib, inspect, io, json, sys, threading, types
from umbel import WorkerOptions

module = types.ModuleType("tasks")
sys.modules["tasks"] = module
space = module.__dict__
workers = []

def work(app):
    started = threading.Event()
    async def main():
        queues = tuple(app.registry.queues())
        worker = app.worker(WorkerOptions(queues=queues, name="anna", grace=0))
        workers.append((asyncio.get_running_loop(), worker))
        running = asyncio.ensure_future(worker.run())
        await worker.started.wait()
        started.set()
        await running
    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert started.wait(30), "the worker does not start"
    return thread

def run(block):
    code = compile(block["text"], f"line {block['line']}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(code, space))
    else:
        exec(code, space)

threads, printed = [], {}
for block in json.load(sys.stdin):
    heard = io.StringIO()
    with contextlib.redirect_stdout(heard):
        if block["worker"] and not threads:
            threads.append(work(space["app"]))
        run(block)
    printed[block["line"]] = heard.getvalue()
for loop, worker in workers:
    loop.call_soon_threadsafe(worker.stop)
for thread in threads:
    thread.join(30)
if "app" in space:
    space["app"].close()
json.dump(printed, sys.stdout)
"""


def places(page: Path) -> list[str]:
    """Return where the Python blocks of a page run: on SQLite, on PostgreSQL, or on both."""
    on = {"postgres" in block.words for block in blocks(page) if block.mark == "run"}
    return [place for place in ("sqlite", "postgres") if (place == "postgres") in on]


def _runs_here(block: Block, place: str) -> bool:
    modules = {word for word in block.words - {"worker", "postgres"} if "=" not in word}
    there = all(importlib.util.find_spec(module) is not None for module in modules)
    return there and ("postgres" in block.words) == (place == "postgres")


def python_differences(page: Path, place: str, url: str, folder: Path) -> dict[int, str]:
    """Run the Python blocks of a page; return the outputs that differ, by line."""
    wanted: list[Block] = []
    outputs: dict[int, Block] = {}
    for block in blocks(page):
        if block.mark == "file":
            (folder / block.rest).write_text(block.text, encoding="utf-8")
        elif block.mark == "run":
            here = _runs_here(block, place)
            wanted += [block] if here else []
            last = block.line if here else None
        elif block.mark == "output" and last:
            outputs[last] = block
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PYTHON],
        input=json.dumps(
            [{"line": b.line, "text": b.text, "worker": "worker" in b.words} for b in wanted]
        ),
        env={
            **_environment(folder),
            "UMBEL_URL": url,
            "DATABASE_URL": url.partition("?")[0],
            "PYTHONPATH": str(folder),
        },
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"{page.name}: {done.stderr}")
    printed = {int(line): text for line, text in json.loads(done.stdout).items()}
    return {
        output.line: printed[line]
        for line, output in outputs.items()
        if output.text != printed[line]
    }


def _environment(folder: Path) -> dict[str, str]:
    """Return an environment without settings of Umbel, with a home folder of its own."""
    foreign = ("UMBEL_", "PYTEST_", "COLUMNS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
    home = folder / ".home"
    home.mkdir(exist_ok=True)
    user = {"HOME": str(home), "USER": "anna", "LOGNAME": "anna"}
    return {**kept, **user, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


# --- outputs of commands ---------------------------------------------------------------------

_ID = r"\b(?=[0-9a-f-]*\d)[0-9a-f]{8}(?:[0-9a-f]{8}(?:[0-9a-f]{16})?|(?:-[0-9a-f]{1,12}){0,4})\b"
_UNIT = r"(?:µs|ms|s|min|h|d|MiB)"
_VARYING = re.compile(
    rf"(?P<id>{_ID})"
    r"|(?P<time>\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?Z?|\b\d\d:\d\d:\d\d(?:\.\d+)?)"
    rf"|(?P<duration>\bnow\b|\d+(?:\.\d+)? {_UNIT}\b(?: \d+ {_UNIT}\b)?(?: ago)?|\d+\.\d+s\b)"
    r"|(?P<number>(?<=\":)\d+\.\d+|\b\d{4,7}\b|\b\d+(?:\.\d+)?(?=%)|\b\d+(?= of \d)"
    r"|(?<=\"confirmed\":)\d+|(?<=cpython )\d+\.\d+|\b\d+(?= (?:passed|skipped|def)\b)"
    r"|(?<=\s100)\s+\d+\b)"
    r"|(?P<cursor>ended_[\d.]+_[0-9a-f-]+)|(?P<elision>…)|(?P<space>\s+)"
)
_ACCEPTED = {
    "time": r"[\d:.TZ -]+?",
    "duration": rf"(?:now|\d+(?:\.\d+)? {_UNIT}(?: \d+ {_UNIT})?(?: ago)?|\d+\.\d+s)",
    "number": r"\s*\d+(?:\.\d+)?",
    "cursor": r"ended_[\d.]+_[0-9a-f-]+",
    "elision": r".*?",
    "space": r"\s+",
}


class Ids:
    """The ids of a page, and the ids of a run for which they stand."""

    def __init__(self) -> None:
        self._actual: dict[str, str] = {}

    def translate(self, command: str) -> str:
        """Return a command with the ids of the run."""
        return re.sub(_ID, lambda found: self._find(found[0]), command)

    def _find(self, told: str) -> str:
        if told in self._actual:
            return self._actual[told]
        return next((actual for page, actual in self._actual.items() if _same(page, told)), told)

    def match(self, told: str, printed: str) -> bool:
        """Return whether a text is as the page says, and learn the ids in it."""
        names: list[str] = []

        def accept(found: re.Match[str]) -> str:
            if found.lastgroup != "id":
                return _ACCEPTED[str(found.lastgroup)]
            names.append(found[0])
            return f"([0-9a-f-]{{{len(found[0])}}})"

        pattern, at = "", 0
        for found in _VARYING.finditer(told):
            pattern += re.escape(told[at : found.start()]) + accept(found)
            at = found.end()
        matched = re.fullmatch(pattern + re.escape(told[at:]), printed, re.DOTALL)
        if matched is None or not all(map(self._fits, names, matched.groups())):
            return False
        for name, actual in zip(names, matched.groups(), strict=True):
            self._actual.setdefault(name, actual)
        return True

    def _fits(self, told: str, printed: str) -> bool:
        """Return whether no earlier output gave this id of the page to another job."""
        known = [actual for page, actual in self._actual.items() if _same(page, told)]
        return not known or any(_same(actual, printed) for actual in known)

    def learn_in_order(self, told: str, printed: str) -> str:
        """Take ids in the order in which they occur; return the text with the ids of the page."""
        free = [page for page in re.findall(_ID, told) if page not in self._actual]

        def name(found: re.Match[str]) -> str:
            for page, actual in self._actual.items():
                if _same(actual, found[0]):
                    return page if len(actual) <= len(found[0]) else page[-len(found[0]) :]
            page = free.pop(0) if free else found[0]
            self._actual[page] = found[0]
            return page

        return re.sub(_ID, name, printed)


def _same(one: str, other: str) -> bool:
    """Return whether two ids are one: the shorter may be the end of the longer."""
    return one.endswith(other) or other.endswith(one)


def _tidy(text: str, folder: Path) -> str:
    """Return printed text without colors, the name of this machine, and its folders."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")
    text = text.replace(str(folder), "…").replace(socket.gethostname(), "vm")
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def steps(block: Block) -> list[tuple[str, str]]:
    """Return the commands of a block, each with the output below it."""
    found: list[tuple[str, str]] = []
    lines = iter(block.text.splitlines(keepends=True))
    for line in lines:
        if line.startswith("$ "):
            command = line[2:]
            while command.endswith("\\\n"):
                command += next(lines)
            found.append((command, ""))
        else:
            command, output = found[-1]
            found[-1] = (command, output + line)
    return found


_READS = re.compile(
    r"\b(jobs (list|show)|queues|workers$|workers (list|health)|limits( list)?|pools( list)?|health"
    r"|status|graphs (list|show)|workflows (list|show)|pause list|routes (list|show)|document\("
    r"|curl|tasks)"
)
"""Commands that are repeated until they print what the page says: they change nothing."""
_REPEAT_SECONDS = 0.3


# --- console ---------------------------------------------------------------------------------


class Started:
    """A command that runs on, on a terminal of its own."""

    def __init__(self, command: str, environment: dict[str, str], folder: Path) -> None:
        self._folder = folder
        self._raw, self._read = "", 0
        self._changed = threading.Condition()
        terminal, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
        self._process = subprocess.Popen(
            ["bash", "-c", command],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
        os.close(inner)
        self._terminal = terminal
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            try:
                data = os.read(self._terminal, 65536)
            except OSError:  # Linux reports the end of a terminal as an error.
                data = b""
            with self._changed:
                self._raw += data.decode(errors="replace")
                self._changed.notify_all()
            if not data:
                return

    def wait_for(self, told: str, ids: Ids, stop: str | None = None) -> str | None:
        """Wait until every line was printed; return what was printed instead, or None."""
        if stop:
            self._process.send_signal(getattr(signal, stop))
        wanted = [line for line in told.splitlines() if line.strip(" …")]
        deadline = time.monotonic() + HANG_SECONDS
        with self._changed:
            while True:
                complete = self._raw[: self._raw.rfind("\n") + 1]
                lines = _tidy(complete, self._folder).splitlines()
                new = lines[self._read :]
                left = [line for line in wanted if not any(ids.match(line, p) for p in new)]
                if not left or not self._changed.wait(deadline - time.monotonic()):
                    self._read = len(lines)
                    return "".join(f"{line}\n" for line in new) if left else None

    def stop(self) -> None:
        """End the process and all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._thread.join()
        os.close(self._terminal)


class Console:
    """Runs the commands of one page, in a folder of their own."""

    def __init__(self, page: Path, folder: Path, database: str | None, patience: float) -> None:
        self._page, self._folder, self._database, self._patience = page, folder, database, patience
        self._environment = _environment(folder)
        self._ids = Ids()
        self._started: dict[str, Started] = {}
        self._ports: dict[str, str] = {}

    def differences(self) -> dict[int, str]:
        """Run the page; return the texts of blocks that differ, by line."""
        found: dict[int, str] = {}
        try:
            for block in blocks(self._page):
                text = self._run(block)
                if text is not None:
                    found[block.line] = text
        finally:
            for started in self._started.values():
                started.stop()
        return found

    def _run(self, block: Block) -> str | None:
        if block.file:
            (self._folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.mark == "edit":
            edit(self._folder / block.rest, block.text)
        elif block.mark == "console":
            return self._console(block)
        elif block.mark == "start":
            ((command, told),) = steps(block)
            started = Started(self._translate(command), self._environment, self._folder)
            self._started[block.rest] = started
            printed = started.wait_for(told, self._ids)
            return None if printed is None else f"$ {command}{printed}"
        elif block.mark == "log":
            name, _, stop = block.rest.partition(" ")
            return self._started[name].wait_for(block.text, self._ids, stop or None)
        return None

    def _console(self, block: Block) -> str | None:
        text = ""
        for command, told in steps(block):
            printed = self._output(command, told)
            text += f"$ {command}{told if printed is None else printed}"
        return None if text == block.text else text

    def _output(self, command: str, told: str) -> str | None:
        """Run a command; return what it printed if that is not what the page says."""
        if command.startswith("unset "):
            del self._environment[command[6:].strip()]
            return None
        if command.startswith("export "):
            name, _, value = self._translate(command[7:].strip()).partition("=")
            self._environment[name] = value.strip("'\"")
            return None
        deadline = time.monotonic() + self._patience
        while True:
            done = subprocess.run(
                ["bash", "-c", self._translate(command)],
                env=self._environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=HANG_SECONDS,
                check=False,
            )
            printed = self._as_on_the_page(_tidy(done.stdout, self._folder))
            if self._ids.match(told.rstrip(), printed.rstrip()):
                return None
            if time.monotonic() > deadline or not _READS.search(command):
                return self._ids.learn_in_order(told, printed)
            time.sleep(_REPEAT_SECONDS)

    def _translate(self, command: str) -> str:
        command = re.sub(r"(?<=127.0.0.1:)\d{4}", self._free_port, self._ids.translate(command))
        command = command.replace("///run/", f"//{self._folder}/")
        if self._database:
            name = self._database.rpartition("/")[2]
            for told, meant in (
                ("postgresql://postgres@localhost/shop", self._database),
                ("psql -h localhost -U postgres -c", f"psql {POSTGRES} -c"),
                ("psql -h localhost -U postgres shop", f"psql {self._database}"),
                ("create database shop", f"create database {name}"),
            ):
                command = command.replace(told, meant)
        return command

    def _free_port(self, found: re.Match[str]) -> str:
        if found[0] not in self._ports:
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                self._ports[found[0]] = str(listener.getsockname()[1])
        return self._ports[found[0]]

    def _as_on_the_page(self, printed: str) -> str:
        if self._database:
            server, _, name = self._database.rpartition("/")
            host = server.rpartition("@")[2].partition(":")[0]
            printed = printed.replace(self._database, "postgresql://postgres@localhost/shop")
            printed = printed.replace(name, "shop").replace(host, "localhost")
        return printed


def edit(path: Path, text: str) -> None:
    """Replace the function that ``text`` defines, or add it at the end."""
    source = path.read_text(encoding="utf-8")
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    for there in ast.parse(source).body:
        if isinstance(there, type(function)) and there.name == function.name:
            lines = source.splitlines(keepends=True)
            first = min([there.lineno, *(one.lineno for one in there.decorator_list)])
            lines[first - 1 : there.end_lineno] = [text]
            path.write_text("".join(lines), encoding="utf-8")
            return
    path.write_text(f"{source}\n\n{text}", encoding="utf-8")


def has_commands(page: Path) -> bool:
    """Return whether commands of a page are run."""
    return any(block.mark in ("console", "start") for block in blocks(page))


def needs_database(page: Path) -> bool:
    """Return whether commands of a page need PostgreSQL."""
    marks = [block for block in blocks(page) if block.mark in ("console", "start")]
    return any("postgres" in block.words for block in marks)


def tools(page: Path) -> set[str]:
    """Return the programs that the commands of a page need, besides Umbel and Python."""
    text = "".join(block.text for block in blocks(page) if block.mark == "console")
    return set(re.findall(r"^\$ (curl|openssl|psql|sqlite3)\b", text, re.MULTILINE))


def console_differences(
    page: Path, folder: Path, database: str | None, patience: float = 30.0
) -> dict[int, str]:
    """Run the commands of a page; return the texts of blocks that differ, by line."""
    return Console(page, folder, database, patience).differences()


# --- the script ------------------------------------------------------------------------------


@contextmanager
def private_database(page: Path) -> Iterator[str]:
    """Create a PostgreSQL database for a page, unless the page does so; yield its URL."""
    import psycopg

    name = f"umbel_docs_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(POSTGRES, autocommit=True, connect_timeout=2) as connection:
        if "create database" not in page.read_text(encoding="utf-8"):
            connection.execute(f"create database {name}")
        try:
            yield f"{POSTGRES.rpartition('/')[0]}/{name}"
        finally:
            connection.execute(f"drop database if exists {name} with (force)")


@contextmanager
def private_schema() -> Iterator[str]:
    """Create a migrated schema in a PostgreSQL database; yield its URL."""
    import asyncio

    import psycopg

    from umbel import Umbel

    name = f"umbel_docs_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(POSTGRES, autocommit=True, connect_timeout=2) as connection:
        asyncio.run(Umbel(f"{POSTGRES}?schema={name}").backend.migrate())
        try:
            yield f"{POSTGRES}?schema={name}"
        finally:
            connection.execute(f"drop schema {name} cascade")


def write(page: Path) -> None:
    """Run one page, and write what differs into it."""
    with tempfile.TemporaryDirectory() as name:
        found: dict[int, str] = {}
        for place in places(page):
            folder = Path(name) / place
            folder.mkdir()
            if place == "sqlite":
                url = f"sqlite:///{folder}/umbel.db"
                found |= python_differences(page, place, url, folder)
            else:
                with private_schema() as url:
                    found |= python_differences(page, place, url, folder)
        if has_commands(page):
            folder = Path(name) / page.stem
            folder.mkdir()
            if needs_database(page):
                with private_database(page) as database:
                    found |= console_differences(page, folder, database, patience=12)
            else:
                found |= console_differences(page, folder, None, patience=12)
    replace_texts(page, found)
    for line in sorted(found):
        sys.stdout.write(f"{page.relative_to(ROOT)}:{line} differed\n")


if __name__ == "__main__":
    for wanted in [Path(name).resolve() for name in sys.argv[1:]] or PAGES:
        write(wanted)
