"""Programs without Umbel publish jobs and get their results, on every broker.

Each program in ``examples/foreign`` runs as it is, beside a real worker process. What a careless
one sends is buried with the field that is wrong, and the worker goes on.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from processes import until

from start_servers import NODE_MODULES
from umbel import Umbel
from umbel.backends import JobFilter
from umbel.messages import Record, State, fresh_id

FOREIGN = Path(__file__).parents[2] / "examples" / "foreign"
POSTGRES = os.environ.get("UMBEL_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
REDIS = "redis://127.0.0.1:6379"
NATS = "nats://127.0.0.1:4222"
LIMIT = 100_000
"""Maximum bytes of data that these workers accept."""
HANG = 60.0


@dataclass
class Place:
    """A broker with a worker, and the addresses that other programs need."""

    settings: dict[str, str]
    """The environment of the worker and of operators."""
    environment: dict[str, str]
    """The environment of the other programs."""
    put: Callable[[bytes], Any] = field(default=lambda _: None)
    """Sends bytes to the broker as another program does."""

    def run(self, program: str) -> str:
        """Run a program of the folder. Return what it prints."""
        interpreter = {".py": [sys.executable], ".sh": ["sh"], ".js": ["node"]}
        done = subprocess.run(
            [*interpreter[Path(program).suffix], str(FOREIGN / program)],
            env={**os.environ, "NODE_PATH": str(NODE_MODULES), **self.environment},
            capture_output=True,
            text=True,
            timeout=HANG,
            check=False,
            cwd="/",
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def jobs(self, *states: State) -> list[Record]:
        """Return the jobs, as operators see them."""

        async def ask() -> list[Record]:
            app = Umbel(**self.settings)  # type: ignore[arg-type]
            operations = app.operations()
            try:
                return await operations.jobs(JobFilter(states=states, limit=1000))
            finally:
                await operations.close()

        return asyncio.run(ask())


@contextmanager
def working(place: Place, folder: Path) -> Iterator[Place]:
    """Run a worker process until the block ends."""
    names = {"broker": "UMBEL_URL", "store": "UMBEL_STORE", "namespace": "UMBEL_NAMESPACE"}
    told = {names[name]: value for name, value in place.settings.items()}
    log = folder / "worker.log"
    worker = subprocess.Popen(
        [sys.executable, "-m", "umbel", "-A", "hello", "worker", "--grace", "0"],
        env={
            **os.environ,
            **told,
            "UMBEL_MAX_MESSAGE": str(LIMIT),
            "PYTHONPATH": str(FOREIGN),
        },
        cwd=folder,
        stdout=log.open("w"),
        stderr=subprocess.STDOUT,
    )

    def started() -> bool:
        assert worker.poll() is None, log.read_text()
        return "worker started" in log.read_text()

    try:
        until(started, "the worker")
        yield place
        assert worker.poll() is None, log.read_text()
    finally:
        worker.terminate()
        worker.wait(timeout=30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("foreign")


@pytest.fixture(scope="module")
def postgres(folder: Path) -> Iterator[Place]:
    psycopg = pytest.importorskip("psycopg")
    try:
        connection = psycopg.connect(POSTGRES, autocommit=True, connect_timeout=2)
    except psycopg.OperationalError as error:
        pytest.skip(f"not run: PostgreSQL does not answer ({error})")
    schema = f"umbel_foreign_{fresh_id()[-6:]}"
    url = f"{POSTGRES}?schema={schema}"
    asyncio.run(Umbel(url).backend.migrate())

    def put(data: bytes) -> None:
        connection.execute(f"select {schema}.publish_event(%s)", [data.decode()])

    environment = {"DATABASE_URL": POSTGRES, "SCHEMA": schema}
    (folder / "postgres").mkdir()
    with working(Place({"broker": url}, environment, put), folder / "postgres") as place:
        yield place
    connection.execute(f"drop schema {schema} cascade")
    connection.close()


@pytest.fixture(scope="module")
def sqlite(folder: Path) -> Iterator[Place]:
    home = folder / "sqlite"
    home.mkdir()
    file = home / "umbel.db"
    url = f"sqlite:///{file}"
    asyncio.run(Umbel(url).backend.migrate())

    def put(data: bytes) -> None:
        """Insert a row into the view, with the same members."""
        event = json.loads(data)
        with closing(sqlite3.connect(file, timeout=10)) as connection, connection:
            connection.execute(
                "insert into publish (task, args) values (?, ?)",
                (event.get("subject"), json.dumps(event["data"]["args"])),
            )

    with working(Place({"broker": url}, {"FILE": str(file)}, put), home) as place:
        yield place


@pytest.fixture(scope="module")
def redis(folder: Path) -> Iterator[Place]:
    library = pytest.importorskip("redis")
    client = library.Redis.from_url(REDIS)
    try:
        client.ping()
    except library.RedisError as error:
        pytest.skip(f"not run: Redis does not answer ({error})")
    namespace = f"t{fresh_id()}"

    def put(data: bytes) -> None:
        client.rpush(f"umbel:{{{namespace}}}:inbox", data)

    settings = {"broker": REDIS, "namespace": namespace}
    environment = {"REDIS_URL": REDIS, "NAMESPACE": namespace}
    (folder / "redis").mkdir()
    with working(Place(settings, environment, put), folder / "redis") as place:
        yield place
    for key in client.scan_iter(f"umbel:{{{namespace}}}:*"):
        client.delete(key)
    client.close()


@pytest.fixture(scope="module")
def redis_stream(folder: Path) -> Iterator[Place]:
    """Redis is the transport, and another server is the store."""
    library = pytest.importorskip("redis")
    client = library.Redis.from_url(REDIS)
    try:
        client.ping()
    except library.RedisError as error:
        pytest.skip(f"not run: Redis does not answer ({error})")
    namespace, home = f"t{fresh_id()}", folder / "redis_stream"
    stream = f"umbel:{{{namespace}}}:stream::default"

    def put(data: bytes) -> None:
        client.xadd(stream, {"data": data})

    settings = {
        "broker": REDIS,
        "store": f"sqlite:///{home}/umbel.db",
        "namespace": namespace,
    }
    environment = {"REDIS_URL": REDIS, "NAMESPACE": namespace}
    home.mkdir()
    with working(Place(settings, environment, put), home) as place:
        until(lambda: bool(client.exists(stream)), "the stream, which the worker makes")
        yield place
    for key in client.scan_iter(f"umbel:{{{namespace}}}:*"):
        client.delete(key)
    client.close()


@pytest.fixture(scope="module")
def rabbitmq(folder: Path) -> Iterator[Place]:
    pika = pytest.importorskip("pika")
    if shutil.which("rabbitmqctl") is None:
        pytest.skip("not run: RabbitMQ; there is no rabbitmqctl to make a virtual host with")
    vhost = f"umbel-foreign-{os.getpid()}-{fresh_id()[-6:]}"

    def rabbitmqctl(*command: str) -> None:
        quiet = subprocess.DEVNULL
        subprocess.run(["rabbitmqctl", "-q", *command], check=True, stdout=quiet, cwd="/")

    url = f"amqp://guest:guest@127.0.0.1:5672/{quote(vhost, safe='')}"

    def with_channel(work: Callable[[Any], Any]) -> Any:
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            return work(connection.channel())

    def there() -> bool:
        try:
            with_channel(lambda channel: channel.queue_declare("umbel.default.any", passive=True))
        except pika.exceptions.ChannelClosedByBroker:
            return False
        return True

    def put(data: bytes) -> None:
        kind = pika.BasicProperties(content_type="application/cloudevents+json")
        with_channel(lambda channel: channel.basic_publish("", "umbel.default.any", data, kind))

    rabbitmqctl("add_vhost", vhost)
    try:
        rabbitmqctl("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
        home = folder / "rabbitmq"
        home.mkdir()
        settings = {"broker": url, "store": f"sqlite:///{home}/umbel.db"}
        with working(Place(settings, {"AMQP_URL": url}, put), home) as place:
            until(there, "the queue, which the worker makes")
            yield place
    finally:
        rabbitmqctl("delete_vhost", vhost)


@pytest.fixture(scope="module")
def nats(folder: Path) -> Iterator[Place]:
    library = pytest.importorskip("nats")
    namespace = f"t{fresh_id()}"

    def with_jetstream(work: Callable[[Any], Any]) -> Any:
        async def main() -> Any:
            client = await library.connect(NATS, connect_timeout=2, allow_reconnect=False)
            try:
                return await work(client.jetstream())
            finally:
                await client.close()

        return asyncio.run(main())

    try:
        with_jetstream(lambda jetstream: jetstream.account_info())
    except (OSError, library.errors.Error) as error:
        pytest.skip(f"not run: NATS does not answer ({error})")

    async def names(jetstream: Any) -> list[str]:
        found = [one.config.name for one in await jetstream.streams_info()]
        return [name for name in found if name.startswith(f"{namespace}+")]

    async def clean(jetstream: Any) -> None:
        for name in await names(jetstream):
            await jetstream.delete_stream(name)

    def put(data: bytes) -> None:
        with_jetstream(lambda jetstream: jetstream.publish(f"{namespace}.default", data))

    home = folder / "nats"
    home.mkdir()
    settings = {
        "broker": NATS,
        "store": f"sqlite:///{home}/umbel.db",
        "namespace": namespace,
    }
    environment = {"NATS_URL": NATS, "SUBJECT": f"{namespace}.default"}
    try:
        with working(Place(settings, environment, put), home) as place:
            wanted = f"{namespace}+default"
            until(lambda: wanted in with_jetstream(names), "the stream, which the worker makes")
            yield place
    finally:
        with_jetstream(clean)


@pytest.fixture(scope="module")
def router(sqlite: Place, folder: Path) -> Iterator[Place]:
    """A router in front of a SQLite file, which speaks AMQP 1.0."""
    pytest.importorskip("proton")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = folder / "router.log"
    process = subprocess.Popen(
        [sys.executable, "-m", "umbel", "router", "--listen", f"umbel+tcp://127.0.0.1:{port}"],
        env={**os.environ, "UMBEL_URL": sqlite.settings["broker"]},
        cwd=folder,
        stdout=log.open("w"),
        stderr=subprocess.STDOUT,
    )

    def listens() -> bool:
        assert process.poll() is None, log.read_text()
        with socket.socket() as other:
            return other.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(listens, "the router")
        yield Place(sqlite.settings, {"ROUTER": f"127.0.0.1:{port}"})
    finally:
        process.terminate()
        process.wait(timeout=30)


PROGRAMS = {
    "psql.sh": "postgres",
    "postgres_plain.py": "postgres",
    "sqlite.sh": "sqlite",
    "redis.sh": "redis",
    "redis_plain.py": "redis",
    "redis_stream.sh": "redis_stream",
    "cloudevents_sdk.py": "redis",
    "rabbitmq_plain.py": "rabbitmq",
    "rabbitmq_node.js": "rabbitmq",
    "nats_plain.py": "nats",
    "amqp_node.js": "router",
}
NEEDS = {
    "psql.sh": "psql",
    "sqlite.sh": "sqlite3",
    "redis.sh": "redis-cli",
    "redis_stream.sh": "redis-cli",
}


MODULES = {"rabbitmq_node.js": "amqplib", "amqp_node.js": "rhea"}


def needs(program: str) -> None:
    """Skip the test if this machine lacks a tool."""
    tool = NEEDS.get(program, "node" if program in MODULES else sys.executable)
    if shutil.which(tool) is None:
        pytest.skip(f"not run: {program}; there is no {tool}")
    module = MODULES.get(program)
    if module is not None and not (NODE_MODULES / module).exists():
        pytest.skip(f"not run: {program}; make servers did not get {module}")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_without_our_library_publishes_and_receives_the_result(
    program: str, request: pytest.FixtureRequest
) -> None:
    needs(program)
    place: Place = request.getfixturevalue(PROGRAMS[program])
    known = {job.id for job in place.jobs()}
    printed = place.run(program)
    (job,) = (job for job in place.jobs() if job.id not in known)
    assert (job.task, job.state) == ("hello.add", State.SUCCEEDED)
    assert job.result is not None
    assert job.result.data == b"42"
    if program == "cloudevents_sdk.py":
        assert printed == "umbel.document True\nsucceeded 42\n"
        return
    document = json.loads(printed)
    assert (document["type"], document["id"]) == ("umbel.document", job.id)
    assert (document["subject"], document["state"]) == ("hello.add", "succeeded")
    assert document["data"] == 42


def test_every_program_of_the_folder_is_run_and_imports_nothing_of_ours() -> None:
    found = {path.name for path in FOREIGN.iterdir() if path.is_file()} - {"hello.py"}
    assert found == set(PROGRAMS)
    for name in found:
        text = (FOREIGN / name).read_text()
        assert "import umbel" not in text
        assert "from umbel" not in text


def event(**changes: Any) -> bytes:
    made = {
        "specversion": "1.0",
        "id": fresh_id(),
        "type": "umbel.command",
        "source": "/elsewhere",
        "subject": "hello.add",
        "data": {"args": [20, 22]},
        **changes,
    }
    return json.dumps({name: value for name, value in made.items() if value is not None}).encode()


UNREADABLE = {
    "not JSON": (b"hello", "body: not JSON"),
    "no event": (b"[1]", "body: a CloudEvent must be a JSON object"),
    "another type": (event(type="shop.ordered"), "type: must be one of"),
    "no id": (event(id=None), "id: is missing"),
    "no UUID": (event(id="7"), "id: must be a UUID"),
    "no task": (event(subject=None), "subject: is missing"),
    "no data": (event(data=None), "data: is missing"),
    "headers too large": (event(note="x" * 70_000), "body: has more than 65,536 characters"),
}
UNFIT = {
    "wrong arguments": (event(data={"args": [20]}), "data: does not fit hello.add"),
    "data too large": (event(data={"args": ["x" * LIMIT, 1]}), "data: 100,"),
}


def buried(place: Place, known: set[str]) -> list[Record]:
    return [job for job in place.jobs(State.BURIED) if job.id not in known]


@pytest.mark.parametrize("broker", ["redis", "redis_stream", "rabbitmq", "nats"])
@pytest.mark.parametrize("mistake", [*UNREADABLE, *UNFIT])
def test_a_mistake_is_buried_with_its_reason(
    broker: str, mistake: str, request: pytest.FixtureRequest
) -> None:
    place: Place = request.getfixturevalue(broker)
    known = {job.id for job in place.jobs()}
    data, reason = {**UNREADABLE, **UNFIT}[mistake]
    if broker in ("nats", "redis_stream") and data[:1] != b"{":
        reason = "specversion: must be"  # nothing else says that it is meant as JSON
    place.put(data)
    until(lambda: len(buried(place, known)) == 1, "the record", HANG)
    (record,) = buried(place, known)
    assert record.reason.startswith(reason)
    assert (record.task == "(unreadable)") == (mistake in UNREADABLE)


@pytest.mark.parametrize("broker", ["postgres", "sqlite"])
@pytest.mark.parametrize("mistake", UNFIT)
def test_a_mistake_that_a_database_cannot_see_is_buried_with_its_reason(
    broker: str, mistake: str, request: pytest.FixtureRequest
) -> None:
    place: Place = request.getfixturevalue(broker)
    known = {job.id for job in place.jobs()}
    data, reason = UNFIT[mistake]
    place.put(data)
    until(lambda: len(buried(place, known)) == 1, "the record", HANG)
    assert buried(place, known)[0].reason.startswith(reason)


@pytest.mark.parametrize(
    ("mistake", "reason"),
    [
        ("not JSON", "invalid input syntax for type json"),
        ("no event", "event: a CloudEvent is a JSON object"),
        ("another type", "type: must be umbel.command"),
        ("no UUID", "id: invalid input syntax"),
        ("no task", "subject: must name the task"),
        ("no data", "data: is missing"),
    ],
)
def test_a_mistake_that_a_database_sees_is_refused_with_the_field(
    postgres: Place, mistake: str, reason: str
) -> None:
    import psycopg

    known = {job.id for job in postgres.jobs()}
    with pytest.raises(psycopg.DataError, match=reason):
        postgres.put(UNREADABLE[mistake][0])
    assert {job.id for job in postgres.jobs()} == known


def test_sqlite_refuses_what_is_no_job(sqlite: Place) -> None:
    for statement, reason in {
        "insert into publish (task, args) values ('hello.add', 'hello')": "malformed JSON",
        "insert into publish (args) values ('[1, 2]')": "job.task",
        "insert into publish (task, id) values ('hello.add', '7')": "length",
    }.items():
        with closing(sqlite3.connect(sqlite.environment["FILE"])) as connection, connection:  # noqa: SIM117
            with pytest.raises(sqlite3.Error, match=reason):
                connection.execute(statement)
