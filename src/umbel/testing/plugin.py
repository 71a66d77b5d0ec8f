"""The pytest plugin with the fixture ``umbel_jobs``. pytest imports it in every run."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from umbel.app import Umbel
    from umbel.testing.memory import InMemoryJobs

_REMEDY = """\
Say which application is tested, in pyproject.toml:

    [tool.pytest.ini_options]
    umbel_app = "module:app"

or in conftest.py, with a fixture umbel_app that returns it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("umbel_app", "the Umbel application under test, as module:app", default="")


@pytest.fixture
def umbel_app(pytestconfig: pytest.Config) -> Umbel:
    """The application under test: the ini option umbel_app, or UMBEL_APP."""
    from umbel.app import Umbel

    address = pytestconfig.getini("umbel_app") or os.environ.get("UMBEL_APP", "")
    if not address:
        pytest.fail(f"umbel_jobs: no application is given. {_REMEDY}", pytrace=False)
    try:
        app = pkgutil.resolve_name(address if ":" in address else f"{address}:app")
    except (AttributeError, ModuleNotFoundError, ValueError) as error:
        pytest.fail(f"umbel_app={address!r}: {error}. {_REMEDY}", pytrace=False)
    if not isinstance(app, Umbel):
        kind = type(app).__name__
        pytest.fail(f"umbel_app={address!r} is of type {kind}, not Umbel. {_REMEDY}", pytrace=False)
    return app


@pytest.fixture
def umbel_jobs(umbel_app: Umbel) -> Iterator[InMemoryJobs]:
    """The jobs of the application, on a private database in memory: drain, assert_published."""
    from umbel.testing.memory import in_memory

    with in_memory(umbel_app) as jobs:
        yield jobs
