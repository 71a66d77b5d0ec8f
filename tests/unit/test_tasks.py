"""Tasks: declared with their own types, called here or published through an outlet."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from umbel import Umbel
from umbel.errors import BadArguments, ConfigurationError, UnknownTask
from umbel.tasks import Handle, Registry, Signature, Unique, task
from umbel.tasks.task import CPUTask, IOTask


@task
def add(a: int, b: int = 2) -> int:
    return a + b


@task(queue="mail", priority=3, unique=True)
async def send(user: int, *, subject: str = "") -> str:
    return f"{user} {subject}"


class FakeOutlet:
    """Keeps what goes out."""

    def __init__(self) -> None:
        self.sent: list[Signature[Any]] = []

    def send(self, signatures: Sequence[Signature[Any]]) -> list[Handle[Any]]:
        self.sent += signatures
        return [Handle(f"job-{len(self.sent)}", None) for _ in signatures]  # type: ignore[arg-type]

    async def asend(self, signatures: Sequence[Signature[Any]]) -> list[Handle[Any]]:
        return self.send(signatures)


@pytest.fixture
def outlet() -> Iterator[FakeOutlet]:
    made = FakeOutlet()
    for one in (add, send):
        one.bind(made)
    yield made
    for one in (add, send):
        one._sender = None


def test_a_task_is_still_its_function() -> None:
    assert add(1, 2) == 3
    assert asyncio.run(send(7, subject="hi")) == "7 hi"
    assert add.__name__ == "add"
    assert add.__doc__ == add.function.__doc__


def test_the_kind_of_a_task_follows_from_its_function() -> None:
    assert isinstance(add, CPUTask)
    assert isinstance(send, IOTask)
    assert (add.kind, send.kind) == ("cpu", "io")


def test_a_task_is_named_after_its_module_and_function() -> None:
    assert add.name == f"{__name__}.add"
    assert task(name="short")(lambda: None).name == "short"


def test_a_task_of_a_script_is_named_as_a_worker_will_import_it() -> None:
    def function() -> None: ...

    function.__module__ = "__main__"
    assert not task(function).name.startswith("__main__")


def test_delay_publishes_the_call_and_gives_its_handle(outlet: FakeOutlet) -> None:
    handle = add.delay(1, b=5)
    assert handle.id == "job-1"
    (sent,) = outlet.sent
    assert (sent.task.name, sent.args, sent.kwargs) == (add.name, (1,), {"b": 5})


def test_adelay_publishes_from_async_code(outlet: FakeOutlet) -> None:
    handle = asyncio.run(send.adelay(7, subject="hi"))
    assert handle.id == "job-1"
    assert outlet.sent[0].kwargs == {"subject": "hi"}


def test_options_hold_for_the_copy_only(outlet: FakeOutlet) -> None:
    urgent = add.options(priority=9, delay=30).options(queue="fast")
    urgent.delay(1)
    add.delay(1)
    first, second = (sent.call_options for sent in outlet.sent)
    assert (first.priority, first.delay, first.queue) == (9, 30, "fast")
    assert (second.priority, second.delay, second.queue) == (None, None, None)
    assert (urgent.name, urgent(1, 1)) == (add.name, 2)


def test_a_wrong_option_of_a_call_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"^priority="):
        add.options(priority="high")  # type: ignore[typeddict-item]
    with pytest.raises(ConfigurationError, match=r"^prio: not an option"):
        add.options(prio=3)  # type: ignore[call-arg]


def test_a_task_without_an_app_says_how_to_get_one() -> None:
    with pytest.raises(ConfigurationError, match=r"app\.include"):
        add.delay(1)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1, 2, 3), {}), ((1,), {"c": 1}), (("x",), {}), ((1,), {"b": "x"})],
)
def test_a_call_that_does_not_fit_is_refused_before_it_is_published(
    outlet: FakeOutlet, args: Any, kwargs: Any
) -> None:
    for call in (add.delay, add.si):
        with pytest.raises(BadArguments, match="add"):
            call(*args, **kwargs)
    assert outlet.sent == []


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((1, 2, 3), {}), ((1,), {"c": 1}), (("x",), {}), ((1,), {"b": "x"})],
)
def test_a_signature_is_refused_that_fits_neither_alone_nor_after_another_node(
    args: Any, kwargs: Any
) -> None:
    with pytest.raises(BadArguments, match="add"):
        add.s(*args, **kwargs)


def test_a_signature_may_leave_its_first_argument_to_the_node_before_it() -> None:
    app = Umbel("sqlite:///:memory:")
    signature = app.task(name="add")(add.function).s()
    with pytest.raises(BadArguments, match="missing a required argument: 'a'"):
        signature.delay()
    app.close()


def test_a_signature_is_a_call_not_made_yet(outlet: FakeOutlet) -> None:
    signature = add.options(priority=4).s(1, 2)
    assert outlet.sent == []
    signature.delay()
    assert outlet.sent == [signature]
    assert (signature.call_options.priority, signature.immutable) == (4, False)
    assert add.si(1).immutable


def test_the_unique_key_comes_from_call_task_or_arguments() -> None:
    @task(unique=lambda user, **_: f"user-{user}")
    def per_user(user: int, note: str = "") -> None: ...

    def key(signature: Signature[Any]) -> str | None:
        chosen = signature.unique()
        return None if chosen is None else chosen.key

    assert key(send.s(1)) == send.name
    assert key(send.options(unique="mine").s(1)) == "mine"
    assert key(send.options(unique=Unique("its", on_conflict="return")).s(1)) == "its"
    assert key(per_user.s(7, note="x")) == "user-7"
    assert key(add.s(1)) is None


def _generator() -> Iterator[int]:
    yield 1


async def _async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("function", [5, "x", int, _generator, _async_generator])
def test_what_cannot_be_a_task_is_refused(function: Any) -> None:
    with pytest.raises(ConfigurationError):
        task(function)


def test_a_callable_without_a_name_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigurationError, match="name"):
        task(functools.partial(max, 1))


def test_a_trio_loop_is_for_coroutines() -> None:
    with pytest.raises(ConfigurationError, match="trio"):
        task(loop="trio")(lambda: None)


def test_a_registry_finds_tasks_by_name_and_lists_their_queues() -> None:
    registry = Registry()
    registry.add(add)
    registry.add(send)
    assert registry.find(add.name) is add
    assert registry.get("nothing") is None
    assert (len(registry), set(registry)) == (2, {add, send})
    assert registry.queues() == ["default", "mail"]
    assert Registry().queues() == ["default"]


def test_an_unknown_task_is_reported_with_the_nearest_names() -> None:
    registry = Registry()
    with pytest.raises(UnknownTask, match="import"):
        registry.find("x")
    registry.add(add)
    with pytest.raises(UnknownTask, match=f"did you mean {add.name}"):
        registry.find(add.name[:-1])


def test_two_tasks_of_one_name_are_refused_and_the_same_again_is_fine() -> None:
    registry = Registry()
    registry.add(add)
    registry.add(task(add.function))
    assert len(registry) == 1
    with pytest.raises(ConfigurationError, match=r"name=\.\.\."):
        registry.add(task(name=add.name)(send.function))
