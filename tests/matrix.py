"""After a run: which adapter passed how many of its suites' tests, and what it cannot do."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import pytest

_LACKS = re.compile(r"no capability '(\w+)'")


def name_adapters(items: list[pytest.Item]) -> None:
    """Have each test of a conformance suite say whose it is and of which suites."""
    for item in items:
        owner = getattr(item, "cls", None)
        suites = [base.__name__ for base in getattr(owner, "__mro__", ()) if base is not owner]
        found = sorted(name.removesuffix("Suite").lower() for name in suites if _is_suite(name))
        if found:
            title = f"{owner.__module__.removeprefix('test_')}: {_words(owner.__name__)}"
            item.user_properties.append(("adapter", f"{title}|{' '.join(found)}"))


def tell(terminal: Any) -> None:
    """One line for each adapter."""
    passed: dict[str, int] = defaultdict(int)
    failed: dict[str, int] = defaultdict(int)
    lacking: dict[str, set[str]] = defaultdict(set)
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminal.stats.get(outcome, ()):
            for name, adapter in getattr(report, "user_properties", ()):
                if name == "adapter":
                    passed[adapter] += outcome == "passed"
                    failed[adapter] += outcome in ("failed", "error")
                    lacking[adapter].update(_LACKS.findall(str(report.longrepr)))
    if not passed:
        return
    terminal.write_sep("-", "adapters that ran their suites")
    for adapter in sorted(passed):
        title, _, suites = adapter.partition("|")
        wrong = f", {failed[adapter]} FAILED" if failed[adapter] else ""
        without = f"; cannot: {', '.join(sorted(lacking[adapter]))}" if lacking[adapter] else ""
        terminal.write_line(f"{title:42} {passed[adapter]:4} passed{wrong} ({suites}{without})")


def _is_suite(name: str) -> bool:
    return name.endswith("Suite")


def _words(name: str) -> str:
    """``TestNatsAndPostgres`` in words."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", name.removeprefix("Test")).lower()
