"""Tasks with every kind of annotation a user may write."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    Optional,
    TypedDict,
    TypeVar,
    Union,
)
from uuid import UUID

import msgspec
import pydantic

from umbel.tasks.parameters import Parameters

if TYPE_CHECKING:
    from nowhere import Missing  # type: ignore[import-not-found]

T = TypeVar("T")
UserId = NewType("UserId", int)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Bits(enum.Flag):
    ONE = 1
    TWO = 2


@dataclasses.dataclass
class Point:
    x: int
    label: str = ""
    within: Point | None = None

    def __post_init__(self) -> None:
        if self.x == 13:
            raise KeyError("thirteen")


class Box(msgspec.Struct, Generic[T]):
    item: T
    more: dict[str, T] = {}


class Tree(msgspec.Struct):
    value: int
    left: Tree | None = None
    right: Tree | None = None


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


class User(pydantic.BaseModel):
    name: str
    born: date | None = None
    friends: list[User] = []

    @pydantic.field_validator("name")
    @classmethod
    def _not_empty(cls, name: str) -> str:
        if not name:
            raise ValueError(f"give a name, not {name!r}")
        return name


class Place(NamedTuple):
    north: float
    east: float


class Options(TypedDict, total=False):
    depth: int
    names: list[str]


class Odd:
    """A class with no wire form at all."""


class Touchy:
    """A model whose own check fails in its own way."""

    @classmethod
    def model_validate(cls, value: Any) -> Touchy:
        raise LookupError(value)


def plain(a: int, b: str = "x", *, c: bool = False, d: float = 0.0, e: bytes = b"") -> None: ...
def moments(a: datetime, b: date, c: time, d: timedelta) -> None: ...
def exact(a: UUID, b: Decimal, c: Path, d: Annotated[int, msgspec.Meta(ge=0)]) -> None: ...
def choices(a: Colour, b: Level, c: Bits, d: Literal["x", 1, None]) -> None: ...
def models(a: Point, b: User, c: Tree, d: Box[int], e: Place, f: Options) -> None: ...
def unions(a: int | str | None, b: Cat | Dog, c: User | int, d: Point | None) -> None: ...
def old_unions(a: Optional[User], b: Union[int, list[int]], c: Union[Path, Touchy]) -> None: ...  # noqa: UP007, UP045
def containers(a: list[Point], b: dict[int, UUID], c: set[str], d: tuple[int, ...]) -> None: ...
def abstract(a: Sequence[int], b: Mapping[str, User], c: frozenset[date], d: object) -> None: ...
def generic(a: Box[list[Box[int]]], b: UserId, c: T, d: type, e: None) -> None: ...
def odd(a: Missing, b: Odd, c: Touchy, d: Any, e: 5) -> None: ...  # type: ignore[valid-type]
def loose(a, b=None, *rest, **extra): ...  # type: ignore[no-untyped-def]
def mixed(a: int, /, b: datetime, *rest: Decimal, flag: bool = False, **extra: date) -> None: ...
def nothing() -> None: ...


TASKS = (
    *(plain, moments, exact, choices, models, unions, old_unions, containers),
    *(abstract, generic, odd, loose, mixed, nothing),
)
PARAMETERS = tuple(Parameters(task, f"zoo.{task.__name__}") for task in TASKS)
