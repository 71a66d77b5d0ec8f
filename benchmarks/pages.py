"""A page that figures are written into: a part of it for each place where systems meet, and one
for canvases.

A run that measures some of them replaces only their parts.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks import report
from benchmarks.plan import is_canvas
from benchmarks.runner import Results


def written(page: str, results: Results, machine: Mapping[str, str]) -> str:
    """The page with these figures in it."""
    canvases, others = results.separated(is_canvas)
    for carriers in report.SECTIONS:
        found = others.on(*carriers)
        if found.figures or found.failures:
            on = carriers[0] if len(carriers) == 1 else ""
            name = f"figures on {on}" if on else "figures"
            page = _replaced(page, name, report.markdown(found, machine, on))
    if canvases.figures or canvases.failures:
        page = _replaced(
            page, "figures of canvases", report.markdown(canvases, machine, "canvases")
        )
    return page


def _replaced(page: str, name: str, figures: str) -> str:
    """The part between its marks; one that is not there yet goes to the end."""
    first, last = f"<!-- {name} -->", f"<!-- end of {name} -->"
    part = f"{first}\n\n{figures}\n\n{last}"
    if first not in page:
        return f"{page.rstrip()}\n\n## {name[0].upper()}{name[1:]}\n\n{part}\n"
    before, _, rest = page.partition(first)
    return before + part + rest.partition(last)[2]
