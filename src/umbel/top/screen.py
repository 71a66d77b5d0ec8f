"""What is selected, open and asked on the screen, and what each key does. It reads nothing."""

from __future__ import annotations

from typing import Literal, NamedTuple

from umbel.top.actions import Asked, Plan
from umbel.top.glyphs import Glyphs
from umbel.top.reading import TABS, JobsWanted, Snapshot, Subject, Wanted
from umbel.top.tables import PANES, SORTS, Pane, Table, make_jobs_table, make_table

Level = Literal["job", "traceback", "problems"]
_MAX_TYPED = 100
_SUBJECTS: dict[Pane, Subject] = {"queues": "queue", "workers": "worker", "tasks": "task"}
_STEPS = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -10, "page down": 10}
_ENDS = {"home": -1_000_000, "end": 1_000_000}
_VERBS: dict[str, Literal["pause", "retry", "cancel"]] = {
    "p": "pause",
    "r": "retry",
    "c": "cancel",
}


class Question(NamedTuple):
    """What an action would do, which waits for ``y``."""

    text: str
    plan: Plan


class Screen:
    """The state of the screen. ``press`` changes it."""

    def __init__(self, glyphs: Glyphs) -> None:
        self.glyphs = glyphs
        self.pane: Pane = "queues"
        self.jobs: JobsWanted | None = None
        self.job = ""
        """The id of the job that is open."""
        self.level: Level | None = None
        """The text that is open; None while tables are shown."""
        self.scroll = 0
        self.typed: str | None = None
        """The filter while it is typed."""
        self.question: Question | None = None
        self.pressed = 0
        """How many keys were pressed."""
        self.is_help = False
        self.message = ""
        self.is_bad = False
        self._sorts = dict.fromkeys(SORTS, 0)
        self._filters = dict.fromkeys(SORTS, "")
        self._selected: dict[str, tuple[str, int]] = {}

    # --- what is shown -----------------------------------------------------------------------

    @property
    def wanted(self) -> Wanted:
        """What must be read besides the overview."""
        return Wanted(self.jobs, self.job if self.level in ("job", "traceback") else "")

    @property
    def table(self) -> str:
        """The name of the table in which rows are selected."""
        return self.pane if self.jobs is None else "jobs"

    def filter_of(self, table: str) -> str:
        """Return the text that rows must contain."""
        is_typing = self.typed is not None and table == self.table
        return self.typed or "" if is_typing else self._filters[table]

    def make_pane(self, pane: Pane, snapshot: Snapshot) -> Table:
        """Return a pane of the overview."""
        sort = SORTS[pane][self._sorts[pane]]
        return make_table(pane, snapshot, sort, self.filter_of(pane), self.glyphs)

    def make_jobs(self, snapshot: Snapshot) -> Table:
        """Return the jobs that are open."""
        sort = SORTS["jobs"][self._sorts["jobs"]]
        now, text = snapshot.overview.now, self.filter_of("jobs")
        return make_jobs_table(snapshot.jobs, now, sort, text, self.glyphs)

    def selected_row(self, name: str, table: Table) -> int:
        """Return which row is selected: the same thing as before, wherever its row is now."""
        key, last = self._selected.get(name, ("", 0))
        found = next((at for at, row in enumerate(table.rows) if row.key == key), None)
        return found if found is not None else max(0, min(last, len(table.rows) - 1))

    def say(self, text: str, *, is_bad: bool = False) -> None:
        """Show a message until the next key."""
        self.message, self.is_bad = text, is_bad

    def ask(self, question: Question, pressed: int) -> None:
        """Show a question, unless keys were pressed since there were so many: none answers it."""
        if self.pressed == pressed:
            self.question = question
        else:
            self.say("A key was pressed before the question was shown: ask again.", is_bad=True)

    # --- keys --------------------------------------------------------------------------------

    def press(self, key: str, snapshot: Snapshot | None) -> Asked | Plan | Literal["quit"] | None:
        """Change the state, and return what the key asks for beyond that."""
        self.message = ""
        self.pressed += 1
        if self.question is not None:
            return self._answer(key)
        if self.typed is not None:
            self._type(key)
            return None
        if self.is_help:
            self.is_help = False
            return None
        if key == "q":
            return "quit"
        if key == "?":
            self.is_help = True
        elif key == "escape":
            self._back()
        elif key == "!":
            self.level, self.scroll = "problems", 0
        elif snapshot is not None:
            return self._press_in_view(key, snapshot)
        return None

    def _answer(self, key: str) -> Plan | None:
        assert self.question is not None
        plan, self.question = self.question.plan, None
        if key in ("y", "Y"):
            return plan
        self.say("Nothing was changed.")
        return None

    def _type(self, key: str) -> None:
        assert self.typed is not None
        if key == "enter":
            self._filters[self.table], self.typed = self.typed, None
        elif key == "escape":
            self._filters[self.table], self.typed = "", None
        elif key == "backspace":
            self.typed = self.typed[:-1]
        elif len(key) == 1:
            self.typed = (self.typed + key)[:_MAX_TYPED]

    def _press_in_view(self, key: str, snapshot: Snapshot) -> Asked | None:
        if key in _VERBS:
            return self._ask(key, snapshot)
        step = _STEPS.get(key) or _ENDS.get(key)
        if self.level is not None:
            if step:
                self.scroll = max(0, self.scroll + step)
            elif key == "enter" and self.level == "job":
                self.level, self.scroll = "traceback", 0
            return None
        if step:
            self._move(step, snapshot)
        elif key in ("tab", "back tab"):
            self._next_tab(1 if key == "tab" else -1)
        elif key == "enter":
            self._open(snapshot)
        elif key in ("f", "/"):
            self.typed = self._filters[self.table]
        elif key == "s":
            orders = SORTS[self.table]
            self._sorts[self.table] = (self._sorts[self.table] + 1) % len(orders)
            self.say(f"Sorted by {orders[self._sorts[self.table]]}.")
        return None

    def _back(self) -> None:
        if self.level == "traceback":
            self.level, self.scroll = "job", 0
        elif self.level is not None:
            self.level, self.job = None, ""
        elif self._filters[self.table]:
            self._filters[self.table] = ""
        else:
            self.jobs = None

    def _current(self, snapshot: Snapshot) -> Table:
        return (
            self.make_pane(self.pane, snapshot) if self.jobs is None else self.make_jobs(snapshot)
        )

    def _move(self, step: int, snapshot: Snapshot) -> None:
        table = self._current(snapshot)
        if not table.rows:
            return
        row = min(max(0, self.selected_row(self.table, table) + step), len(table.rows) - 1)
        self._selected[self.table] = (table.rows[row].key, row)

    def _next_tab(self, step: int) -> None:
        if self.jobs is None:
            self.pane = PANES[(PANES.index(self.pane) + step) % len(PANES)]
        else:
            tab = TABS[(TABS.index(self.jobs.tab) + step) % len(TABS)]
            self.jobs = JobsWanted(self.jobs.subject, self.jobs.name, tab)
            self._selected.pop("jobs", None)

    def _selected_key(self, snapshot: Snapshot) -> str | None:
        table = self._current(snapshot)
        return table.rows[self.selected_row(self.table, table)].key if table.rows else None

    def _open(self, snapshot: Snapshot) -> None:
        key = self._selected_key(snapshot)
        if key is None:
            return
        if self.jobs is not None:
            self.level, self.job, self.scroll = "job", key, 0
            self._selected["jobs"] = (key, 0)
            return
        subject = _SUBJECTS[self.pane]
        self.jobs = JobsWanted(subject, key, "running" if subject == "worker" else "all")
        self._filters["jobs"] = ""
        self._selected.pop("jobs", None)

    def _ask(self, key: str, snapshot: Snapshot) -> Asked | None:
        if self.level == "problems":
            return None
        verb = _VERBS[key]
        if self.level is not None or self.jobs is not None:
            job = self.job if self.level is not None else self._selected_key(snapshot)
            return Asked(verb, "job", job) if job else None
        name = self._selected_key(snapshot)
        return Asked(verb, _SUBJECTS[self.pane], name) if name is not None else None
