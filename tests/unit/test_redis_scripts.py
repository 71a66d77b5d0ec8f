"""Each script has what it uses of the shared files, and little else."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

import umbel
from umbel.backends.redis.scripts import Script

MODULES = (
    *(f"umbel.backends.redis.{module}" for module in ("broker", "steps", "transport")),
    *(
        f"umbel.backends.redis.{role}"
        for role in ("control", "coordination", "gates", "joins", "records", "registry", "routes")
    ),
)
SCRIPTS: dict[str, Script] = {
    f"{module.removeprefix('umbel.')}:{name}": script
    for module in MODULES
    for name, script in import_module(module).LUA.items()
}
GIVEN = {
    *("KEYS", "ARGV", "and", "or", "not", "if", "elseif", "while", "return", "in", "until"),
    *("ipairs", "pairs", "next", "pcall", "tonumber", "tostring", "type", "unpack", "function"),
}
"""What the language and the server give, and words before a bracket that call nothing."""
SHARED = {
    word
    for file in Path(umbel.__file__).parent.joinpath("backends", "redis").glob("*.lua")
    for names in re.findall(r"^local (?!function )([\w, ]+)", file.read_text(), re.MULTILINE)
    if "-- name: " not in file.read_text()
    for word in re.findall(r"\w+", names)
}
"""What shared files declare beside functions."""


def code(script: Script) -> str:
    """Without comments and strings."""
    text = re.sub(r"--.*", "", script.text.decode())
    return re.sub(r"'[^'\n]*'", "''", text)


def declared(text: str) -> set[str]:
    """Names, arguments, and what loops count by."""
    patterns = (r"local (?:function )?([\w, ]+)", r"function *\w*\(([^)]*)\)", r"for ([\w, ]+)")
    return {
        word
        for pattern in patterns
        for names in re.findall(pattern, text)
        for word in re.findall(r"\w+", names)
    }


@pytest.mark.parametrize("name", SCRIPTS)
def test_whatever_a_script_calls_is_in_it(name: str) -> None:
    text = code(SCRIPTS[name])
    called = set(re.findall(r"(?<![\w.])(\w+)\(", text))
    constants = set(re.findall(r"(?<![\w.])([A-Z][A-Z_]+)\b", text))
    shared = set(re.findall(r"(?<![\w.])(\w+)\b(?! =[^=])", text)) & SHARED
    assert (called | constants | shared) - declared(text) - GIVEN == set()


def test_what_a_script_does_not_use_is_not_in_it() -> None:
    look, claim = (
        code(SCRIPTS["backends.redis.records:find_finished"]),
        code(SCRIPTS["backends.redis.broker:claim"]),
    )
    assert "function read_job(" in look
    assert "function put_back(" not in look
    assert "function open_routes(" in claim
    assert "function insert(" not in claim
