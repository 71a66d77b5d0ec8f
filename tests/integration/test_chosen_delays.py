"""A task or a server that chooses when a failed job runs again, with a real worker and server."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
from running import DEADLINE, Heard, Places, ended, finished, working

from umbel import Retry, RetryAfter, State, Umbel, current, poisonous, retry
from umbel.telemetry import events


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    places = Places()
    yield places
    places.close()


@pytest.fixture(params=["file", "postgres"])
def app(request: pytest.FixtureRequest, places: Places, tmp_path: Path) -> Iterator[Umbel]:
    with places.app(request.param, tmp_path) as app:
        yield app


@pytest.fixture
def memory(places: Places, tmp_path: Path) -> Iterator[Umbel]:
    with places.app("memory", tmp_path) as app:
        yield app


class BusyServer(BaseHTTPRequestHandler):
    """Answers every request with 429, and asks to be asked again in 1,000 seconds."""

    def do_GET(self) -> None:
        self.send_response(429)
        if self.path == "/seconds":
            self.send_header("Retry-After", "1000")
        else:
            later = self.date_time_string(int(self.server.now + 1000))  # type: ignore[attr-defined]
            self.send_header("Retry-After", later)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The clock of this server is wrong."""
        now = self.server.now  # type: ignore[attr-defined]
        return super().date_time_string(now if timestamp is None else timestamp)


@pytest.fixture
def busy_server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), BusyServer) as server:
        server.now = 1_000_000_000  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_retry_after_costs_an_attempt_and_the_job_is_buried_after_the_last(app: Umbel) -> None:
    attempts: list[int] = []

    @app.task(retry=Retry(2, first=3600, on=OSError))
    def busy() -> None:
        attempts.append(current.job.attempt)
        raise RetryAfter(0, "the shop is closed")

    with working(app):
        record = finished(busy.delay())
    assert attempts == [1, 2, 3]
    assert (record.state, record.reason) == (State.BURIED, "the shop is closed")
    assert ended(record) == ["retry", "retry", "failed"]


def test_retry_after_chooses_the_time_of_the_next_attempt(app: Umbel) -> None:
    heard = Heard(app)

    @app.task(retry=Retry(1, first=0))
    async def busy() -> None:
        raise RetryAfter(1000)

    with working(app):
        handle = busy.delay()
        assert heard.wait(events.JobRetried, job=handle.id).delay == 1000
        record = handle.record()
    assert (record.state, record.attempt) == (State.SCHEDULED, 2)
    assert record.not_before is not None
    assert record.not_before - record.attempts[0].finished > 900


def test_retry_after_in_a_section_counts_there_and_is_final_in_a_poisonous_one(
    memory: Umbel,
) -> None:
    @memory.task(retry=0)
    def in_section() -> int:
        with retry(2, first=3600, name="shop"):
            if len(runs := [*seen, 1]) < 3:
                seen.append(1)
                raise RetryAfter(0)
        return len(runs)

    @memory.task
    def in_poisonous_section() -> None:
        with poisonous():
            raise RetryAfter(0)

    seen: list[int] = []
    with working(memory):
        assert in_section.delay().get(timeout=DEADLINE) == 3
        assert ended(finished(in_poisonous_section.delay())) == ["failed"]


def get_with_urllib(url: str) -> None:
    urllib.request.urlopen(url).close()


def get_with_httpx(url: str) -> None:
    httpx.get(url, trust_env=False).raise_for_status()


@pytest.mark.parametrize("path", ["/seconds", "/date"])
@pytest.mark.parametrize("get", [get_with_urllib, get_with_httpx])
def test_the_retry_after_header_of_a_server_sets_the_delay(
    memory: Umbel, busy_server: str, get: Callable[[str], None], path: str
) -> None:
    heard = Heard(memory)

    @memory.task(retry=Retry(1, first=0))
    def fetch(url: str) -> None:
        get(url)

    with working(memory):
        handle = fetch.delay(busy_server + path)
        event = heard.wait(events.JobRetried, job=handle.id)
    assert 1000 <= event.delay <= 1200
