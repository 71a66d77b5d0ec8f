"""Whatever is typed, the command line answers with an exit code and words, never a traceback."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from command import CODES, assert_good_manners, command, environment
from hostile import ODD_NUMBERS, ODD_TEXT, nested, written
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_event import EVENT

from umbel.cli.entry import cli
from umbel.messages import fresh_id

PATIENCE = 60.0
"""Seconds after which a process is taken to hang. Nothing else is ever measured."""
JOB = fresh_id()
LONG_RUNNING = ("worker", "dev", "bench", "router", "publisher", "dashboard", "top")
RUNS_CODE = "shell"
"""It runs any text as Python code, with that code's tracebacks."""


def _words(text: str) -> str:
    """Text as a shell can pass it on: no NUL; bytes that are no UTF-8 come as surrogates."""
    return text.replace("\x00", "").replace("\ud800", "\udc80")


WORDS = (
    *("-", "--", "---", "-1", "--json", "--help", "--nothing", "=", "a=", "=b", "a=1"),
    *("9" * 5_000, "1e400", "nan", "inf", "-inf", "0x10", "1_0", nested(100_000), "{", '{"a":'),
    *("*", "..", "/", "%s", "{}", "\n", "\t", "\r", "'", '"', "\\", "$(x)", "é", "日本"),
    *(JOB, JOB[:8], JOB[-6:], "shop.sell", "sell", "default", "mail", "all", "buried"),
)
NUMBERS = [str(number) for number in ODD_NUMBERS if abs(number) != 10**400]
ODD_WORDS = (*WORDS[8:27], *NUMBERS, *map(_words, ODD_TEXT))
numbers = st.sampled_from(NUMBERS)
texts = st.sampled_from(ODD_TEXT) | st.text(st.characters(), max_size=12)
words = st.sampled_from(WORDS) | numbers | texts.map(_words)


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, with the words that name it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from leaves(found, (*path, name))
            if found.invoke_without_command:
                yield (*path, name), found
        else:
            yield (*path, name), found


COMMANDS = {" ".join(path): found for path, found in leaves(cli)}
SHORT = [name for name in COMMANDS if name not in (*LONG_RUNNING, RUNS_CODE)]


@st.composite
def arguments(draw: st.DrawFn, found: click.Command) -> list[str]:
    """Options and words for a command: some as it wants them, some not."""
    options = [parameter for parameter in found.params if isinstance(parameter, click.Option)]
    needed = [p for p in found.params if isinstance(p, click.Argument) and p.required]
    chosen = draw(st.lists(st.sampled_from(options), max_size=3, unique=True)) if options else []
    some = draw(st.lists(st.none(), max_size=1))
    typed: list[str] = []
    for parameter in draw(st.permutations([*chosen, *needed, *some])):
        if isinstance(parameter, click.Option):
            typed.append(draw(st.sampled_from(parameter.opts)))
            if parameter.name == "wait":
                # Without a number it waits for ever, and nobody works here.
                typed[-1] += f"={draw(st.sampled_from(['0', '0.01', '-1', 'nan', 'x']))}"
            elif not parameter.is_flag:
                typed.append(draw(_value(parameter.type)))
        else:
            typed.append(draw(words))
    return typed


def _value(kind: click.ParamType[Any]) -> st.SearchStrategy[str]:
    if isinstance(kind, click.Choice):
        return st.sampled_from([str(choice) for choice in kind.choices]) | words
    return words | numbers if kind.name in ("text", "HOST:PORT") else numbers | words


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Settings of a shop with a job or two."""
    folder = tmp_path_factory.mktemp("shop")
    here = {"UMBEL_URL": f"sqlite:///{folder}/umbel.db?synchronous=off"}
    before = Path.cwd()
    os.chdir(folder)
    (folder / "event.json").write_text(json.dumps(EVENT))
    with environment(here):
        assert command(["-A", "shop", "send", "sell", "1"]).code == 0
        event = {"specversion": "1.0", "id": JOB, "type": "umbel.command", "source": "x"}
        (folder / "job.json").write_text(json.dumps(event | {"subject": "x", "data": {}}))
        assert command(["-A", "shop", "send", "--cloudevent", "job.json"]).code == 0
        yield here
    os.chdir(before)


@pytest.fixture(autouse=True)
def _nobody_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))


def check(typed: list[str]) -> None:
    assert_good_manners(typed, command(typed))


USUAL = {
    "send": ["sell", "1"],
    "jobs edit": [JOB],
    "completion": ["bash"],
    "queues move": ["a", "b"],
}
"""Arguments that a command takes, for tests of its options; else a job's id for each."""


@pytest.mark.parametrize("name", SHORT)
def test_any_value_of_an_option_is_understood_or_refused(shop: dict[str, str], name: str) -> None:
    found = COMMANDS[name]
    needed = [p for p in found.params if isinstance(p, click.Argument) and p.required]
    usual = USUAL.get(name, [JOB] * len(needed))
    for option in found.params:
        if isinstance(option, click.Option) and not option.is_flag and option.name != "wait":
            for value in ODD_WORDS:
                check([*name.split(), *usual, option.opts[0], value])


@pytest.mark.parametrize("name", ["send", "jobs edit"])
@pytest.mark.parametrize("address", [[], ["-A", "shop"]])
def test_any_argument_of_a_task_is_understood_or_refused(
    shop: dict[str, str], name: str, address: list[str]
) -> None:
    for value in ODD_WORDS:
        check([*address, *name.split(), USUAL[name][0], value])
        check([*address, *name.split(), USUAL[name][0], "1", f"when={value}", "--json"])


@pytest.mark.parametrize("name", SHORT)
@given(data=st.data(), address=st.sampled_from([[], ["-A", "shop"], ["-A", "shop:app"]]))
@settings(max_examples=30)
def test_any_arguments_of_a_command_are_understood_or_refused(
    shop: dict[str, str], name: str, data: st.DataObject, address: list[str]
) -> None:
    check([*address, *name.split(), *data.draw(arguments(COMMANDS[name]))])


@pytest.mark.parametrize("name", LONG_RUNNING)
@given(data=st.data())
@settings(max_examples=50)
def test_any_arguments_of_a_long_running_command_are_parsed_or_refused(
    name: str, data: st.DataObject
) -> None:
    typed = data.draw(arguments(COMMANDS[name]))
    try:
        # Under its parent, as it is when somebody types it: a command keeps its option for help.
        parent = click.Context(cli, **cli.context_settings)
        COMMANDS[name].make_context(name, typed, parent=parent)
    except click.ClickException as error:
        code, text = error.exit_code, error.format_message()
        assert code in CODES
        assert text
    except click.exceptions.Exit:
        return  # it asked for help


@given(typed=st.lists(st.sampled_from([*COMMANDS, "jobs", "db"]).map(str) | words, max_size=4))
def test_any_arguments_are_accepted_or_refused(shop: dict[str, str], typed: list[str]) -> None:
    if not {*typed} & {*LONG_RUNNING, RUNS_CODE}:
        check([word for word in typed if not word.startswith("--w")])


ADDRESSES = (
    *(
        "",
        ":",
        "shop:",
        ":app",
        "shop:nothing",
        "shop:sell",
        "shop:app.x",
        "a:b:c",
        ".",
        "..",
        ".x",
    ),
    *(
        "shop.py",
        "./shop.py",
        "/",
        "os",
        "os:path",
        "no.such",
        " ",
        "é",
        "\udcff",
        "x" * 5_000,
        "-",
    ),
)


@pytest.mark.parametrize("address", ADDRESSES, ids=lambda text: ascii(text)[:20])
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_any_address_of_an_application_is_found_or_refused(
    shop: dict[str, str], address: str, more: list[str]
) -> None:
    check(["-A", address, "queues", *more])


# --- settings and files ----------------------------------------------------------------------

URLS = (
    *("sqlite:", "sqlite://", "sqlite:///", "sqlite:///no/such/folder/x.db", "x", "://", "http:"),
    *("sqlite:////dev/null", "sqlite:////dev/full", "sqlite:///x.db?synchronous=maybe"),
    *("sqlite://[", "sqlite:///garbage.db", "sqlite:///\udcff.db", "sqlite:///x.db?a=b&a=c"),
    *("postgresql://127.0.0.1:1/x", "postgresql://127.0.0.1:99999999/x", "postgresql://[::1"),
    *("postgresql://127.0.0.1:x/x", "postgresql://127.0.0.1:1/test?schema=%00", "\udcff"),
    *("postgresql://127.0.0.1:1/test?sslmode=x", "redis://127.0.0.1", "sqlite:///:memory:"),
)
SETTINGS = {
    "UMBEL_DEADLINE": ("nan", "inf", "-1", "0", "x", "1e400", "9" * 5_000),
    "UMBEL_MAX_MESSAGE": ("nan", "-1", "0", "1", "1.5", "x", "9" * 5_000, str(2**70)),
    "UMBEL_KEEP_DAYS": ("nan", "inf", "-1", "0", "x", "1e308"),
    "UMBEL_KEEP_COUNT": ("-1", "x", "1e3", "9" * 5_000, str(2**70)),
    "UMBEL_FORMAT": ("yaml", "pickle", "\udcff", "JSON"),
    "UMBEL_NAMESPACE": ("é", "\udcff", "x" * 64, "a b", "../x"),
    "UMBEL_STORE": URLS,
    "UMBEL_URL": URLS,
    "UMBEL_PICKLE_KEY": ("\udcff", "x" * 5_000),
    "UMBEL_APP": ("", "no.such", "\udcff", "os", "é:é"),
}
BROKEN = [(name, value) for name, values in SETTINGS.items() for value in values]


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "garbage.db").write_bytes(b"no database" * 500)


@pytest.mark.parametrize(("name", "value"), BROKEN, ids=lambda text: ascii(text)[:40])
def test_a_wrong_setting_is_reported(in_folder: None, name: str, value: str) -> None:
    with environment({"UMBEL_URL": "sqlite:///umbel.db", name: value}):
        for typed in ("config", "config --json", "jobs list", "db status --json"):
            check(typed.split())


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00", b"\xff", b"[]", b"{}", nested(100_000).encode(), written(EVENT)[:-1].encode()],
    ids=range(7),
)
def test_a_file_that_is_no_event_is_refused(
    shop: dict[str, str], tmp_path: Path, data: bytes
) -> None:
    (tmp_path / "event").write_bytes(data)
    answer = command(["send", "--cloudevent", str(tmp_path / "event")])
    assert (answer.code, answer.out) == (1, "")
    assert "body" in answer.err or "specversion" in answer.err


@pytest.mark.parametrize("place", ["", ".", "/no/such/file", "/dev/null", "\udcff", "x" * 5_000])
def test_a_file_that_cannot_be_read_is_refused(shop: dict[str, str], place: str) -> None:
    answer = command(["send", "--cloudevent", place])
    assert answer.code in (1, 2)
    assert answer.err


# --- real processes --------------------------------------------------------------------------


def start(typed: list[Any], **more: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "umbel", *typed], **more)


def test_bytes_that_are_no_text_are_refused(shop: dict[str, str]) -> None:
    for typed in ([b"jobs", b"show", b"\xff" * 8], [b"send", b"\xff", b"\xff=\xfe", b"--json"]):
        process = start(typed, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode in (1, 2)
        assert err
        assert b"Traceback" not in err


def test_a_reader_that_goes_away_is_no_error(shop: dict[str, str]) -> None:
    for typed in (["jobs", "list"], ["jobs", "list", "--json"], ["config"], ["--help"]):
        read, write = os.pipe()
        os.close(read)
        process = start(typed, stdout=write, stderr=subprocess.PIPE)
        os.close(write)
        _, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, err) == (0, b""), typed


def test_a_full_disk_behind_stdout_is_reported(shop: dict[str, str]) -> None:
    with open("/dev/full", "wb") as full:
        process = start(["jobs", "list"], stdout=full, stderr=subprocess.PIPE)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert b"Traceback" not in err
    assert b"No space left" in err


def test_a_stdout_that_is_closed_is_no_error(shop: dict[str, str]) -> None:
    code = 'exec "$0" -m umbel jobs list >&-'
    done = subprocess.run(["/bin/sh", "-c", code, sys.executable], capture_output=True, check=False)
    assert done.returncode in (0, 1)
    assert b"Traceback" not in done.stderr
