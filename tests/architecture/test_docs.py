"""What the documentation says is so: snippets run, commands exist, reference pages are complete.

``docs/write_outputs.py`` explains the comments before blocks, runs the blocks, and writes outputs.
"""

from __future__ import annotations

import ast
import codeop
import dataclasses
import importlib.util
import inspect
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from docs import write_outputs
from docs.write_outputs import blocks
from umbel import Limit, Pool, Rate, Unique, errors
from umbel.backends.sqlite.database import SqliteFile
from umbel.cli.entry import cli
from umbel.cli.worker import worker
from umbel.configuration import Settings
from umbel.messages import TRANSITIONS, State
from umbel.messages.wire import schema
from umbel.observability.metrics import HELP
from umbel.tasks import CallOptions, Retry, TaskOptions, Track
from umbel.telemetry import events
from umbel.testing.brokers import TOPICS as BROKER_TOPICS
from umbel.testing.stores import TOPICS as STORE_TOPICS
from umbel.worker import WorkerOptions

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = write_outputs.PAGES
TEXTS = [*PAGES, ROOT / "CHANGELOG.md"]
GENERATED = {DOCS / f"reference/{name}.md" for name in ("api", "capabilities", "cli")}
INTERNAL = {"UMBEL_FLEET", "UMBEL_DEV_CHANGED", "UMBEL_COMPLETE"}
"""Variables that Umbel's processes hand to one another; nobody else sets them."""
OF_TESTS = {"UMBEL_SCREENSHOTS", "UMBEL_WRITE_PICTURES", "UMBEL_TEST_POSTGRES"}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def read(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


# --- blocks ----------------------------------------------------------------------------------

MUST_BE_MARKED = {"python", "console", "sh", "js", "sql", "text", ""}
"""Languages that a newcomer runs, or that show what was printed."""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_run_or_checked_or_says_why_not(page: Path) -> None:
    if page in GENERATED:
        return
    unmarked = [
        f"{name_of(page)}:{block.line}"
        for block in blocks(page)
        if not block.mark and block.language in MUST_BE_MARKED
    ]
    assert not unmarked, "docs/write_outputs.py lists the marks"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_block_that_is_not_run_has_a_reason_and_a_checked_block_its_test(page: Path) -> None:
    for block in blocks(page):
        place = f"{name_of(page)}:{block.line}"
        if block.mark == "not run":
            assert len(block.rest.split()) > 1, place
        elif block.mark == "checked":
            assert block.rest in known_tests(), place


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_every_python_block_compiles(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            place = f"{name_of(page)}:{block.line}"
            compile(block.text, place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_blocks_can_be_typed_at_a_prompt(page: Path) -> None:
    """An indented part needs an empty line after it; blocks with tasks are for a file."""
    for block in blocks(page):
        if (
            block.language != "python"
            or block.mark != "run"
            or "@app." in block.text
            or "app =" in block.text
        ):
            continue
        compiled = codeop.CommandCompiler()
        compiled.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        typed: list[str] = []
        for number, line in enumerate(block.text.splitlines(), block.line):
            typed.append(line)
            try:
                if compiled("\n".join(typed)) is not None:
                    typed.clear()
            except SyntaxError:
                pytest.fail(f"{name_of(page)}:{number}: an empty line before this one: {line}")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: a socket in it has a path of at most 100 characters."""
    with tempfile.TemporaryDirectory(prefix="umbel-docs-") as name:
        yield Path(name)


@contextmanager
def postgres_or_skip(opened: AbstractContextManager[str]) -> Iterator[str]:
    psycopg = pytest.importorskip("psycopg")
    try:
        psycopg.connect(write_outputs.POSTGRES, connect_timeout=2).close()
    except psycopg.OperationalError as error:
        pytest.skip(f"not run: snippets on PostgreSQL ({error})")
    with opened as url:
        yield url


@pytest.mark.parametrize(
    ("page", "place"),
    [
        pytest.param(page, place, id=f"{name_of(page)}-{place}")
        for page in PAGES
        for place in write_outputs.places(page)
    ],
)
def test_python_blocks_run_and_print_what_the_page_says(
    page: Path, place: str, folder: Path
) -> None:
    if place == "sqlite":
        url = f"sqlite:///{folder}/umbel.db"
        assert write_outputs.python_differences(page, place, url, folder) == {}
        return
    with postgres_or_skip(write_outputs.private_schema()) as url:
        assert write_outputs.python_differences(page, place, url, folder) == {}


@pytest.mark.parametrize(
    "page", [page for page in PAGES if write_outputs.has_commands(page)], ids=name_of
)
def test_commands_run_and_print_what_the_page_says(page: Path, folder: Path) -> None:
    missing = [tool for tool in write_outputs.tools(page) if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not run: the commands of a page, which need {', '.join(missing)}")
    if not write_outputs.needs_database(page):
        assert write_outputs.console_differences(page, folder, None) == {}
        return
    with postgres_or_skip(write_outputs.private_database(page)) as database:
        assert write_outputs.console_differences(page, folder, database) == {}


@pytest.mark.parametrize(
    "page",
    [
        page
        for page in PAGES
        if any((block.file or "").startswith("test_") for block in blocks(page))
        and "-m pytest" not in page.read_text(encoding="utf-8")
    ],
    ids=name_of,
)
def test_the_tests_on_a_page_pass(page: Path, tmp_path: Path) -> None:
    for block in blocks(page):
        if block.file:
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
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


def test_every_sql_block_runs() -> None:
    with postgres_or_skip(write_outputs.private_schema()) as url:
        address, _, schema = url.partition("?schema=")
        psycopg = pytest.importorskip("psycopg")
        with psycopg.connect(address) as connection:
            for block in blocks(DOCS / "reference/sql-schema.md"):
                if block.language == "sql":
                    connection.execute(block.text.replace("umbel.", f"{schema}."))


def test_an_output_that_differs_is_found_and_the_page_is_corrected(folder: Path) -> None:
    page = folder / "page.md"
    page.write_text(
        "<!-- run -->\n```python\nprint(1 + 1)\n```\n\n<!-- output -->\n```text\n3\n```\n\n"
        "<!-- console -->\n```console\n$ echo one\ntwo\n$ echo three\n…\n```\n"
    )
    found = write_outputs.python_differences(page, "sqlite", "sqlite:///umbel.db", folder)
    found |= write_outputs.console_differences(page, folder, None)
    write_outputs.replace_texts(page, found)
    assert [block.text for block in blocks(page)[1:]] == [
        "2\n",
        "$ echo one\none\n$ echo three\n…\n",
    ]
    assert write_outputs.console_differences(page, folder, None) == {}


# --- commands --------------------------------------------------------------------------------


def commands(page: Path) -> Iterator[str]:
    """Every command line of ``umbel`` that a page names, in prose or in blocks."""
    text = page.read_text(encoding="utf-8")
    for block in blocks(page):
        begin = "^" if block.language == "sh" else r"^\$ "
        if block.language != "python":
            yield from re.findall(
                rf"(?:{begin}|[=\"]|/bin/)(?:\w+=\S+ )*(umbel [^|;&>#'\"\n]*)",
                block.text,
                re.MULTILINE,
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


def test_the_api_page_is_what_the_signatures_and_docstrings_say() -> None:
    script = module_at(DOCS / "write_api_reference.py")
    page = script.page()
    assert read("reference/api.md") == page, "run: python docs/write_api_reference.py"


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
    return of_settings | of_flags | {"UMBEL_URL", "UMBEL_APP", "UMBEL_CONFIG"}


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
    pages = [str(page.relative_to(DOCS)) for page in PAGES if DOCS in page.parents]
    assert sorted(told) == sorted(pages)


def test_the_list_of_guides_has_every_guide() -> None:
    guides = {page.name for page in (DOCS / "how-to").glob("*.md")} - {"index.md"}
    assert set(re.findall(r"\]\(([\w.-]+\.md)\)", read("how-to/index.md"))) == guides


def test_the_figures_of_the_comparison_are_those_of_the_benchmarks() -> None:
    figures = re.findall(r"\| ([\d,.]+)(?= \|)", section(read("explanation/why-umbel.md"), "Speed"))
    measured = set(re.findall(r"\| ([\d,.]+)(?= \|)", read("reference/benchmarks.md")))
    assert len(figures) > 10
    assert set(figures) <= measured
