"""Options of tasks that a configuration file sets, by the name of a task or a pattern."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from umbel.errors import ConfigurationError
from umbel.tasks.gates import Limit, Rate
from umbel.tasks.option_names import check_option_names
from umbel.tasks.options import TaskOptions
from umbel.tasks.policies import Retry
from umbel.tasks.task import Task

FILE_OPTIONS = (
    *("queue", "priority", "delay", "expires", "timeout", "retry", "track", "keep", "limit"),
    *("rate", "max_deaths"),
)
"""The options that a file can set. The others depend on the code of the task."""
_RETRY_PARTS = tuple(Retry().numbers())

Policy = TypeVar("Policy", Limit, Rate)


class TaskTables:
    """The tables of a file. Where two set an option of a task, the more specific one wins.

    Raises:
        ConfigurationError: an option is unknown or wrong; the text names file, table and field.
    """

    def __init__(self, source: str, tables: Mapping[str, Any]) -> None:
        self._source = source
        # The order of the file decides between equally specific patterns: sorting keeps it.
        self._tables = dict(sorted(tables.items(), key=lambda item: _specificity(item[0])))
        for pattern, table in self._tables.items():
            with self._naming(pattern):
                if not isinstance(table, dict):
                    raise ConfigurationError('give a table, as in queue = "mail"')
                _refuse_unquoted(pattern, table)
                check_option_names(table, FILE_OPTIONS, "a task in a file")
                _changed(TaskOptions(), table)

    def apply(self, task: Task[..., Any]) -> None:
        """Give a task the options that the file sets. The code's options are the default."""
        for pattern, table in self._matching(task.name):
            with self._naming(pattern):
                task.declare_options(_changed(task.declared, table))

    def origins(self, task: str) -> dict[str, str]:
        """Return the options of a task that the file sets, each with the table that sets it."""
        return {
            option: f"{self._source} {_title(pattern)}"
            for pattern, table in self._matching(task)
            for option in table
        }

    def unused(self, tasks: Collection[str]) -> list[str]:
        """Return the tables that concern none of these tasks."""
        used = {pattern for task in tasks for pattern, _ in self._matching(task)}
        return [f"{self._source} {_title(one)}" for one in self._tables if one not in used]

    def _matching(self, task: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the tables of a task, the most specific one last."""
        for pattern, table in self._tables.items():
            if re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), task, re.DOTALL):
                yield pattern, table

    @contextmanager
    def _naming(self, pattern: str) -> Iterator[None]:
        try:
            yield
        except ConfigurationError as error:
            raise ConfigurationError(f"{self._source}: {_title(pattern)} {error}") from None


def _refuse_unquoted(pattern: str, table: Mapping[str, Any]) -> None:
    """Refuse ``[tasks.mail.send]``, which is a table in a table."""
    for name, value in table.items():
        if isinstance(value, dict) and name not in FILE_OPTIONS:
            raise ConfigurationError(
                f'{name}: give the whole name of a task in quotes, as in [tasks."{pattern}.{name}"]'
            )


def _title(pattern: str) -> str:
    return f'[tasks."{pattern}"]'


def _specificity(pattern: str) -> tuple[bool, int]:
    """Return a key by which to sort: names come last, then longer patterns."""
    return "*" not in pattern, len(pattern.replace("*", ""))


def _changed(declared: TaskOptions, table: Mapping[str, Any]) -> TaskOptions:
    """Return the options with those of a table."""
    changes = dict(table)
    if "retry" in table:
        changes["retry"] = _retry(declared.retry, table["retry"])
    for option, policy in (("limit", Limit), ("rate", Rate)):
        if option in table:
            changes[option] = _policies(option, policy, table[option])
    return replace(declared, **changes)


def _retry(declared: Retry, given: Any) -> Retry:
    """Return the code's policy with the numbers of the file. Its error classes stay."""
    numbers = given if isinstance(given, dict) else {"times": given}
    check_option_names(numbers, _RETRY_PARTS, "retry")
    for name, value in numbers.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ConfigurationError(f"retry: {name}={value!r:.80}: give a number")
    return declared.with_numbers(declared.numbers() | numbers)


def _policies(option: str, policy: type[Policy], given: Any) -> list[Policy]:
    """Return the limits or rates of an option: one value or table, or a list of them."""
    return [_policy(option, policy, one) for one in (given if isinstance(given, list) else [given])]


def _policy(option: str, policy: type[Policy], given: Any) -> Policy:
    if not isinstance(given, dict):
        return policy(given)
    parameters = [*inspect.signature(policy).parameters]
    check_option_names(given, parameters, option)
    if parameters[0] not in given:
        raise ConfigurationError(f"{option}: give {parameters[0]}, too")
    return policy(**given)
