"""``umbel workflows draw --svg`` and ``umbel graphs draw --svg`` write an image."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from integration.command_line import Shell, wait_until

CODE = """

from umbel import Signal

@app.workflow(name='a <b> & "c"')
def sum_up(number: int):
    first = add.s(number, 1)
    return add.s(first, 2).after(Signal("approved").after(first))
"""


SUB_WORKFLOW = """

@app.workflow
def sum_up(number: int):
    return add.s(add.s(number, 1), 2)

@app.workflow
def sum_up_all(number: int):
    return add.s(sum_up.s(number).result, sum_up.s(1).result)
"""


def test_a_tree_has_a_line_for_a_sub_workflow_above_its_nodes(shell: Shell) -> None:  # row 93
    code = shell.folder / "tasks.py"
    code.write_text(code.read_text() + SUB_WORKFLOW)
    run = shell.ask("workflows", "start", "sum_up_all", "1")["id"]
    with shell.worker():
        wait_until(lambda: shell.ask("graphs", "show", run)["state"] == "succeeded")
    lines = shell.say("graphs", "show", run).splitlines()
    assert lines[0] == "tasks.sum_up_all: succeeded, 5 of 5 nodes"
    assert all(len(line) <= 80 for line in lines)
    varying = r"\b[0-9a-f]{8}\b| +[\d.]+ (µs|ms|s)\b( +\*)?"
    shown = [re.sub(varying, " X", line).split(maxsplit=1)[1] for line in lines[2:]]
    names = [line.partition(" tasks.")[0].rstrip() for line in lines[2:]]
    assert names == [
        "sum_up", "  sum_up.add-2", "  sum_up.add",
        "sum_up-2", "  sum_up-2.add-2", "  sum_up-2.add",
        "add",
    ]  # fmt: skip
    sub_workflow, node = "tasks.sum_up succeeded X", "tasks.add X succeeded X"
    wanted = [sub_workflow, node, node, sub_workflow, node, node, node]
    assert [" ".join(line.split()) for line in shown] == wanted


def test_workflows_and_graphs_are_drawn_as_svg(shell: Shell) -> None:
    code = shell.folder / "tasks.py"
    code.write_text(code.read_text() + CODE)
    name = 'a <b> & "c"'
    declared = ElementTree.fromstring(shell.say("workflows", "draw", name, "--svg"))
    assert str(declared.get("aria-label")).startswith(name)
    run = shell.ask("workflows", "start", name, "1")["id"]
    drawn = ElementTree.fromstring(shell.ask("graphs", "draw", run, "--svg")["svg"])
    titles = [one.text for one in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 3
    assert any("tasks.add, queued" in str(title) for title in titles)
