"""The gates that a job passes before it runs: limits, rates, pools. The store keeps them."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeAlias

from umbel.errors import ConfigurationError
from umbel.messages import POOL_PREFIX, TOKEN_SEPARATOR, WORKER_RULE_PREFIX, Rule, not_finite
from umbel.tasks.parameters import Parameters
from umbel.tasks.policies import storable_name

_MAX_COUNT = 1_000_000_000
_MAX_TOKEN_LENGTH = 128
_RATE = re.compile(r"\s*(\d{1,9})\s*/\s*(\d{0,9})\s*([a-z]+)\s*")
_UNITS = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}

Token: TypeAlias = "str | Callable[..., object]"
Per = Literal["cluster", "worker"]
_POOL_RANK, _RATE_RANK = 2, 4
Check: TypeAlias = "Callable[[str], object | Awaitable[object]]"


class Limit:
    """At most so many runs at once: in the cluster, or in each worker.

    ``Limit(5)`` counts all runs of the task; ``Limit(1, token="user_id")`` those with the same
    value of an argument, or of a function of all arguments. The number may also come from a
    function that is called every few seconds, kept between ``low`` and ``high``. With 0 nothing
    starts: jobs wait, or with ``zero="reject"`` are buried.
    """

    __slots__ = ("capacity", "high", "low", "per", "token", "zero")

    def __init__(
        self,
        capacity: int | Callable[[], int],
        *,
        token: Token | None = None,
        per: Per = "cluster",
        low: int = 0,
        high: int = _MAX_COUNT,
        zero: Literal["wait", "reject"] = "wait",
    ) -> None:
        for name, value in (("limit", capacity), ("low", low), ("high", high)):
            if not (name == "limit" and callable(value)) and not _is_count(value):
                raise ConfigurationError(
                    f"{name}={value!r:.80}: give a whole number, 0 to {_MAX_COUNT}"
                )
        if low > high:
            raise ConfigurationError(f"low={low}, high={high}: low must not be above high")
        if zero not in ("wait", "reject"):
            raise ConfigurationError(f'zero={zero!r:.80}: give "wait" or "reject"')
        _check_scope(token, per)
        self.capacity = capacity
        self.token = token
        self.per = per
        self.low = low
        self.high = high
        self.zero = zero

    def current_capacity(self) -> int | None:
        """Return the capacity now; None if its function raises."""
        if not callable(self.capacity):
            return self.capacity
        try:
            return max(self.low, min(self.high, int(self.capacity())))
        except Exception:  # noqa: BLE001 - the function is user code
            return None

    def __repr__(self) -> str:
        return f"Limit({self.capacity!r}, token={self.token!r}, per={self.per!r})"


class Rate:
    """At most so many starts in a time: ``Rate("200/m")``, ``Rate("10/s", token="host")``.

    They are spread evenly over the period; ``burst`` may start at the same moment.
    """

    __slots__ = ("burst", "count", "per", "period", "token")

    def __init__(
        self, rate: str, *, token: Token | None = None, per: Per = "cluster", burst: int = 1
    ) -> None:
        found = _RATE.fullmatch(rate) if isinstance(rate, str) else None
        unit = _UNITS.get(found[3]) if found else None
        count, number = (int(found[1]), int(found[2] or 1)) if found else (0, 0)
        if unit is None or count < 1 or number < 1:
            raise ConfigurationError(
                f"rate={rate!r:.80}: give how many in which time,"
                ' as "10/s", "200/m", "500/h", "1/30s"'
            )
        if not _is_count(burst) or burst < 1:
            raise ConfigurationError(f"burst={burst!r:.80}: give how many may start together")
        _check_scope(token, per)
        self.count = count
        self.period = number * unit
        self.token = token
        self.per = per
        self.burst = burst

    def __repr__(self) -> str:
        return f"Rate('{self.count}/{self.period:g}s', token={self.token!r}, per={self.per!r})"


class Pool:
    """Named external resources, each used by one job at a time. Made by ``app.pool``."""

    __slots__ = ("check", "members", "name", "ttl")

    def __init__(
        self,
        name: str,
        members: Sequence[str] | Mapping[str, Mapping[str, Any]] = (),
        *,
        ttl: float | None = None,
        check: Check | None = None,
        choose: str = "least-recently-used",
    ) -> None:
        if not storable_name(name) or TOKEN_SEPARATOR in name or len(name) > 200:
            raise ConfigurationError(f"pool={name!r:.80}: give a name without {TOKEN_SEPARATOR}")
        if isinstance(members, str):
            raise ConfigurationError(f"members={members!r:.80}: give a list of names")
        if len({*members}) < len(members):
            twice = next(one for one in members if [*members].count(one) > 1)
            raise ConfigurationError(f"members: {twice!r:.80} is listed twice")
        named = members if isinstance(members, Mapping) else {one: {} for one in members}
        for one, data in named.items():
            if not storable_name(one) or not isinstance(data, Mapping):
                raise ConfigurationError(f"members: {one!r:.80}: give names, or names with data")
            if (found := not_finite(dict(data))) is not None:
                raise ConfigurationError(f"members: {found.within(one)}; give None or a string")
        if ttl is not None and not (isinstance(ttl, int | float) and 0 < ttl < math.inf):
            raise ConfigurationError(f"ttl={ttl!r:.80}: give seconds above 0")
        if check is not None and not callable(check):
            raise ConfigurationError(f"check={check!r:.80}: give a function of a member's name")
        if choose != "least-recently-used":
            raise ConfigurationError(f'choose={choose!r:.80}: give "least-recently-used"')
        self.name = name
        self.members = {one: dict(data) for one, data in named.items()}
        self.ttl = ttl
        self.check = check

    @property
    def rule(self) -> Rule:
        """The rule of its gate."""
        return Rule(name=f"{POOL_PREFIX}{self.name}", kind="pool")

    def __repr__(self) -> str:
        return f"Pool({self.name!r}, {[*self.members]!r})"


class _Ranked(NamedTuple):
    rank: int
    name: str
    token: Token | None = None


_rank = attrgetter("rank")


class GateSet:
    """The gates of one task, or of one queue: their keys for a call, and their rules.

    Gates with a token come first: a job that waits at a limit without a token then holds its
    token's slot, so that no token fills that waiting list. Pools are sorted by name, so that two
    tasks that need the same two pools take them in the same order. Rates come last, so that no job
    uses up a rate while it waits for another gate; the very last are rates without a burst, which
    determine when a job starts. If a task has a rate, its limits are ignored.
    """

    def __init__(
        self,
        owner: str,
        limits: Sequence[Limit] = (),
        rates: Sequence[Rate] = (),
        pools: Sequence[Pool] = (),
    ) -> None:
        self.pools = sorted(pools, key=lambda pool: pool.name)
        self.owner = owner
        self.ignores_limits = bool(limits and rates)
        used = () if rates else limits
        self.limits = _named_limits(owner, [one for one in used if one.per == "cluster"])
        paced = self.rates = _named_rates(owner, [one for one in rates if one.per == "cluster"])
        self._worker_limits = _named_limits(owner, [one for one in used if one.per == "worker"])
        self._worker_rates = _named_rates(owner, [one for one in rates if one.per == "worker"])
        if len({pool.name for pool in pools}) < len(pools):
            raise ConfigurationError(f"pool of {owner}: a pool is listed twice")
        self._gates = sorted(
            [
                *(_Ranked(one.token is None, name, one.token) for name, one in self.limits.items()),
                *(_Ranked(_POOL_RANK, pool.rule.name) for pool in self.pools),
                *(
                    _Ranked(_RATE_RANK - (many[0].burst > 1), n, many[0].token)
                    for n, many in paced.items()
                ),
            ],
            key=_rank,
        )
        if self._gates and TOKEN_SEPARATOR in owner:
            raise ConfigurationError(f"{owner!r}: a name with {TOKEN_SEPARATOR} cannot have gates")

    def __bool__(self) -> bool:
        return bool(self._gates)

    def __add__(self, other: GateSet) -> GateSet:
        """Return the gates of both, in one order."""
        if not other or not self:
            return self or other
        both = GateSet("")
        both.pools = [*self.pools, *other.pools]
        both.limits = self.limits | other.limits
        both.rates = self.rates | other.rates
        both._gates = sorted([*self._gates, *other._gates], key=_rank)
        return both

    @property
    def has_tokens(self) -> bool:
        """Whether a key depends on the arguments of a call."""
        return any(token is not None for _, _, token in self._gates)

    def keys(
        self, parameters: Parameters | None, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[str, ...]:
        """Return the gates that a call has to pass, in order.

        Raises:
            Exception: what a token's function raises, or BadArguments: there is no such argument.
        """
        return tuple(
            name
            if token is None
            else f"{name}{TOKEN_SEPARATOR}{token_of(token, parameters, args, kwargs)}"
            for _, name, token in self._gates
        )

    def rules(self) -> list[Rule]:
        """Return the rules now. A limit whose function raises is left out: it stays unchanged."""
        limits, rates = self.limits | self._worker_limits, self.rates | self._worker_rates
        return [
            *(
                Rule(name=name, capacity=number, rejects=one.zero == "reject")
                for name, one in limits.items()
                if (number := one.current_capacity()) is not None
            ),
            *(pool.rule for pool in self.pools),
            *(
                Rule(
                    name=name,
                    kind="rate",
                    rates=tuple((one.count, one.period) for one in several),
                    burst=several[0].burst,
                )
                for name, several in rates.items()
            ),
        ]


def as_limits(given: Any) -> tuple[Limit, ...]:
    """Return the limits of a ``limit=`` option: a number, a Limit, or several."""
    return tuple(one if isinstance(one, Limit) else Limit(one) for one in _as_tuple(given))


def as_rates(given: Any) -> tuple[Rate, ...]:
    """Return the rates of a ``rate=`` option: a text, a Rate, or several."""
    return tuple(one if isinstance(one, Rate) else Rate(one) for one in _as_tuple(given))


def as_pools(given: Any) -> tuple[Pool, ...]:
    """Return the pools of a ``pool=`` option: a Pool, or several."""
    pools = _as_tuple(given)
    for one in pools:
        if not isinstance(one, Pool):
            raise ConfigurationError(f"pool={one!r:.80}: give what app.pool(...) returned")
    return pools


def _as_tuple(given: Any) -> tuple[Any, ...]:
    if given is None:
        return ()
    return tuple(given) if isinstance(given, list | tuple) else (given,)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT


def _check_scope(token: Token | None, per: str) -> None:
    if per not in ("cluster", "worker"):
        raise ConfigurationError(f'per={per!r:.80}: give "cluster" or "worker"')
    if token is not None and not callable(token) and not storable_name(token):
        raise ConfigurationError(f"token={token!r:.80}: give an argument's name or a function")


def _named_limits(owner: str, limits: Sequence[Limit]) -> dict[str, Limit]:
    """Return limits by the names of their rules. Raise ConfigurationError for equal names."""
    named = {_rule_name("limit", owner, one): one for one in limits}
    if len(named) < len(limits):
        raise ConfigurationError(f"limit of {owner}: two limits count the same; give one")
    return named


def _named_rates(owner: str, rates: Sequence[Rate]) -> dict[str, list[Rate]]:
    """Return rates by the names of their rules. Several rates may share a rule."""
    named: dict[str, list[Rate]] = {}
    for rate in rates:
        name = _rule_name("rate", owner, rate)
        name += f"/burst-{rate.burst}" if rate.burst > 1 else ""
        named.setdefault(name, []).append(rate)
    return named


def _rule_name(kind: str, owner: str, counted: Limit | Rate) -> str:
    kind, token = f"{WORKER_RULE_PREFIX if counted.per == 'worker' else ''}{kind}", counted.token
    if token is None:
        return f"{kind}:{owner}"
    called = token if isinstance(token, str) else getattr(token, "__name__", "token")
    return f"{kind}:{owner}/{called.strip('<>')}"


def token_of(
    token: Token | None,
    parameters: Parameters | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> str:
    """Return the token of a call, empty if there is none. Raise what its function raises."""
    if token is None:
        return ""
    if callable(token):
        value = token(*args, **kwargs)
    elif parameters is not None:
        value = parameters.argument(token, args, kwargs)
    else:
        value = kwargs[token]
    text = str(value)
    if storable_name(text) and len(text) <= _MAX_TOKEN_LENGTH:
        return text
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
