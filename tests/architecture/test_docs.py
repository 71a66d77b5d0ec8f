"""What the documentation says is so: snippets run, commands exist, reference pages are complete.

A comment before a fenced block says what is done with it:

``<!-- run -->``             runs, in the order of the page, in one process of the page's own
``<!-- run: worker -->``     the same, with a worker for the page's ``app``
``<!-- run: postgres -->``   the same on PostgreSQL, in a process beside; words combine
``<!-- run: greenlet -->``   the same, if that module is installed
``<!-- file: NAME -->``      is a file beside what runs; ``test_*.py`` is handed to pytest
``<!-- output -->``          is exactly what the block that ran before it printed

Every other Python block must compile.
"""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import importlib.util
import inspect
import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

import umbel
from umbel import Handle, Limit, Pool, Rate, Signature, Snooze, Task, Umbel, Unique, errors
from umbel.backends.sqlite.database import SqliteFile
from umbel.cli.entry import cli
from umbel.cli.worker import worker
from umbel.configuration import Settings
from umbel.messages import TRANSITIONS, State
from umbel.messages.wire import schema
from umbel.observability.metrics import HELP
from umbel.operations import Operations
from umbel.tasks import CallOptions, Retry, TaskOptions, Track, current
from umbel.telemetry import events
from umbel.testing import InMemoryJobs
from umbel.testing.brokers import TOPICS as BROKER_TOPICS
from umbel.testing.stores import TOPICS as STORE_TOPICS
from umbel.worker import WorkerOptions

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TEXTS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
POSTGRES = os.environ.get("UMBEL_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
INTERNAL = {"UMBEL_FLEET", "UMBEL_DEV_CHANGED", "UMBEL_COMPLETE"}
"""Variables that Umbel's processes hand to one another; nobody else sets them."""
OF_TESTS = {"UMBEL_TEST_POSTGRES"}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def read(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


# --- blocks ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: its language, the words of the comment before it, its text."""

    line: int
    language: str
    mark: str
    words: frozenset[str]
    text: str


_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*).*?$")
_MARK = re.compile(r"^ *<!-- (?P<mark>run|file|output)(?:: (?P<rest>.*?))? -->$")


def blocks(page: Path) -> list[Block]:
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
        rest = frozenset((mark["rest"] or "").split()) if mark else frozenset()
        found.append(Block(at + 1, fence["language"], mark["mark"] if mark else "", rest, text))
        at, mark = end + 1, None
    return found


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_every_python_block_compiles(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            place = f"{name_of(page)}:{block.line}"
            compile(block.text, place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


RUNNER = """
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
        worker = app.worker(WorkerOptions(queues=queues, name="docs", grace=0))
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

threads, printed = [], []
for block in json.load(sys.stdin):
    heard = io.StringIO()
    with contextlib.redirect_stdout(heard):
        if "worker" in block["words"] and not threads:
            threads.append(work(space["app"]))
        run(block)
    printed.append(heard.getvalue())
for loop, worker in workers:
    loop.call_soon_threadsafe(worker.stop)
for thread in threads:
    thread.join(30)
if "app" in space:
    space["app"].close()
json.dump(printed, sys.stdout)
"""


def runs() -> list[Any]:
    found = []
    for page in PAGES:
        marked = [block for block in blocks(page) if block.mark == "run"]
        for place in ("sqlite", "postgres"):
            if any(("postgres" in block.words) == (place == "postgres") for block in marked):
                found.append(pytest.param(page, place, id=f"{name_of(page)}-{place}"))
    return found


def runs_here(block: Block, place: str) -> bool:
    modules = block.words - {"worker", "postgres"}
    there = all(importlib.util.find_spec(module) is not None for module in modules)
    return there and ("postgres" in block.words) == (place == "postgres")


@pytest.fixture
def url(place: str, tmp_path: Path) -> Iterator[str]:
    if place == "sqlite":
        yield f"sqlite:///{tmp_path}/umbel.db"
        return
    psycopg = pytest.importorskip("psycopg")
    try:
        connection = psycopg.connect(POSTGRES, autocommit=True, connect_timeout=2)
    except psycopg.OperationalError as error:
        pytest.skip(f"not run: snippets on PostgreSQL ({error})")
    name = f"umbel_docs_{uuid.uuid4().hex[:8]}"
    asyncio.run(Umbel(f"{POSTGRES}?schema={name}").backend.migrate())
    yield f"{POSTGRES}?schema={name}"
    connection.execute(f"drop schema {name} cascade")
    connection.close()


@pytest.mark.parametrize(("page", "place"), runs())
def test_marked_snippets_run_and_print_what_the_page_says(
    page: Path, place: str, url: str, tmp_path: Path
) -> None:
    wanted: list[Block] = []
    outputs: dict[int, str] = {}
    last: Block | None = None
    for block in blocks(page):
        if block.mark == "file":
            (tmp_path / next(iter(block.words))).write_text(block.text, encoding="utf-8")
        elif block.mark == "run":
            last = block if runs_here(block, place) else None
            wanted += [last] if last else []
        elif block.mark == "output" and last:
            outputs[len(wanted) - 1] = block.text
    environment = {**os.environ, "UMBEL_URL": url, "DATABASE_URL": url.partition("?")[0]}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUNNER],
        input=json.dumps([{**vars(b), "words": list(b.words)} for b in wanted]),
        env={**environment, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path[1:]])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert {at: printed[at] for at in outputs} == outputs


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if any(b.mark == "file" and "test_" in b.text for b in blocks(p))],
    ids=name_of,
)
def test_the_tests_on_a_page_pass(page: Path, tmp_path: Path) -> None:
    for block in blocks(page):
        if block.mark == "file":
            (tmp_path / next(iter(block.words))).write_text(block.text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "."],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- commands --------------------------------------------------------------------------------


def commands(page: Path) -> Iterator[str]:
    """Every command line of ``umbel`` that a page names, in prose or in blocks."""
    text = page.read_text(encoding="utf-8")
    for block in blocks(page):
        if block.language != "python":
            yield from re.findall(
                r"(?:^\$ |[=\"]|/bin/)(?:\w+=\S+ )*(umbel [^|;&>#'\"\n]*)", block.text, re.MULTILINE
            )
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`(umbel [^`]*)`", prose)


def check_command(line: str) -> None:
    words = shlex.split(line)[1:]
    context = click.Context(cli, info_name="umbel", **cli.context_settings)
    command: click.Command = cli
    while words:
        word = words.pop(0)
        if word.startswith("-") and len(word) > 1 and not word[1].isdigit():
            name = word.partition("=")[0]
            option = next((p for p in command.get_params(context) if name in p.opts), None)
            assert option is not None, f"{line!r}: {command.name} has no option {name}"
            flag = isinstance(option, click.Option) and (option.is_flag or option.count)
            if not flag and "=" not in word and words:
                words.pop(0)
        elif isinstance(command, click.Group):
            inner = command.get_command(context, word)
            assert inner is not None, f"{line!r}: there is no command {word!r}"
            context = click.Context(inner, info_name=word, parent=context)
            command = inner


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_every_command_named_exists_with_its_options(page: Path) -> None:
    for line in commands(page):
        check_command(line)


def test_the_command_line_page_is_what_the_commands_say() -> None:
    script = module_at(DOCS / "write_cli_reference.py")
    page = script.page()
    assert read("reference/cli.md") == page, "run: python docs/write_cli_reference.py"


def test_the_page_of_capabilities_is_what_the_adapters_say() -> None:
    script = module_at(DOCS / "write_capabilities.py")
    page = script.page()
    assert read("reference/capabilities.md") == page, "run: python docs/write_capabilities.py"


def module_at(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- reference pages -------------------------------------------------------------------------


def rows(text: str) -> list[str]:
    """The first cell of every row of every table, if it is a name in code."""
    return re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)


def section(text: str, title: str) -> str:
    """What stands below a heading, up to the next of its level."""
    found = re.search(rf"^(#+) {re.escape(title)}$", text, re.MULTILINE)
    assert found is not None, f"there is no section {title!r}"
    rest = text[found.end() :]
    after = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: after.start()] if after else rest


def classes(module: ModuleType, of: type) -> set[str]:
    found = {name for name, value in vars(module).items() if inspect.isclass(value)}
    return {
        name
        for name in found
        if issubclass(getattr(module, name), of)
        and getattr(module, name).__module__ == module.__name__
    }


def test_the_errors_page_names_every_error_once() -> None:
    named = rows(read("reference/errors.md"))
    assert sorted(named) == sorted(classes(errors, BaseException))


def test_the_errors_page_draws_the_tree_of_the_code() -> None:
    tree = (errors.__doc__ or "").partition("::\n\n")[2]
    drawn = inspect.cleandoc(f"\n{tree}").strip()
    assert drawn in read("reference/errors.md")


def test_the_telemetry_page_names_every_event_with_its_level_and_fields() -> None:
    text = section(read("reference/telemetry.md"), "Events")
    catalogue = classes(events, events.Event) - {"Event", "JobEvent"}
    assert sorted(rows(text)) == sorted(catalogue)
    common = set(events.JobEvent.__struct_fields__)
    for name in catalogue:
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}`"))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        event = getattr(events, name)
        fields = set(event.__struct_fields__) - (
            common if issubclass(event, events.JobEvent) else set()
        )
        assert cells[1:3] == [event.level, event.text], name
        assert set(re.findall(r"`(\w+)`", cells[3])) == fields, name


def test_the_telemetry_page_names_every_metric() -> None:
    assert sorted(rows(section(read("reference/telemetry.md"), "Metrics"))) == sorted(HELP)


def test_the_states_page_is_the_state_table() -> None:
    text = section(read("reference/states.md"), "The table")
    told = {}
    for line in text.splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            told[State(cells[0].strip("`"))] = {
                State(word) for word in re.findall(r"`(\w+)`", cells[2])
            }
    assert told == {state: set(following) for state, following in TRANSITIONS.items()}


@pytest.mark.parametrize(
    ("title", "options"),
    [
        ("TaskOptions", TaskOptions),
        ("CallOptions", CallOptions),
        ("WorkerOptions", WorkerOptions),
        ("Settings", Settings),
    ],
)
def test_the_options_page_names_every_option(title: str, options: Any) -> None:
    named = rows(section(read("reference/options.md"), title))
    extra = {"name"} if options is TaskOptions else set()  # an argument of the decorator
    assert sorted(named) == sorted({field.name for field in dataclasses.fields(options)} | extra)


@pytest.mark.parametrize("policy", [Retry, Unique, Limit, Rate, Pool])
def test_the_options_page_names_every_part_of_a_policy(policy: type) -> None:
    named = rows(section(read("reference/options.md"), policy.__name__))
    parameters = set(inspect.signature(policy).parameters)
    assert sorted(named) == sorted(parameters)


def test_the_options_page_names_every_way_to_track() -> None:
    assert sorted(rows(section(read("reference/options.md"), "Track"))) == sorted(Track)


def test_the_options_page_lists_the_defaults() -> None:
    text = read("reference/options.md")
    for title, options in (("WorkerOptions", WorkerOptions), ("Settings", Settings)):
        for field in dataclasses.fields(options):
            if isinstance(field.default, int | float) and not isinstance(field.default, bool):
                row = next(
                    line
                    for line in section(text, title).splitlines()
                    if line.startswith(f"| `{field.name}`")
                )
                told = f"{field.default:g}" if field.default < 1000 else f"{field.default:,}"
                assert f" {told} " in row, row


def variables() -> set[str]:
    """Every environment variable that a user may set."""
    of_settings = {f"UMBEL_{field.name.upper()}" for field in dataclasses.fields(Settings)}
    of_flags = {one.envvar for one in worker.params if isinstance(one.envvar, str)}
    return of_settings | of_flags | {"UMBEL_URL", "UMBEL_APP"}


def test_the_options_page_names_every_environment_variable() -> None:
    text = section(read("reference/options.md"), "Environment variables")
    named = {name for name in rows(text) if name.startswith("UMBEL_")}
    assert named == variables()


def test_no_other_environment_variable_is_read_or_named() -> None:
    source = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "src").rglob("*.py"))
    used = set(re.findall(r"UMBEL_[A-Z]+(?:_[A-Z]+)*", source))
    assert used <= variables() | INTERNAL
    told = "".join(page.read_text(encoding="utf-8") for page in TEXTS)
    assert set(re.findall(r"UMBEL_[A-Z]+(?:_[A-Z]+)*", told)) <= variables() | OF_TESTS


def test_the_wire_format_page_names_every_attribute() -> None:
    named = rows(section(read("reference/wire-format.md"), "Attributes"))
    assert sorted(named) == sorted(schema()["properties"])


def test_the_sql_page_names_every_table_and_column() -> None:
    text = read("reference/sql-schema.md")
    connection: sqlite3.Connection = SqliteFile(":memory:").connect(1.0)
    tables = [
        row[0]
        for row in connection.execute(
            "select name from sqlite_schema"
            " where type in ('table', 'view') and name not like 'sqlite%'"
        )
    ]
    only_postgres = {"job": {"type", "awaited"}, "record": {"type"}}
    for table in tables:
        columns = {row[1] for row in connection.execute(f"pragma table_info({table})")}
        named = rows(section(text, table))
        assert sorted(named) == sorted(columns | only_postgres.get(table, set())), table


def public(kind: Any) -> set[str]:
    names = {name for name in vars(kind) if not name.startswith("_")}
    return names | {name for name in ("__await__", "__call__") if name in vars(kind)}


def test_the_api_page_names_everything_public() -> None:
    text = read("reference/api.md")
    assert sorted(rows(section(text, "What `umbel` exports"))) == sorted(umbel.__all__)
    kinds: dict[str, Any] = {
        "Umbel": Umbel,
        "Handle": Handle,
        "Operations": Operations,
        "current": type(current),
        "umbel.testing": InMemoryJobs,
    }
    for title, kind in kinds.items():
        named = set(re.findall(r"\w+", " ".join(rows(section(text, title)))))
        missing = public(kind) - named
        assert not missing, f"{title}: {missing}"
    for kind in (Task, Signature):
        named = set(re.findall(r"\w+", " ".join(rows(section(text, kind.__name__)))))
        assert {"delay", "adelay"} <= named
    assert Snooze.__name__ in text


# --- links, names, navigation ----------------------------------------------------------------


def slug(title: str) -> str:
    plain = re.sub(r"[^\w\s-]", "", title.replace("`", "")).strip().lower()
    return re.sub(r"[\s]+", "-", plain)


def anchors(page: Path) -> set[str]:
    text = re.sub(
        r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    return {slug(title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_relative_links_resolve(page: Path) -> None:
    text = re.sub(
        r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{name_of(page)}: {target}"
        if anchor:
            assert anchor in anchors(found), f"{name_of(page)}: {target}"


def known_tests() -> set[str]:
    source = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "src/umbel/testing").rglob("*.py")]
    told = "".join(path.read_text(encoding="utf-8") for path in source)
    return set(re.findall(r"def (test_\w+)", told))


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_every_test_named_exists(page: Path) -> None:
    named = set(re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8")))
    assert named <= known_tests()


def test_every_promise_names_its_tests() -> None:
    text = read("explanation/guarantees.md")
    promises = re.split(r"^## (?=\d)", text, flags=re.MULTILINE)[1:]
    assert len(promises) >= 10
    for promise in promises:
        title = promise.splitlines()[0]
        built = "Not built yet" not in promise
        assert not built or re.search(r"`test_\w+`", promise), title


def test_the_adapter_page_names_every_topic_of_the_suites() -> None:
    text = read("how-to/write-an-adapter.md")
    for topic in (*BROKER_TOPICS, *STORE_TOPICS):
        assert f"`{topic.__name__}`" in text, topic


def test_every_page_is_in_the_navigation() -> None:
    told = re.findall(r"[\w/.-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(told) == sorted(str(page.relative_to(DOCS)) for page in PAGES)
