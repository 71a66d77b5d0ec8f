"""``umbel routes`` and ``umbel workers retire``, in real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.command_line import Shell

TASKS = """
from umbel import Umbel

app = Umbel()


@app.task(affinity="plan")
async def compute(plan: str) -> str:
    return plan
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    (tmp_path / "tasks.py").write_text(TASKS)
    return shell


def test_routes_are_shown_moved_and_released(shell: Shell) -> None:
    assert "No key has a route" in shell.say("routes")
    with shell.worker("--index", "0"), shell.worker("--index", "1"):
        assert sorted(worker["index"] for worker in shell.ask("workers")) == [0, 1]
        shell.say("send", "compute", "plan-7", "--wait", "60")
        (route,) = shell.ask("routes")
        assert (route["key"], route["index"], route["released"]) == ("plan-7", 0, None)
        assert "plan-7" in shell.say("routes", "list", "--index", "0")
        nobody = shell.run("routes", "move", "plan-7", "5")
        assert (
            nobody.returncode,
            "no running worker has index 5; known indexes: 0, 1" in nobody.stderr,
        ) == (
            1,
            True,
        )
        assert "released from worker 0" in shell.say("routes", "move", "plan-7", "1")
        shell.say("send", "compute", "plan-7", "--wait", "60")
        assert shell.ask("routes")[0]["index"] == 1
        assert "routes then: worker" in shell.say("routes", "show", "plan-7")
        assert "gets no more routes" in shell.say(
            "workers", "retire", "--index", "1", "--wait", "30"
        )
        assert shell.ask("routes") == []
        unknown = shell.run("routes", "release", "plan-7")
        assert unknown.returncode == 1
        assert "no live route; see umbel routes" in unknown.stderr


def test_an_index_that_is_taken_is_refused_with_the_remedy(shell: Shell) -> None:
    with shell.worker("--index", "0", "--name", "first"):
        second = shell.run("worker", "--index", "0", "--name", "second")
        assert second.returncode == 2
        assert "index=0: worker first.0 has it; stop that worker" in second.stderr + second.stdout
