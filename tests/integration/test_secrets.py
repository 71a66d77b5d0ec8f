"""Passwords and tokens never appear in the output of a command, in an error or in a log line."""

from __future__ import annotations

import io
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from integration.conftest import working
from umbel import Retry, Umbel, chain
from umbel.backends.amqp import address as amqp
from umbel.backends.nats import address as nats
from umbel.backends.postgres import address as postgres
from umbel.backends.rabbitmq import address as rabbitmq
from umbel.backends.redis import address as redis
from umbel.cli.entry import run
from umbel.configuration import Settings
from umbel.errors import ConfigurationError, RemoteTraceback, UmbelError, Unavailable
from umbel.observability.logs import configure_logs
from umbel.tasks.failures import describe
from umbel.telemetry import Telemetry, events
from umbel.urls import mask_secrets, mask_url

PARTS = ("Zq7Kx", "Wv3Jp", "Hy9Tn")
"""The parts of a secret, with any text between them. None of them may be shown."""
HOST = "127.0.0.1:1"
"""A port on which no server listens."""
ADDRESSES: dict[str, Callable[[str], Any]] = {
    "redis": redis.RedisAddress,
    "rediss": redis.RedisAddress,
    "valkey": redis.RedisAddress,
    "redis+sentinel": redis.RedisAddress,
    "postgresql": postgres.PostgresAddress,
    "postgres": postgres.PostgresAddress,
    "amqp": rabbitmq.RabbitAddress,
    "amqps": rabbitmq.RabbitAddress,
    "amqp1": amqp.AmqpAddress,
    "nats": nats.NatsAddress,
    "tls": nats.NatsAddress,
}
LOGINS = (
    "{scheme}://user:{secret}@{host}",
    "{scheme}://user:{secret}@{host}/1",
    "{scheme}://:{secret}@{host}",
    "{scheme}://user:{secret}@{host},127.0.0.2:1",
    "{scheme}://user:x@{host},user:{secret}@127.0.0.2:1",
    "{scheme}://{host},user:{secret}@127.0.0.2:1",
    "{scheme}://user:{secret}@[::1]:1/1",
)
PARAMETERS = (
    "{scheme}://{host}/1?password={secret}",
    "{scheme}://user@{host}/1?sslpassword={secret}",
    "{scheme}://{host}?token={secret}",
    "{scheme}://{host}/name?sentinel_password={secret}",
    "{scheme}://{host}/1?password={secret}&connect_timeout=1",
)
TOKENS = ("{scheme}://{secret}@{host}", "{scheme}://{secret}@{host},127.0.0.2:1")

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4)
marks = st.text("@:/?#[]&=%+ '\"\\,;\n$!~^", max_size=4)


@st.composite
def secrets(draw: st.DrawFn) -> str:
    """Return secrets as users write them into a URL: escaped or not."""
    between = [draw(st.one_of(marks, texts)) for _ in range(4)]
    found = "".join(a + b for a, b in zip(between, (*PARTS, ""), strict=True))
    return quote(found, safe="") if draw(st.booleans()) else found


@st.composite
def urls(draw: st.DrawFn) -> str:
    """Return URLs with a secret, well formed or malformed."""
    scheme = draw(st.sampled_from([*ADDRESSES]))
    shapes = [*LOGINS, *PARAMETERS, *(TOKENS if scheme in ("nats", "tls") else ())]
    url = draw(st.sampled_from(shapes)).format(scheme=scheme, secret=draw(secrets()), host=HOST)
    wrong = draw(st.sampled_from(["", "", "", "scheme", "slash", "colon", "more", "[", "]", " "]))
    match wrong:
        case "scheme":
            return url.replace(scheme, f"{scheme}x", 1)
        case "slash":
            return url.replace("://", ":/", 1)
        case "colon":
            return url.replace("://", "//", 1)
        case "more":
            return url.replace("://", ":://", 1)
        case "[" | "]":
            return url.replace(HOST, f"{wrong}{HOST}", 1)
        case " ":
            return f" {url}"
    return url


def assert_hidden(*texts: str) -> None:
    for text in texts:
        shown = [part for part in PARTS if part.lower() in text.lower()]
        assert not shown, text


@contextmanager
def environment(**values: str) -> Iterator[None]:
    before = dict(os.environ)
    for name in [name for name in before if name.startswith("UMBEL_")]:
        del os.environ[name]
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def umbel(*words: str) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        run(words)
    return out.getvalue(), err.getvalue()


# --- messages --------------------------------------------------------------------------------


@given(urls())
@example("redis//:Zq7Kx@127.0.0.1")
@example("redis://:Zq7Kx@[127.0.0.1")
@example("nats://Zq7Kx@127.0.0.1")
@example("nats://a:x@127.0.0.1,b:Zq7Kx@127.0.0.2")
@example("postgresql://u:x@Zq7Kx@127.0.0.1/db")
@example("postgresql://u:x%zzZq7Kx@127.0.0.1/db")
@example("postgresql://u:x%00Zq7Kx@127.0.0.1/db")
@example("postgresql://u:x@127.0.0.1/db?password=%00Zq7Kx")
@example("redis://:x?Zq7Kx@127.0.0.1")
@example("redis://127.0.0.1/0?password=x&Zq7Kx")
@example("amqp://u:x/Zq7Kx@127.0.0.1/v")
@example("redis://:x[Zq7Kx]y@127.0.0.1")
@example("nats://127.0.0.1:Zq7Kx@")
@settings(max_examples=400, deadline=None)
def test_no_error_of_a_url_and_no_form_of_settings_shows_a_secret(url: str) -> None:
    for given_ in ({"broker": url}, {"store": url}, {"backlog": url}, {"brokers": {"mail": url}}):
        try:
            made = Settings(**given_)
        except ConfigurationError as error:
            assert_hidden(str(error), repr(error))
            continue
        assert_hidden(repr(made), repr(made.public()))
        try:
            app = Umbel(**given_)
        except (UmbelError, ImportError) as error:
            assert_hidden(str(error), repr(error))
        else:
            assert_hidden(repr(app), repr(app.settings))
    for variable in ("UMBEL_BROKERS", "UMBEL_NAMESPACE", "UMBEL_DEADLINE", "UMBEL_FORMAT"):
        value = f"mail={url}" if variable == "UMBEL_BROKERS" else url
        try:
            Settings.resolve({}, {variable: value})
        except ConfigurationError as error:
            assert_hidden(str(error))


@given(urls())
@settings(max_examples=200, deadline=None)
def test_no_driver_quotes_a_secret_of_a_url_that_settings_accept(url: str) -> None:
    try:
        Settings(broker=url)
    except ConfigurationError:
        return
    try:
        address = ADDRESSES[url.partition("://")[0].lower()](url)
    except ConfigurationError as error:
        assert_hidden(str(error))
    else:
        assert_hidden(address.label)


@given(urls(), st.sampled_from([ConfigurationError, Unavailable, UmbelError]))
def test_an_error_that_quotes_a_url_masks_it(url: str, kind: type[UmbelError]) -> None:
    assert_hidden(str(kind(f"broker={mask_url(url)!r} does not answer")))


def test_an_error_masks_a_well_formed_url_and_a_connection_string_in_its_text() -> None:
    text = "no answer from redis://me:hush@host/0 nor 'amqp://me:hu sh@host', password=hush host=x"
    shown = "no answer from redis://me:***@host/0 nor 'amqp://***@host', password=*** host=x"
    for kind in (ConfigurationError, Unavailable, UmbelError):
        assert str(kind(text)) == shown
    assert str(RemoteTraceback(text)) == f"\n{shown}"


def test_masking_twice_is_masking_once_and_leaves_other_text_alone() -> None:
    for text in (
        "redis://me:hush@host/0?password=x",
        "nats://token@host",
        "plain text: a@b.c and a=b",
        "write amqp://user:password@host:5672/vhost",
        "http://127.0.0.1:8081/readyz",
    ):
        assert mask_secrets(mask_secrets(text)) == mask_secrets(text)
    for text in ("a@b.c", "write amqp://user:password@host", "http://host:80/x?a=b", "limit=5"):
        assert mask_secrets(text) == text


@pytest.mark.parametrize(
    "part",
    ["x", "a1", "a-", "a://", "'a://", "'a://\\", "\\", "password", "secret_", "token='\\", "://@"],
)
def test_masking_a_long_text_takes_a_time_that_grows_with_its_length(part: str) -> None:
    for start in ("", "'a://"):
        text = start + part * (60_000 // len(part)) + "\npassword=hush amqp://ann:hush@host"
        begun = time.process_time()
        assert "hush" not in mask_secrets(text)
        assert time.process_time() - begun < 10  # it was minutes


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            "postgresql://me:hush@host/db?sslmode=require",
            "postgresql://me:***@host/db?sslmode=require",
        ),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("nats://token@host:4222", "nats://***@host:4222"),
        ("redis://:hush@host/0", "redis://:***@host/0"),
        ("redis://a:p1@host,b:p2@host2", "redis://***@host2"),
        ("redis://h?password=x&db=1", "redis://h?password=***&db=1"),
        ("sqlite:////home/me@work/umbel.db", "sqlite:////home/me@work/umbel.db"),
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis+sentinel://a:26379,b:26379/name", "redis+sentinel://a:26379,b:26379/name"),
        ("redis://:hush", "redis://***"),
        ("umbel.db", "umbel.db"),
    ],
)
def test_a_url_stays_readable_without_its_secrets(url: str, shown: str) -> None:
    assert mask_url(url) == shown


# --- commands --------------------------------------------------------------------------------

COMMANDS = (
    ("config",),
    ("health",),
    ("db", "status"),
    ("jobs", "list"),
    ("send", "task"),
    ("deploy", "status"),
    ("publisher", "status"),
)


VARIABLES = ("UMBEL_URL", "UMBEL_STORE", "UMBEL_BACKLOG", "UMBEL_BROKERS", "UMBEL_FORMAT")


@given(urls(), st.sampled_from(COMMANDS), st.sampled_from(VARIABLES))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_command_shows_a_secret_of_a_setting(
    url: str, words: tuple[str, ...], variable: str
) -> None:
    base = {"UMBEL_URL": "sqlite:///:memory:", "UMBEL_DEADLINE": "0.2"}
    with environment(**base | {variable: f"mail={url}" if variable == "UMBEL_BROKERS" else url}):
        assert_hidden(*umbel(*words), *umbel(*words, "--json"))


@given(urls(), st.sampled_from(["router", "publisher"]))
@settings(max_examples=40, deadline=None)
def test_no_command_shows_a_secret_of_the_url_it_is_to_listen_at(url: str, command: str) -> None:
    with environment(UMBEL_URL="sqlite:///:memory:"):
        assert_hidden(*umbel(command, "--listen", url), *umbel(command, "--listen", url, "--json"))


@pytest.mark.parametrize(
    "broken", ["redis:/:Zq7Kx@host", "redis://:Zq 7Kx@host", "amqp://Zq7Kx@[h"]
)
def test_an_application_with_a_broken_url_in_its_code_is_refused_without_quoting_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"shop_{abs(hash(broken))}"
    (tmp_path / f"{name}.py").write_text(f"from umbel import Umbel\n\napp = Umbel({broken!r})\n")
    for json_too in ((), ("--json",)):
        out, err = umbel("-A", name, "jobs", "list", *json_too)
        assert "7kx" not in (out + err).lower()
        assert f"{name}.py" in err
        assert "line 3" in err


def test_an_argument_that_is_no_text_is_refused_without_its_secret() -> None:
    assert_hidden(*umbel("bench", "--url", "redis://:Zq7Kx\udc80@host"))


@pytest.mark.parametrize("words", [("show", "{id}"), ("list",)])
def test_no_command_shows_a_secret_that_the_error_of_a_task_quotes(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    app = Umbel(f"sqlite:///{tmp_path}/umbel.db?synchronous=off")

    @app.task(name="shop.fail", retry=Retry(0))
    def fail() -> None:
        raise ValueError(TEXT)

    with working(app):
        handle = fail.delay()
        with pytest.raises(ValueError, match="cannot reach"):
            handle.get(timeout=60)
    app.close()
    given_ = [word.format(id=handle.id) for word in words]
    with environment(UMBEL_URL=f"sqlite:///{tmp_path}/umbel.db"):
        for json_too in ((), ("--json",)):
            out, err = umbel("jobs", *given_, *json_too)
            assert "cannot reach" in out
            assert_hidden(out, err)


@pytest.mark.parametrize("words", [("show", "{id}"), ("list",), ("draw", "{id}")])
@pytest.mark.parametrize("ends", ["fails", "is cancelled"])
def test_no_command_shows_a_secret_that_the_end_of_a_graph_quotes(
    tmp_path: Path, words: tuple[str, ...], ends: str
) -> None:
    app = Umbel(f"sqlite:///{tmp_path}/umbel.db?synchronous=off")

    @app.task(name="shop.fail", retry=Retry(0))
    def fail() -> None:
        raise ValueError(TEXT)

    handle = chain(fail.si(), fail.si()).delay()
    if ends == "fails":
        with working(app), pytest.raises(ValueError, match="cannot reach"):
            handle.get(timeout=60)
    else:
        handle.cancel(TEXT)
    app.close()
    given_ = [word.format(id=handle.id) for word in words]
    with environment(UMBEL_URL=f"sqlite:///{tmp_path}/umbel.db"):
        for json_too in ((), ("--json",)):
            out, err = umbel("graphs", *given_, *json_too)
            assert handle.id[-6:] in out or "cannot reach" in out or "flowchart" in out
            assert_hidden(out, err)


# --- logs and telemetry ----------------------------------------------------------------------

TEXT = "cannot reach postgresql://me:Zq7Kx@host/db, password=Zq7Kx"


@pytest.mark.parametrize("style", ["pretty", "json"])
def test_no_log_line_shows_a_secret(style: Any) -> None:
    class Odd:
        def __repr__(self) -> str:
            return f"<Odd {TEXT}>"

    stream = io.StringIO()
    logs = configure_logs(style, stream=stream)
    try:
        logger = logging.getLogger("mine")
        try:
            raise ValueError(TEXT)
        except ValueError:
            logger.exception(
                "it failed: %s", TEXT, extra={"url": TEXT, "odd": Odd(), "all": [TEXT]}
            )
        logs.write({"level": "info", "event": TEXT, "nested": {"a": (TEXT,)}})
        logs.subscriber("debug")(events.Unreachable(service="router", error=TEXT))
    finally:
        logs.close()
    assert "it failed" in stream.getvalue()
    assert_hidden(stream.getvalue())
    if style == "json":
        assert all(json.loads(line) for line in stream.getvalue().splitlines())


def test_no_telemetry_event_shows_a_secret() -> None:
    heard: list[events.Event] = []
    telemetry = Telemetry(heard.append)
    telemetry.emit(events.Unreachable(service="router", error=TEXT))
    telemetry.emit(events.ServiceFailed(service="heart", error=TEXT, delay=1.0))
    assert len(heard) == 2
    assert_hidden(*map(repr, heard))


def test_a_stored_traceback_shows_no_secret() -> None:
    try:
        raise ValueError(TEXT)
    except ValueError as error:
        assert_hidden(describe(error).traceback)
