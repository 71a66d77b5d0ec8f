"""The arguments of scripts that add publications, and what they answer if they cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from umbel.backends.joins import check_growth, check_publication
from umbel.backends.redis.job_rows import Row, job_row
from umbel.backends.redis.values import text
from umbel.errors import ConfigurationError, UmbelError, UnknownJob
from umbel.messages import Growth, Publication


def publication_row(publication: Publication) -> Row:
    """Return a publication as publications.lua describes it.

    Raises:
        ConfigurationError: it contradicts itself or is too large.
    """
    check_publication(publication)
    joins = [(one.id, one.group, one.fire, one.held) for one in publication.joins]
    edges = [(one.job, one.join, one.position) for one in publication.edges]
    waits = [(one.job, one.join) for one in publication.waits]
    rows = [job_row(one) for one in publication.envelopes]
    return [_flat(joins), rows, _flat(edges), _flat(waits)]


def growth_row(growth: Growth) -> Row:
    """Return a growth as settling.lua describes it. Raises ConfigurationError."""
    check_growth(growth)
    return [publication_row(growth.publication), growth.replacement]


def publication_error(answer: Sequence[Any]) -> UmbelError | None:
    """Return the error that the answer of ``add`` or ``settle`` names; None if there is none."""
    if not answer or not isinstance(answer[0], bytes):
        return None
    problem, name = text(answer[0]), text(answer[1])
    if problem == "job":
        return UnknownJob(f"edges: there is no job {name}: never published here, or pruned")
    if problem == "position":
        return ConfigurationError(f"edges: join {name!r} has another part at that position")
    return ConfigurationError(
        f"join {name!r} of an edge or wait: it does not exist, or is complete; add it in the same"
        " publication, or hold it until it is sealed"
    )


def _flat(rows: Sequence[Sequence[Any]]) -> list[Any]:
    return [part for row in rows for part in row]
