"""Draws the screen as lines of text. Pure: the same state gives the same lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.text import Text

from umbel.messages import BodyCodec
from umbel.top.glyphs import clock, number, rate, span
from umbel.top.job_page import job_lines, traceback_lines
from umbel.top.reading import TABS, Snapshot
from umbel.top.screen import Screen
from umbel.top.tables import PANES, SORTS, Column, Row, Table

MIN_COLUMNS, MIN_LINES = 40, 12
_HEADER_LINES = 3
_MIN_PANE_LINES = 3
_STYLES = {
    "running": "cyan",
    "succeeded": "green",
    "working": "green",
    "buried": "red",
    "silent": "red",
    "waiting": "yellow",
    "paused": "yellow",
    "stopping": "yellow",
    "cancelled": "yellow",
    "expired": "yellow",
    "scheduled": "magenta",
}
_HELP = """\
umbel top shows queues, workers and tasks, and reads the store every second.

Tab, Shift-Tab   next pane; in a list of jobs: which states
Up, Down         row (also j, k, Page Up, Page Down, Home, End)
Enter            jobs of the row, then the job, then its traceback
Esc              back
f  or  /         show only rows that contain a text
s                sort by another column
p                pause a queue, a worker or a task; again: resume it
r                queue buried jobs again: of a queue, of a task, or the job
c                cancel the jobs that wait, those of a worker, or the job
!                everything that is wrong, with commands that help
q  or  Ctrl-C    quit

Actions ask first, and say how many jobs they change. They are written into the
audit log of the dashboard with your name."""


class Frame(NamedTuple):
    """What is drawn besides the state of the screen."""

    columns: int
    lines: int
    title: str
    """Namespace and store."""
    seconds: float
    """Seconds between two reads."""
    trouble: str = ""
    """Why the store could not be read."""
    since: float | None = None
    """Since when, by the clock of this machine."""


def draw(screen: Screen, snapshot: Snapshot | None, frame: Frame, codec: BodyCodec) -> list[Text]:
    """Return as many lines as the terminal has, each as wide as the terminal."""
    if frame.columns < MIN_COLUMNS or frame.lines < MIN_LINES:
        small = f"{MIN_COLUMNS}x{MIN_LINES} characters are needed."
        return _fill([Text(small)], frame.lines, frame.columns)
    body = frame.lines - _HEADER_LINES - 1
    if screen.is_help:
        content = [Text(screen.glyphs.own(line)) for line in _HELP.splitlines()]
    elif snapshot is None:
        content = [] if frame.trouble else [Text("Reading the store.")]
    else:
        content = _content(screen, snapshot, frame, codec, body)
    if frame.trouble:
        for line in content:
            line.stylize("dim")
    lines = [*_header(screen, snapshot, frame), *_fill(content, body, frame.columns)]
    return [*lines, _last_line(screen, frame.columns)]


def _content(
    screen: Screen, snapshot: Snapshot, frame: Frame, codec: BodyCodec, body: int
) -> list[Text]:
    if screen.level is None:
        if screen.jobs is None:
            return _panes(screen, snapshot, frame.columns, body)
        return _jobs(screen, snapshot, frame.columns, body)
    if screen.level == "problems":
        texts = _problem_lines(snapshot) or ["Nothing is wrong."]
    elif snapshot.wanted.job != screen.job:
        texts = ["Reading the job."]
    elif snapshot.job is None:
        texts = [f"There is no job {screen.job} any more."]
    elif screen.level == "job":
        texts = job_lines(snapshot.job, snapshot.hindrances, snapshot.overview.now, codec)
    else:
        texts = traceback_lines(snapshot.job)
    lines = [
        part
        for text in texts
        for part in chop_cells(
            screen.glyphs.own(screen.glyphs.foreign(text, limit=2_000)), frame.columns
        )
        or [""]
    ]
    screen.scroll = min(screen.scroll, max(0, len(lines) - body))
    shown = [Text(line) for line in lines[screen.scroll : screen.scroll + body]]
    if screen.level == "job" and snapshot.job is not None and not screen.scroll and shown:
        shown[0].stylize(f"bold {_STYLES.get(snapshot.job.state.value, '')}".strip())
    return shown


def _problem_lines(snapshot: Snapshot) -> list[str]:
    now, lines = snapshot.overview.now, list[str]()
    for one in snapshot.overview.problems:
        since = "" if one.since is None else f" Since {clock(one.since)}, {span(now - one.since)}."
        lines += [f"! {one.text}{since}", f"  {one.command}", ""]
    return lines


# --- header and last line --------------------------------------------------------------------


def _header(screen: Screen, snapshot: Snapshot | None, frame: Frame) -> list[Text]:
    glyphs, width = screen.glyphs, frame.columns
    sign = glyphs.own("○ no store" if frame.trouble else f"● live {frame.seconds:g} s")
    now = clock(snapshot.overview.now) if snapshot is not None else ""
    right = f"{now}  {sign}"
    left = f"umbel top  {glyphs.foreign(frame.title)}"
    room = max(10, width - cell_len(right) - 2)
    first = Text(f"{set_cell_size(left, room)}  {right}", style="bold")
    second = Text("")
    if snapshot is not None:
        overview = snapshot.overview
        slots = sum(one.io + one.cpu for one in overview.running_workers)
        totals = overview.totals
        facts = [
            f"queued {number(totals['queued'])}",
            f"waiting {number(totals['waiting'])}",
            f"running {number(totals['running'])}/{number(slots)}",
            f"buried {number(overview.buried)}{'+' * overview.buried_is_more}",
        ]
        if snapshot.succeeded_rate is not None:
            facts.append(f"ok {rate(snapshot.succeeded_rate)}/s")
            facts.append(f"failed {rate(snapshot.failed_rate)}/s")
        second = Text("  ".join(facts))
    third = Text(_third_line(screen, snapshot, frame), style="red" if frame.trouble else "")
    if not frame.trouble and snapshot is not None and snapshot.overview.problems:
        third.stylize("red")
    return [_cut(line, width) for line in (first, second, third)]


def _third_line(screen: Screen, snapshot: Snapshot | None, frame: Frame) -> str:
    """Return what is wrong, and since when; else what is paused."""
    if frame.trouble:
        return f"! {screen.glyphs.foreign(frame.trouble)} since {clock(frame.since)}; trying again"
    if snapshot is None:
        return ""
    overview = snapshot.overview
    if overview.problems:
        first, more = overview.problems[0], len(overview.problems) - 1
        since = "" if first.since is None else f" Since {span(max(0, overview.now - first.since))}."
        others = f"  ! {more} more (key !)" if more else ""
        return screen.glyphs.foreign(f"! {first.text}{since}{others}")
    if overview.pauses:
        first_pause, more = overview.pauses[0], len(overview.pauses) - 1
        name = f"{first_pause.scope} {first_pause.name}".strip()
        others = f"  and {more} more" if more else ""
        return screen.glyphs.foreign(f"Paused: {name}{others}")
    return "Nothing is wrong."


def _last_line(screen: Screen, width: int) -> Text:
    glyphs = screen.glyphs
    if screen.question is not None:
        text, end = glyphs.foreign(screen.question.text), " y/N "
        room = width - len(end)
        shown = text if cell_len(text) <= room else set_cell_size(text, room - 2) + "? "
        return _cut(Text(shown + end, style="bold reverse"), width)
    if screen.typed is not None:
        return _cut(Text(f"filter: {glyphs.foreign(screen.typed)}_", style="bold"), width)
    if screen.message:
        style = "bold red" if screen.is_bad else "bold"
        return _cut(Text(glyphs.foreign(screen.message), style=style), width)
    if screen.level is not None:
        keys = "↑↓ scroll  Esc back  r retry  c cancel  ? help  q quit"
        if screen.level == "job":
            keys = f"Enter traceback  {keys}"
    elif screen.jobs is not None:
        keys = "Tab state  ↑↓ row  Enter open  Esc back  f filter  s sort  r retry  c cancel  ?  q"
    else:
        keys = "Tab pane  ↑↓ row  Enter open  f filter  s sort  p pause  r retry  c cancel  ?  q"
    return _cut(Text(glyphs.own(keys), style="dim"), width)


# --- tables ----------------------------------------------------------------------------------


def _panes(screen: Screen, snapshot: Snapshot, width: int, body: int) -> list[Text]:
    tables = [screen.make_pane(pane, snapshot) for pane in PANES]
    heights = share_lines([1 + max(1, len(table.rows)) for table in tables], body)
    lines: list[Text] = []
    for pane, table, height in zip(PANES, tables, heights, strict=True):
        is_active = screen.jobs is None and pane == screen.pane
        selected = screen.selected_row(pane, table) if is_active else None
        text = screen.filter_of(pane)
        lines += _draw_table(screen, table, selected, height, width, text, is_active=is_active)
    return lines


def _jobs(screen: Screen, snapshot: Snapshot, width: int, body: int) -> list[Text]:
    assert screen.jobs is not None
    wanted, glyphs = screen.jobs, screen.glyphs
    tabs = "  ".join(f"[{tab}]" if tab == wanted.tab else tab for tab in TABS)
    title = Text(f"{wanted.subject} {glyphs.foreign(wanted.name)}", style="bold")
    lines = [title, Text(tabs)]
    if snapshot.wanted.jobs != wanted:
        return [*lines, Text("Reading the jobs.")]
    table = screen.make_jobs(snapshot)
    more = f"  The newest {len(snapshot.jobs)} jobs; there are more." * snapshot.jobs_is_more
    title.append(f"  by {table.sorted_by}{more}", style="not bold")
    selected = screen.selected_row("jobs", table)
    text = screen.filter_of("jobs")
    return [*lines, *_draw_table(screen, table, selected, body - 2, width, text, is_active=True)]


def share_lines(needs: Sequence[int], total: int) -> list[int]:
    """Divide lines between panes by what they need; each gets at least three."""
    shares = [min(need, _MIN_PANE_LINES) for need in needs]
    left = total - sum(shares)
    while left > 0 and any(share < need for share, need in zip(shares, needs, strict=True)):
        # The pane that has the smallest part of what it needs comes first.
        wanting = [n for n in range(len(needs)) if shares[n] < needs[n]]
        shares[min(wanting, key=lambda n: shares[n] / needs[n])] += 1
        left -= 1
    return shares


def _draw_table(
    screen: Screen,
    table: Table,
    selected: int | None,
    height: int,
    width: int,
    text: str,
    *,
    is_active: bool,
) -> list[Text]:
    widths = _widths(table.columns, width - 2)
    columns = list(table.columns)
    if text:
        shown = screen.glyphs.foreign(text)
        first = next(at for at, column in enumerate(columns) if not column.width)
        columns[first] = columns[first]._replace(title=f"{columns[first].title} ~{shown}")
    mark = screen.glyphs.own("─")
    heads = [
        _cell(column.title, column, size) for column, size in zip(columns, widths, strict=True)
    ]
    head = Text(
        f"{mark} " + " ".join(one for one in heads if one), style="bold" if is_active else ""
    )
    if len(table.rows) > height - 1:
        head.append(f" {len(table.rows)}", style="dim")
    lines = [_cut(head, width)]
    lines[0].stylize("underline" if is_active else "dim")
    rows = max(1, height - 1)
    if not table.rows:
        return [*lines, Text(f"  {table.empty}", style="dim")]
    first_row = 0 if selected is None or selected < rows else selected - rows + 1
    for at, row in enumerate(table.rows[first_row : first_row + rows], first_row):
        lines.append(_cut(_row(row, table.columns, widths, is_chosen=at == selected), width))
    return lines


def _row(row: Row, columns: Sequence[Column], widths: Sequence[int], *, is_chosen: bool) -> Text:
    cells = [
        _cell(text, column, size)
        for text, column, size in zip(row.cells, columns, widths, strict=True)
    ]
    line = Text(("> " if is_chosen else "  ") + " ".join(cell for cell in cells if cell))
    if style := _STYLES.get(row.state):
        line.stylize(style)
    if is_chosen:
        line.stylize("reverse")
    return line


def _widths(columns: Sequence[Column], width: int) -> list[int]:
    """Return the width of each column; the last ones are left out if there is no room."""
    fixed = [column.width for column in columns]
    flexible = fixed.index(0)
    for last in range(len(columns) - 1, -1, -1):
        used = sum(fixed) + sum(1 for size in fixed if size)
        if width - used >= 12 or last == flexible:
            break
        fixed[last] = -1 if fixed[last] else 0
        fixed = [max(0, size) for size in fixed]
    used = sum(fixed) + sum(1 for size in fixed if size)
    fixed[flexible] = max(4, width - used)
    return fixed


def _cell(text: str, column: Column, size: int) -> str:
    if not size:
        return ""
    if cell_len(text) > size and column.is_cut_left:
        while cell_len(text) > size - 1:
            text = text[1:]
        text = f"~{text}"
    if cell_len(text) > size:
        text = set_cell_size(text, size - 1) + "~"
    gap = " " * (size - cell_len(text))
    return gap + text if column.is_right else text + gap


def _cut(line: Text, width: int) -> Text:
    line.truncate(width, overflow="crop", pad=True)
    return line


def _fill(lines: list[Text], height: int, width: int) -> list[Text]:
    """Return exactly so many lines."""
    filled = [*lines[:height], *(Text("") for _ in range(height - len(lines)))]
    return [_cut(line, width) for line in filled]


assert {*SORTS} == {*PANES, "jobs"}
