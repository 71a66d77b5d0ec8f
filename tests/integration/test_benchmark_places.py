"""The places on real servers where peers are measured. A run leaves nothing behind there."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

nats = pytest.importorskip("nats")
pika = pytest.importorskip("pika")
redis = pytest.importorskip("redis")
pytest.importorskip("psutil")

from benchmarks import servers  # noqa: E402
from benchmarks.brokers import OnNats, OnRabbit, OnRedis, Pair, virtual_host  # noqa: E402
from benchmarks.servers import HERE  # noqa: E402
from benchmarks.systems import Database  # noqa: E402

MARK = "umbel-bench"
pytestmark = pytest.mark.xdist_group("places")  # they count on who has which database of Redis


def test_all_of_these_run_in_one_process(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("loadgroup", False):
        assert request.node.nodeid.endswith("@places"), "pytest-xdist keeps no groups together"


def needs(database: Database) -> str:
    """Return the address of a server. Skip the test if the server does not answer."""
    if trouble := servers.trouble(database, HERE[database]):
        pytest.skip(f"not run: {trouble}")
    return HERE[database]


def nothing() -> None:
    raise AssertionError("there is nothing to install on a broker")


@contextmanager
def on_redis() -> Iterator[OnRedis]:
    place = OnRedis(needs("redis"))
    try:
        yield place
    finally:
        place.drop()


def test_two_runs_have_two_databases_of_a_redis_server_and_leave_them_empty() -> None:
    with on_redis() as one, on_redis() as two:
        assert one.url != two.url
        for place in (one, two):
            place.fresh(nothing)
        with redis.Redis.from_url(one.url) as client:
            client.set("job", "1")
        with redis.Redis.from_url(two.url) as client:
            assert client.keys() == [MARK.encode()]
        one.fresh(nothing)
        with redis.Redis.from_url(one.url) as client:
            assert client.keys() == [MARK.encode()], "the mark stays: the database is still ours"
    for place in (one, two):
        with redis.Redis.from_url(place.url) as client:
            assert client.dbsize() == 0


def of_the_dead() -> int:
    """Return the id of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_a_redis_database_of_a_run_that_died_is_taken_over() -> None:
    with on_redis() as place:
        with redis.Redis.from_url(place.url) as client:
            client.set(MARK, f"{socket.gethostname()}:{of_the_dead()}")
            client.set("job", "left behind")
        with on_redis() as heir:
            assert heir.url == place.url
            with redis.Redis.from_url(heir.url) as client:
                assert client.get(MARK).decode() == f"{socket.gethostname()}:{os.getpid()}"


def test_a_redis_database_of_a_run_on_another_machine_is_left_alone() -> None:
    with on_redis() as place:
        with redis.Redis.from_url(place.url) as client:
            client.set(MARK, f"elsewhere:{of_the_dead()}")
        with on_redis() as other:
            assert other.url != place.url


def test_a_redis_database_with_foreign_keys_is_left_alone() -> None:
    with on_redis() as place:
        with redis.Redis.from_url(place.url) as client:
            client.rename(MARK, "theirs")
        with on_redis() as other:
            assert other.url != place.url


def test_a_redis_place_answers_scripts() -> None:
    with on_redis() as place:
        with redis.Redis.from_url(place.url) as client:
            client.rpush("queue", 1, 2, 3)
        assert place.ask("return redis.call('LLEN', 'queue')") == 3


def test_the_processor_time_of_a_server_and_of_a_pair_is_known() -> None:
    with on_redis() as store:
        carrier = OnNats(needs("nats"))
        both = Pair(carrier, store, counted=True).server_time()
        alone = Pair(carrier, store, counted=False).server_time()
        if not store.server_time() or not carrier.server_time():
            pytest.skip("not run: the servers' processes cannot be seen from here")
        assert both is not None
        assert alone is not None
        assert both.keys() == {*alone, *(store.server_time() or {})}
        assert alone.keys() < both.keys()


def test_a_pair_names_both_addresses_and_empties_both() -> None:
    with on_redis() as store:
        carrier = OnNats(needs("nats"))
        pair = Pair(carrier, store, counted=True)
        asyncio.run(_add_stream(carrier.url, f"{carrier.name}-jobs"))
        with redis.Redis.from_url(store.url) as client:
            client.set("job", "1")
        assert pair.settings == {
            "BENCH_URL": carrier.url,
            "BENCH_NAME": carrier.name,
            "BENCH_STORE": store.url,
        }
        pair.fresh(nothing)
        with redis.Redis.from_url(store.url) as client:
            assert client.keys() == [MARK.encode()]
        assert not asyncio.run(_streams(carrier.url, carrier.name))


def test_only_the_streams_of_the_run_go() -> None:
    place = OnNats(needs("nats"))
    others = f"other-{place.name}"
    try:
        for name in (f"{place.name}-one", f"{place.name}+default+io", others):
            asyncio.run(_add_stream(place.url, name))
        place.drop()
        assert not asyncio.run(_streams(place.url, place.name))
        assert asyncio.run(_streams(place.url, others)) == [others]
    finally:
        asyncio.run(_delete_stream(place.url, others))


async def _add_stream(url: str, name: str) -> None:
    async with await nats.connect(url) as client:
        await client.jetstream().add_stream(name=name, subjects=[f"{name}.jobs"])


async def _delete_stream(url: str, name: str) -> None:
    async with await nats.connect(url) as client:
        await client.jetstream().delete_stream(name)


async def _streams(url: str, prefix: str) -> list[str]:
    async with await nats.connect(url) as client:
        found = [one.config.name for one in await client.jetstream().streams_info()]
    return [name for name in found if name.startswith(prefix)]


def _virtual_hosts() -> list[str]:
    command = ["rabbitmqctl", "-q", "list_vhosts", "--no-table-headers"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd="/")
    return done.stdout.split()


def _queue_there(url: str, queue: str) -> bool:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        connection.channel().queue_declare(queue, passive=True)
    except pika.exceptions.ChannelClosedByBroker:
        return False
    else:
        return True
    finally:
        connection.close()


def _declare(url: str, *queues: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    for queue in queues:
        connection.channel().queue_declare(queue, durable=True)
    connection.close()


def test_a_virtual_host_is_there_for_the_run_and_each_system_empties_its_own_queues() -> None:
    server = needs("rabbitmq")
    assert shutil.which("rabbitmqctl")
    with ExitStack() as stack:
        url = stack.enter_context(virtual_host(server))
        name = url.rpartition("/")[2]
        place = OnRabbit(url, ("mine",))
        _declare(url, "mine", "theirs")
        place.fresh(nothing)
        assert not _queue_there(url, "mine")
        assert _queue_there(url, "theirs")
        place.fresh(nothing)
        assert name in _virtual_hosts()
    assert name not in _virtual_hosts()


def test_a_server_that_is_not_there_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    for database, scheme in (("redis", "redis"), ("nats", "nats"), ("rabbitmq", "amqp")):
        text = servers.trouble(database, f"{scheme}://127.0.0.1:{port}")  # type: ignore[arg-type]
        assert text is not None
        assert f"--{database}" in text
        assert "--on" in text
