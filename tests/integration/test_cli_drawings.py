"""``umbel workflows draw --svg`` and ``umbel graphs draw --svg`` write an image."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from integration.command_line import Shell

CODE = """

from umbel import Signal

@app.workflow(name='a <b> & "c"')
def sum_up(number: int):
    first = add.s(number, 1)
    return add.s(first, 2).after(Signal("approved").after(first))
"""


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
