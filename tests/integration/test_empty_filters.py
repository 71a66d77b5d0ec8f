"""An empty filter or name is an error: it must never be taken for "all"."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from integration.conftest import working
from umbel import Retry, State, Umbel
from umbel.backends import JobFilter, Records
from umbel.cli.entry import cli, run
from umbel.control import DeploymentPlan
from umbel.errors import BadMessage, ConfigurationError, JobFailed
from umbel.links.ports import port_methods
from umbel.messages import TERMINAL, fresh_id
from umbel.operations import Operations

REDIS = os.environ.get("UMBEL_TEST_REDIS", "redis://127.0.0.1:6379/0")
FREE_TEXT = {"reason", "words"}
"""Parameters that may be empty: free text, and arguments of a task."""


@dataclass
class Kept:
    """A store with one job of each final state but expired, and the command line on it."""

    app: Umbel
    jobs: dict[State, str]

    def umbel(self, *words: str) -> tuple[int, str, str]:
        """Run a command. Return its exit code, standard output and standard error."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = run(words)
        return code, out.getvalue(), err.getvalue()

    def ask(self, question: Callable[[Operations], Awaitable[Any]]) -> Any:
        async def asked() -> Any:
            operations = self.app.operations()
            try:
                return await question(operations)
            finally:
                await operations.close()

        return asyncio.run(asked())

    def left(self) -> dict[State, str]:
        found = self.ask(lambda operations: operations.jobs(JobFilter(limit=1000)))
        return {record.state: record.id for record in found}


def _kept(url: str, namespace: str) -> Kept:
    app = Umbel(url, namespace=namespace)
    asyncio.run(app.backend.migrate())

    @app.task(name="shop.work", retry=Retry(0))
    def work(fails: bool) -> None:
        if fails:
            raise ValueError("no")

    cancelled = work.options(delay=3600).delay(False)
    cancelled.cancel()
    with working(app):
        done, buried = work.delay(False), work.delay(True)
        done.get(timeout=60)
        with pytest.raises((ValueError, JobFailed)):
            buried.get(timeout=60)
    jobs = {State.SUCCEEDED: done.id, State.BURIED: buried.id, State.CANCELLED: cancelled.id}
    return Kept(app, jobs)


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def kept(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Kept]:
    namespace = f"empty-{os.getpid()}-{fresh_id()[-6:]}"
    match request.param:
        case "sqlite":
            url = f"sqlite:///{tmp_path}/umbel.db?synchronous=off"
        case "postgres":
            url = request.getfixturevalue("postgres_url")
        case _:
            url = REDIS
    for name in [name for name in os.environ if name.startswith("UMBEL_")]:
        if not name.startswith("UMBEL_TEST"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("UMBEL_URL", url)
    monkeypatch.setenv("UMBEL_NAMESPACE", namespace)
    made = _kept(url, namespace)
    yield made
    made.ask(lambda operations: operations.forget(JobFilter(states=tuple(TERMINAL))))
    made.app.close()
    if request.param == "redis":
        import redis

        with redis.Redis.from_url(REDIS) as client:
            for key in client.scan_iter(match=f"umbel:{{{namespace}*", count=1000):
                client.delete(key)


# --- jobs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--task", "--queue"])
@pytest.mark.parametrize(
    "words",
    [("purge", "--yes"), ("purge", "--yes", "--state", "buried"), ("retry",), ("retry", "--all")],
    ids=" ".join,
)
def test_a_command_on_many_jobs_with_an_empty_filter_changes_nothing(
    kept: Kept, words: tuple[str, ...], option: str
) -> None:
    for empty in ("", "  "):
        code, _, err = kept.umbel("jobs", *words, option, empty)
        assert code == 2, err
        assert option in err
        assert "leave it out" in err
    assert kept.left() == kept.jobs


@pytest.mark.parametrize("field", ["task", "queue", "worker"])
def test_operations_refuse_an_empty_filter(kept: Kept, field: str) -> None:
    for empty in ("", " "):
        with pytest.raises(ConfigurationError, match=f"{field}=.*leave it out"):
            kept.ask(lambda operations, e=empty: operations.jobs(JobFilter(**{field: e})))
        with pytest.raises(ConfigurationError, match=f"{field}=.*leave it out"):
            kept.ask(lambda operations, e=empty: operations.forget(JobFilter(**{field: e})))
    assert kept.left() == kept.jobs


@pytest.mark.parametrize("field", ["task", "queue", "worker"])
def test_an_empty_filter_that_another_process_sends_over_a_link_is_refused(field: str) -> None:
    search = port_methods(Records)["search"]
    sound = msgspec.msgpack.encode(({field: "mail"},))
    assert search.decode_call(sound).args == (JobFilter(**{field: "mail"}),)
    with pytest.raises(BadMessage, match=field):
        search.decode_call(msgspec.msgpack.encode(({field: ""},)))


# --- purge and buried jobs -------------------------------------------------------------------


def test_purge_without_a_state_leaves_buried_jobs(kept: Kept) -> None:
    code, out, err = kept.umbel("jobs", "purge", "--yes", "--json")
    assert (code, json.loads(out)) == (0, {"forgotten": 2}), err
    assert kept.left() == {State.BURIED: kept.jobs[State.BURIED]}


def test_purge_of_a_task_without_a_state_leaves_its_buried_jobs(kept: Kept) -> None:
    code, out, err = kept.umbel("jobs", "purge", "--yes", "--json", "--task", "shop.work")
    assert (code, json.loads(out)) == (0, {"forgotten": 2}), err
    assert kept.left() == {State.BURIED: kept.jobs[State.BURIED]}


def test_purge_with_the_state_buried_deletes_buried_jobs_only(kept: Kept) -> None:
    code, out, err = kept.umbel("jobs", "purge", "--yes", "--json", "--state", "buried")
    assert (code, json.loads(out)) == (0, {"forgotten": 1}), err
    assert State.BURIED not in kept.left()
    assert len(kept.left()) == 2


def test_operations_delete_buried_jobs_only_if_the_filter_names_that_state(kept: Kept) -> None:
    assert kept.ask(lambda operations: operations.forget(JobFilter(limit=1))) == 2
    assert kept.left() == {State.BURIED: kept.jobs[State.BURIED]}
    named = JobFilter(states=(State.BURIED,))
    assert kept.ask(lambda operations: operations.forget(named)) == 1
    assert kept.left() == {}


def test_operations_refuse_to_delete_jobs_that_are_not_finished(kept: Kept) -> None:
    wanted = JobFilter(states=(State.QUEUED, State.BURIED))
    with pytest.raises(ConfigurationError, match=r"states=.*queued"):
        kept.ask(lambda operations: operations.forget(wanted))
    assert kept.left() == kept.jobs


# --- every other name ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "act"),
    [
        ("queue", lambda o: o.purge("")),
        ("source", lambda o: o.move("", "other")),
        ("target", lambda o: o.move("default", "")),
        ("rule", lambda o: o.gates("")),
        ("rule", lambda o: o.override_capacity("", 1)),
        ("pool", lambda o: o.members("")),
        ("pool", lambda o: o.add_members("", {"a": {}})),
        ("pool", lambda o: o.remove_members("", ["a"])),
        ("pool", lambda o: o.drain("", ["a"])),
        ("pool", lambda o: o.ready("", ["a"])),
        ("names", lambda o: o.drain("pool", [""])),
        ("key", lambda o: o.routes(key="")),
        ("key", lambda o: o.release("", "why")),
        ("key", lambda o: o.move_route("", 0, "why")),
        ("name", lambda o: o.pause("queue", "", "why")),
        ("name", lambda o: o.resume("task", "")),
    ],
)
def test_operations_refuse_an_empty_name(
    tmp_path: Path, field: str, act: Callable[[Operations], Awaitable[Any]]
) -> None:
    app = Umbel(f"sqlite:///{tmp_path}/umbel.db?synchronous=off")
    with pytest.raises(ConfigurationError, match=rf"^{field}.*empty"):
        Kept(app, {}).ask(act)
    app.close()


@pytest.mark.parametrize("field", ["workers", "queues"])
def test_a_deployment_of_an_empty_name_is_refused(field: str) -> None:
    who: Any = {"id": fresh_id(), "who": "me", "host": "here", "pid": 1}
    with pytest.raises(ConfigurationError, match=f"{field}.*empty"):
        DeploymentPlan(**who, **{field: ("a", "")})


def _commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield (*path, name), found
        if isinstance(found, click.Group):
            yield from _commands(found, (*path, name))


def _takes_a_name(parameter: click.Parameter) -> bool:
    text = isinstance(parameter.type, click.types.StringParamType)
    return text and parameter.name not in FREE_TEXT


def _word_of(parameter: click.Parameter) -> str:
    return {"IntParamType": "1", "IntRange": "1"}.get(type(parameter.type).__name__, "x")


NAMED = [
    (path, command, parameter)
    for path, command in _commands(cli)
    for parameter in command.params
    if _takes_a_name(parameter)
]


@pytest.mark.parametrize(
    ("path", "command", "parameter"),
    NAMED,
    ids=[f"{' '.join(path)} {parameter.name}" for path, _, parameter in NAMED],
)
def test_an_empty_name_is_an_error_of_every_command(
    path: tuple[str, ...],
    command: click.Command,
    parameter: click.Parameter,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UMBEL_URL", f"sqlite:///{tmp_path}/untouched.db")
    words = [*path]
    for other in command.params:
        if isinstance(other, click.Argument) and other.required:
            words.append("" if other is parameter else _word_of(other))
    if isinstance(parameter, click.Argument) and not parameter.required:
        words.append("")
    elif isinstance(parameter, click.Option):
        words += [parameter.opts[0], ""]
    err = io.StringIO()
    with redirect_stderr(err), redirect_stdout(io.StringIO()):
        code = run(words)
    assert code == 2, (words, err.getvalue())
    assert f"{parameter.get_error_hint(click.Context(command))} is empty" in err.getvalue()
    assert not (tmp_path / "untouched.db").exists()


def test_worker_with_an_empty_list_of_queues_does_not_serve_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "only_queues.py").write_text(
        "from umbel import Umbel\napp = Umbel('sqlite:///x.db')\n"
    )
    err = io.StringIO()
    with redirect_stderr(err), redirect_stdout(io.StringIO()):
        code = run(["-A", "only_queues", "worker", "--queues", ","])
    assert code == 2
    assert "--queues" in err.getvalue()
