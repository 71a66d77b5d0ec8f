"""``app.include`` takes modules, packages and their names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from umbel import Umbel
from umbel.errors import ConfigurationError

FREE_TASK = "from umbel import task\n\n@task\ndef {name}() -> None: ...\n"


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Umbel:
    """An application beside the package ``shop``, which has tasks on three levels."""
    for path, name in {
        "shop/__init__.py": "root",
        "shop/tasks.py": "pay",
        "shop/mail/__init__.py": "receipt",
        "shop/mail/bulk.py": "newsletter",
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(FREE_TASK.format(name=name))
    (tmp_path / "shop/__main__.py").write_text("raise SystemExit('this ran')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        monkeypatch.delitem(sys.modules, name)
    return Umbel("sqlite:///:memory:")


def names(app: Umbel) -> list[str]:
    return sorted(task.name for task in app.registry)


def test_a_module_is_included_by_its_name(app: Umbel) -> None:
    app.include("shop.tasks")
    assert names(app) == ["shop.tasks.pay"]


def test_all_modules_of_a_package_are_imported_and_included_but_not_run(app: Umbel) -> None:
    app.include("shop")
    expected = ["shop.mail.bulk.newsletter", "shop.mail.receipt", "shop.root", "shop.tasks.pay"]
    assert names(app) == expected


def test_a_package_is_included_as_an_object_too(app: Umbel) -> None:
    import shop.mail  # type: ignore[import-not-found]

    app.include(shop.mail)
    assert names(app) == ["shop.mail.bulk.newsletter", "shop.mail.receipt"]


@pytest.mark.parametrize("name", ["hello", "shop.taks", "shop.tasks.pay"])
def test_a_module_that_does_not_exist_is_named_with_the_remedy(app: Umbel, name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"no module '{name}'.*check the name"):
        app.include(name)


@pytest.mark.parametrize("given", ["", ".tasks", "shop/tasks.py", 5, None])
def test_what_is_no_name_of_a_module_is_refused(app: Umbel, given: Any) -> None:
    with pytest.raises(ConfigurationError, match="give a module or its name"):
        app.include(given)


def test_an_import_that_fails_inside_the_module_is_not_taken_for_the_module(
    app: Umbel, tmp_path: Path
) -> None:
    (tmp_path / "shop/broken.py").write_text("import not_installed_anywhere\n")
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        app.include("shop.broken")
