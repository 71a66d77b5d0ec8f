"""Text from outside never controls the terminal that shows it. The tests use a real terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import tty
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from integration.conftest import working
from umbel import Retry, Umbel
from umbel.errors import JobFailed
from umbel.messages import fresh_id
from umbel.observability.logs import configure_logs
from umbel.terminal import make_json_visible, make_visible

PATIENCE = 60.0
HOSTILE = "\x1b]0;owned\x07\x1b[5mEVIL\x9b8mC1\u202eRLO\u2066ISO\x7fDEL\rCR\x08BS\u2028LS\x85NEL"
OURS = re.compile(r"\x1b\[(?:0|1|2|3[0-7]|1;3[0-7])?m")
"""The colors that Umbel itself writes. The text above uses others."""

TASKS = """
from umbel import Retry, Umbel

app = Umbel()
HOSTILE = {hostile!r}

@app.task(name="shop.fail", retry=Retry(0))
def fail() -> None:
    raise ValueError(HOSTILE + "\\nsecond line")

@app.task(name="shop.give")
def give() -> str:
    return HOSTILE
"""


def assert_harmless(output: str) -> None:
    """Check that it contains no control characters except line ends, tabs and Umbel's colors."""
    plain = OURS.sub("", output.replace("\r\n", "\n"))
    found = {c for c in plain if not c.isprintable() and unicodedata.category(c) != "Zs"}
    found -= {"\n", "\t"}
    assert not found, (found, plain)


class Terminal:
    """A process whose standard streams are a terminal."""

    def __init__(
        self,
        folder: Path,
        words: tuple[str, ...],
        env: dict[str, str],
        start: tuple[str, ...] = ("-m", "umbel"),
    ) -> None:
        self._master, slave = pty.openpty()
        tty.setraw(slave, when=0)
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("UMBEL", "NO_COLOR"))}
        self.process = subprocess.Popen(
            [sys.executable, *start, *words],
            cwd=folder,
            env=kept | {"TERM": "xterm", "COLUMNS": "300"} | env,
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        self._data = b""

    @property
    def text(self) -> str:
        return self._data.decode()

    def wait_for(self, text: str) -> None:
        until = time.monotonic() + PATIENCE
        while text not in self._data.decode(errors="replace"):
            assert time.monotonic() < until, self._data
            assert self._read(1.0), self._data

    def end(self) -> int:
        while self._read(PATIENCE):
            pass
        os.close(self._master)
        return self.process.wait(PATIENCE)

    def _read(self, seconds: float) -> bool:
        """Read more output. Return False at the end."""
        ready, _, _ = select.select([self._master], [], [], seconds)
        if not ready:
            return self.process.poll() is None
        try:
            data = os.read(self._master, 65536)
        except OSError:  # Linux says so when the other side is closed
            return False
        self._data += data
        return bool(data)


class Place:
    """A folder with an application, its database, and a terminal to run commands on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/umbel.db?synchronous=off"
        (folder / "shop.py").write_text(TASKS.format(hostile=HOSTILE))
        self.app = Umbel(self.url)

        @self.app.task(name="shop.fail", retry=Retry(0))
        def fail() -> None:
            raise ValueError(HOSTILE + "\nsecond line")

        @self.app.task(name="shop.give")
        def give() -> str:
            return HOSTILE

        self.fail, self.give = fail, give

    def publish_unknown(self) -> str:
        """Publish a job of a task with a hostile name, as a foreign sender may do."""
        event = {
            "specversion": "1.0",
            "id": fresh_id(),
            "type": "umbel.command",
            "source": "/test",
            "subject": f"shop.{HOSTILE}",
            "data": {"args": [HOSTILE], "kwargs": {}},
        }
        return self.app.publish_event(json.dumps(event).encode()).id

    @contextmanager
    def terminal(self, *words: str, **env: str) -> Iterator[Terminal]:
        made = Terminal(self.folder, words, {"UMBEL_URL": self.url} | env)
        try:
            yield made
        finally:
            if made.process.poll() is None:
                made.process.kill()
                made.process.wait()

    def run(self, *words: str, **env: str) -> str:
        with self.terminal(*words, **env) as terminal:
            terminal.end()
            return terminal.text


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.app.close()


@pytest.fixture
def ended(place: Place) -> dict[str, str]:
    """The ids of jobs that have ended, by how they ended."""
    with working(place.app):
        unknown, failed, done = place.publish_unknown(), place.fail.delay(), place.give.delay()
        done.get(timeout=PATIENCE)
        with pytest.raises((ValueError, JobFailed)):
            failed.get(timeout=PATIENCE)
        with pytest.raises(JobFailed):
            place.app.handle(unknown).get(timeout=PATIENCE)
    return {"unknown": unknown, "failed": failed.id, "done": done.id}


@pytest.mark.parametrize("style", ["pretty", "json"])
@pytest.mark.parametrize("colour", [{}, {"NO_COLOR": "1"}], ids=["colours", "plain"])
def test_a_worker_writes_no_control_sequence_of_a_task_to_its_terminal(
    place: Place, style: str, colour: dict[str, str]
) -> None:
    words = ("-A", "shop", "worker", "--log-format", style)
    with place.terminal(*words, **colour) as terminal:
        terminal.wait_for("worker started")
        place.publish_unknown()
        place.fail.delay()
        terminal.wait_for("second line")
        terminal.wait_for("RLO")
        terminal.process.send_signal(signal.SIGTERM)
        terminal.end()
    assert "EVIL" in terminal.text
    assert_harmless(terminal.text)
    if style == "json":
        read = [json.loads(line) for line in terminal.text.splitlines() if line.startswith("{")]
        assert any(HOSTILE in line.get("task", "") for line in read)
    else:
        assert re.search(r"\n\s+second line", terminal.text)


@pytest.mark.parametrize("words", [("shop.fail",), ("shop.give",), ("shop.fail", "--json")])
def test_send_and_wait_writes_no_control_sequence_of_a_result_or_error(
    place: Place, words: tuple[str, ...]
) -> None:
    with working(place.app):
        text = place.run("-A", "shop", "send", *words, "--wait", "30")
    assert "EVIL" in text
    assert_harmless(text)
    if "--json" in words:
        assert HOSTILE in json.loads(text)["failure"]["message"]
    elif "shop.fail" in words:
        assert "\nsecond line" in text.replace("\r\n", "\n")


@pytest.mark.parametrize("which", ["unknown", "failed", "done"])
@pytest.mark.parametrize("json_too", [(), ("--json",)], ids=["text", "json"])
def test_the_history_of_a_job_has_no_control_sequence(
    place: Place, ended: dict[str, str], which: str, json_too: tuple[str, ...]
) -> None:
    text = place.run("jobs", "show", ended[which], *json_too)
    assert "EVIL" in text
    assert_harmless(text)
    if json_too:
        assert json.loads(text)["id"] == ended[which]
        assert any(HOSTILE in text for text in _strings(json.loads(text)))


def _strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for one in value.values() for text in _strings(one)]
    if isinstance(value, list):
        return [text for one in value for text in _strings(one)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("json_too", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_list_of_jobs_has_no_control_sequence(
    place: Place, ended: dict[str, str], json_too: tuple[str, ...], term: str
) -> None:
    text = place.run("jobs", "list", *json_too, TERM=term)
    assert "EVIL" in text
    assert_harmless(text)
    if json_too:
        assert {one["id"] for one in json.loads(text)} == set(ended.values())
        assert any(one["task"] == f"shop.{HOSTILE}" for one in json.loads(text))


@pytest.mark.parametrize("json_too", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize(
    "words",
    [
        ("pause", HOSTILE),
        ("jobs", "show", f"x{HOSTILE}"),
        ("jobs", "list", "--state", HOSTILE),
        ("-A", f"nowhere{HOSTILE}", "jobs", "list"),
        ("-A", "broken", "jobs", "list"),
        ("routes", "release", HOSTILE),
        ("bench", "--url", f"redis://{HOSTILE}"),
    ],
    ids=lambda words: words[0] + words[1][:8],
)
def test_an_error_of_a_command_has_no_control_sequence(
    place: Place, words: tuple[str, ...], json_too: tuple[str, ...]
) -> None:
    (place.folder / "broken.py").write_text(f"raise ValueError({HOSTILE!r})\n")
    text = place.run(*words, *json_too)
    assert "evil" in text.lower() or "redis" in text
    assert_harmless(text)
    if json_too:
        assert json.loads(text.splitlines()[-1])["error"]["exit_code"] in (1, 2)


def test_a_dev_session_shows_the_error_of_the_application_without_control_sequences(
    place: Place,
) -> None:
    (place.folder / "broken.py").write_text(f"raise ValueError({HOSTILE!r})\n")
    with place.terminal("-A", "broken", "dev") as terminal:
        terminal.wait_for("Waiting for the code to change")
    assert "EVIL" in terminal.text
    assert_harmless(terminal.text)


BUGS = """
import logging, sys, threading
from umbel.cli import entry

TEXT = {hostile!r} + " redis://me:hush@host"

def fail():
    raise RuntimeError(TEXT)

def run(words):
    logging.getLogger("library").warning("said by a library: %s", TEXT)
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    fail()

entry.run = run
entry.main()
"""


def test_tracebacks_of_bugs_and_warnings_of_libraries_are_escaped_and_masked(
    tmp_path: Path,
) -> None:
    script = tmp_path / "bugs.py"
    script.write_text(BUGS.format(hostile=HOSTILE))
    terminal = Terminal(tmp_path, (), {}, start=(str(script),))
    assert terminal.end() == 1
    assert terminal.text.count("EVIL") >= 3
    assert "said by a library" in terminal.text
    assert_harmless(terminal.text)
    assert "hush" not in terminal.text


# --- the one function ------------------------------------------------------------------------


@given(st.text())
def test_what_is_visible_is_harmless_and_keeps_lines(text: str) -> None:
    shown = make_visible(text)
    assert_harmless(shown)
    assert shown.count("\n") == text.count("\n")
    assert "\n" not in make_visible(text, lines=False)
    assert make_visible(shown) == shown


def test_ordinary_text_stays_as_it_is() -> None:
    for text in ("plain", "Grüße, 世界", "tab\there", "no-break\u00a0space", "✓ █"):
        assert make_visible(text) == text
    assert make_visible("\x1b[31m\u202e") == r"\x1b[31m\u202e"


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_json_is_harmless_and_says_the_same(text: str) -> None:
    import msgspec

    shown = make_json_visible(msgspec.json.encode({text: [text]}).decode())
    assert_harmless(shown)
    assert json.loads(shown) == {text: [text]}


def test_a_line_that_cannot_be_written_is_reported_without_control_sequences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(HOSTILE)

    spare = io.StringIO()
    monkeypatch.setattr(sys, "stderr", spare)
    logs = configure_logs("pretty", stream=Closed())
    logs.write({"level": "info", "event": HOSTILE})
    logs.close()
    assert "EVIL" in spare.getvalue()
    assert_harmless(spare.getvalue())
