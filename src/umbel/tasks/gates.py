"""What a task has to pass before it runs: limits, rates, pools. The store keeps them."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from umbel.errors import ConfigurationError
from umbel.messages import POOL, TOKEN, Rule, not_finite
from umbel.tasks.parameters import Parameters
from umbel.tasks.policies import storable_name

_MOST = 1_000_000_000
_LONGEST_TOKEN = 128
_RATE = re.compile(r"\s*(\d{1,9})\s*/\s*(\d{0,9})\s*([a-z]+)\s*")
_UNITS = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}

Token: TypeAlias = "str | Callable[..., object]"
Per = Literal["cluster", "worker"]
_POOLS, _RATES = 2, 4
Check: TypeAlias = "Callable[[str], object | Awaitable[object]]"


class Limit:
    """At most so many at once: in the cluster, or in each worker.

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
        high: int = _MOST,
        zero: Literal["wait", "reject"] = "wait",
    ) -> None:
        for name, value in (("limit", capacity), ("low", low), ("high", high)):
            if not (name == "limit" and callable(value)) and not _is_count(value):
                raise ConfigurationError(f"{name}={value!r:.80}: give a whole number, 0 to {_MOST}")
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

    def now(self) -> int | None:
        """What it allows at this moment; None when its function does not say."""
        if not callable(self.capacity):
            return self.capacity
        try:
            return max(self.low, min(self.high, int(self.capacity())))
        except Exception:  # noqa: BLE001 - a function of the user's
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
    """Named members outside, each used by one job at a time. Made by ``app.pool``."""

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
        if not storable_name(name) or TOKEN in name or len(name) > 200:
            raise ConfigurationError(f"pool={name!r:.80}: give a name without {TOKEN}")
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
        """What its gate goes by."""
        return Rule(name=f"{POOL}{self.name}", kind="pool")

    def __repr__(self) -> str:
        return f"Pool({self.name!r}, {[*self.members]!r})"


class _Step(NamedTuple):
    place: int
    name: str
    token: Token | None = None

    def rank(self) -> int:
        return self.place


class Gating:
    """The gates of one task, or of one queue: from a call to their keys, and their rules.

    Those of a token come first: what waits at a limit for all then holds its token's slot, so that
    no token fills that line. Pools are sorted by name: two tasks that need the same two take them
    in one order. Rates are last, so that nothing that still waits has used them up; the very last
    are those without a burst, which say when a job starts. Where there is a rate, limits of the
    same task do not count.
    """

    def __init__(
        self,
        owner: str,
        limits: Sequence[Limit] = (),
        rates: Sequence[Rate] = (),
        pools: Sequence[Pool] = (),
    ) -> None:
        self.pools = sorted(pools, key=lambda pool: pool.name)
        wide = [one for one in limits if one.per == "cluster"] if not rates else []
        self.limits = {_named("limit", owner, one.token): one for one in wide}
        paced: dict[str, list[Rate]] = {}
        for rate in rates:
            if rate.per == "cluster":
                name = _named("rate", owner, rate.token)
                name += f"/burst-{rate.burst}" if rate.burst > 1 else ""
                paced.setdefault(name, []).append(rate)
        self.rates = paced
        if len(self.limits) < len(wide):
            raise ConfigurationError(f"limit of {owner}: two limits count the same; give one")
        if len({pool.name for pool in pools}) < len(pools):
            raise ConfigurationError(f"pool of {owner}: a pool is listed twice")
        self._steps = sorted(
            [
                *(_Step(one.token is None, name, one.token) for name, one in self.limits.items()),
                *(_Step(_POOLS, pool.rule.name) for pool in self.pools),
                *(
                    _Step(_RATES - (many[0].burst > 1), n, many[0].token)
                    for n, many in paced.items()
                ),
            ],
            key=_Step.rank,
        )
        if self._steps and TOKEN in owner:
            raise ConfigurationError(f"{owner!r}: a name with {TOKEN} cannot have gates")

    def __bool__(self) -> bool:
        return bool(self._steps)

    def __add__(self, other: Gating) -> Gating:
        """Both, in one order."""
        if not other or not self:
            return self or other
        both = Gating("")
        both.pools = [*self.pools, *other.pools]
        both.limits = self.limits | other.limits
        both.rates = self.rates | other.rates
        both._steps = sorted([*self._steps, *other._steps], key=_Step.rank)
        return both

    def keys(
        self, parameters: Parameters | None, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[str, ...]:
        """What a call has to pass, in order.

        Raises:
            Exception: what a token's function raises, or BadArguments: there is no such argument.
        """
        return tuple(
            name if token is None else f"{name}{TOKEN}{token_of(token, parameters, args, kwargs)}"
            for _, name, token in self._steps
        )

    def rules(self) -> list[Rule]:
        """What they go by now. A limit whose function fails is left out: it stays as it was."""
        return [
            *(
                Rule(name=name, capacity=number, rejects=one.zero == "reject")
                for name, one in self.limits.items()
                if (number := one.now()) is not None
            ),
            *(pool.rule for pool in self.pools),
            *(
                Rule(
                    name=name,
                    kind="rate",
                    rates=tuple((one.count, one.period) for one in several),
                    burst=several[0].burst,
                )
                for name, several in self.rates.items()
            ),
        ]


def as_limits(given: Any) -> tuple[Limit, ...]:
    """Limits from what ``limit=`` may be: a number, a Limit, or several."""
    return tuple(one if isinstance(one, Limit) else Limit(one) for one in _several(given))


def as_rates(given: Any) -> tuple[Rate, ...]:
    """Rates from what ``rate=`` may be: a text, a Rate, or several."""
    return tuple(one if isinstance(one, Rate) else Rate(one) for one in _several(given))


def as_pools(given: Any) -> tuple[Pool, ...]:
    """Pools from what ``pool=`` may be: a Pool, or several."""
    pools = _several(given)
    for one in pools:
        if not isinstance(one, Pool):
            raise ConfigurationError(f"pool={one!r:.80}: give what app.pool(...) returned")
    return pools


def _several(given: Any) -> tuple[Any, ...]:
    if given is None:
        return ()
    return tuple(given) if isinstance(given, list | tuple) else (given,)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST


def _check_scope(token: Token | None, per: str) -> None:
    if per not in ("cluster", "worker"):
        raise ConfigurationError(f'per={per!r:.80}: give "cluster" or "worker"')
    if token is not None and not callable(token) and not storable_name(token):
        raise ConfigurationError(f"token={token!r:.80}: give an argument's name or a function")


def _named(kind: str, owner: str, token: Token | None) -> str:
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
    """The token of a call, as text; empty where there is none. Raises what its function raises."""
    if token is None:
        return ""
    if callable(token):
        value = token(*args, **kwargs)
    elif parameters is not None:
        value = parameters.argument(token, args, kwargs)
    else:
        value = kwargs[token]
    text = str(value)
    if storable_name(text) and len(text) <= _LONGEST_TOKEN:
        return text
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
