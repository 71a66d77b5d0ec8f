"""Parts of the dashboard without a server: limits, masks, live views, and numbers in forms."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import Any

import pytest

from umbel import State, Umbel
from umbel.clock import SystemClock
from umbel.control import User
from umbel.dashboard import DashboardOptions
from umbel.dashboard.action_requests import ActionRequest
from umbel.dashboard.live import LiveViews, Update, pause_seconds
from umbel.dashboard.login_tries import LoginTries, TooManyTries
from umbel.dashboard.read_limit import ReadLimit, TooBusy
from umbel.dashboard.security import local_path
from umbel.dashboard.visibility import MASKED, Visibility, parameter_name
from umbel.errors import ConfigurationError, Unavailable
from umbel.messages import Body, BodyCodec, Record
from umbel.telemetry import Telemetry
from umbel.testing import FakeClock

SECRET = "hunter2"


# --- logins ----------------------------------------------------------------------------------


def is_let_in(tries: LoginTries, name: str, address: str) -> bool:
    try:
        tries.count(name, address)
    except TooManyTries:
        return False
    return True


def test_tries_from_many_addresses_do_not_lock_a_user_out_elsewhere() -> None:
    tries = LoginTries(FakeClock())
    for number in range(100):
        for _ in range(6):
            is_let_in(tries, "admin", f"203.0.113.{number}")
    assert is_let_in(tries, "admin", "198.51.100.1")


def test_one_address_cannot_try_many_names_or_one_name_often() -> None:
    clock = FakeClock()
    clock.stop()
    tries = LoginTries(clock)
    assert [is_let_in(tries, "admin", "203.0.113.1") for _ in range(7)] == [True] * 5 + [False] * 2
    codes = [is_let_in(tries, f"user {n}", "203.0.113.1") for n in range(20)]
    assert codes == [True] * 13 + [False] * 7
    clock.advance(61)
    assert is_let_in(tries, "admin", "203.0.113.1")


def test_all_addresses_of_a_network_of_ipv6_are_one() -> None:
    tries = LoginTries(FakeClock())
    codes = [is_let_in(tries, "admin", f"2001:db8::{n:x}") for n in range(7)]
    assert codes == [True] * 5 + [False] * 2
    assert is_let_in(tries, "admin", "2001:db8:0:1::1")


def test_tries_from_thousands_of_addresses_do_not_end_all_logins() -> None:
    clock = FakeClock()
    clock.stop()
    tries = LoginTries(clock)
    for number in range(12_000):
        is_let_in(tries, f"user {number}", f"10.0.{number // 250}.{number % 250}")
    assert is_let_in(tries, "ann", "198.51.100.1")


# --- proxies ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("proxy", "address", "is_trusted"),
    [
        ("::1", "0:0:0:0:0:0:0:1", True),
        ("0:0:0:0:0:0:0:1", "::1", True),
        ("10.0.0.7", "::ffff:10.0.0.7", True),
        ("::ffff:10.0.0.7", "10.0.0.7", True),
        ("10.0.0.0/8", "10.200.0.1", True),
        ("10.0.0.0/8", "::ffff:10.200.0.1", True),
        ("::ffff:10.0.0.0/104", "10.200.0.1", True),
        ("2001:db8::/32", "2001:DB8:0:0::1", True),
        ("fe80::/10", "fe80::1%eth0", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("10.0.0.7", "10.0.0.70", False),
        ("0.0.0.0/0", "2001:db8::1", False),
        ("::/0", "10.0.0.1", False),
        ("::1", "", False),
        ("::1", "testclient", False),
    ],
)
def test_proxies_are_compared_as_addresses(proxy: str, address: str, is_trusted: bool) -> None:
    assert DashboardOptions(proxies=(proxy,)).trusts(address) is is_trusted


@pytest.mark.parametrize("proxy", ["", "proxy", "10.0.0.1/8", "10.0.0.0/33", "10.0.0", "1"])
def test_a_proxy_is_an_address_or_a_network(proxy: str) -> None:
    with pytest.raises(ConfigurationError, match="give an IP address, or a network"):
        DashboardOptions(proxies=(proxy,))


# --- text of requests ------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["//[", "/[", "http://[", "//[::1", "/x\\[", "//a]"])
def test_an_address_that_cannot_be_read_leads_to_the_first_page(text: str) -> None:
    assert local_path(text, "/ops") in ("/ops/", "/[")


@pytest.mark.parametrize("text", ["0" * 19 + "5" + "9" * 30, "1" * 5_000, "٣", "-1", "1e3"])
def test_a_number_of_a_form_is_checked_as_a_whole(text: str) -> None:
    app: Any = None
    request = ActionRequest(
        app=app, operations=app, user=User(name="ann", role="admin"), fields={"limit": text}
    )
    with pytest.raises(ConfigurationError, match="give a number from 1 to 1,000"):
        request.number("limit", 1, 1_000)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "Infinity", "1e400", "١e400", "x"])
def test_a_decimal_of_a_form_is_finite(text: str) -> None:
    app: Any = None
    request = ActionRequest(
        app=app, operations=app, user=User(name="ann", role="admin"), fields={"delay": text}
    )
    with pytest.raises(ConfigurationError, match=r"delay=.*give a number"):
        request.decimal("delay")


# --- reads -----------------------------------------------------------------------------------


def test_all_views_together_are_read_for_at_most_a_quarter_of_the_time() -> None:
    for views in (1, 10, 1_000):
        for cost in (0.001, 0.02, 0.5, 3.0):
            assert views * cost / pause_seconds(1.0, cost, views) <= 0.25 or cost * views < 0.25
    assert pause_seconds(1.0, 0.001, 1) == 1.0  # a cheap view is read every second


def test_many_different_views_are_read_two_at_a_time() -> None:
    running = most = 0

    async def render() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return "content"

    async def work() -> None:
        live = LiveViews(SystemClock(), Telemetry())
        opened = [live.follow(n, f"user {n % 50}", render, 3600.0) for n in range(300)]
        first = await asyncio.gather(*(anext(one) for one in opened))
        assert {update.content for update in first if update is not None} == {"content"}
        for one in opened:
            await one.aclose()
        await live.close()

    asyncio.run(work())
    assert most == 2


def test_what_changes_while_a_view_is_read_is_in_the_next_read() -> None:
    reading, goes_on = asyncio.Event(), asyncio.Event()
    value = "old"

    async def render() -> str:
        seen = value
        reading.set()
        await goes_on.wait()
        return seen

    async def work() -> None:
        nonlocal value
        live = LiveViews(SystemClock(), Telemetry())
        updates = live.follow("view", "ann", render, 3600.0)
        first = asyncio.create_task(anext(updates))
        await reading.wait()
        value = "new"
        live.refresh()  # an action of this user has changed the page
        goes_on.set()
        async with asyncio.timeout(30):
            newest = content(await first)
            while newest != "new":
                newest = content(await anext(updates))
        await updates.aclose()
        await live.close()

    asyncio.run(work())


def content(update: Update | None) -> str:
    return "" if update is None else update.content


def test_when_one_view_can_be_read_again_all_that_failed_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("umbel.dashboard.live._MAX_FAILED_SECONDS", 3600.0)
    is_away = True

    async def render() -> str:
        if is_away:
            raise Unavailable("the store is away")
        return "content"

    async def work() -> None:
        nonlocal is_away
        live = LiveViews(SystemClock(), Telemetry())
        slow = live.follow("slow", "ann", render, 3600.0)
        quick = live.follow("quick", "ann", render, 0.01)
        async with asyncio.timeout(30):
            assert [content(await anext(one)) for one in (slow, quick)] == ["", ""]
            is_away = False
            assert [content(await anext(one)) for one in (slow, quick)] == ["content", "content"]
        for one in (slow, quick):
            await one.aclose()
        await live.close()

    asyncio.run(work())


def test_the_pause_after_a_failed_read_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("umbel.dashboard.live._MAX_FAILED_SECONDS", 0.01)
    reads = 0

    async def render() -> str:
        nonlocal reads
        reads += 1
        if reads < 3:
            raise Unavailable("the store is away")
        return "content"

    async def work() -> None:
        live = LiveViews(SystemClock(), Telemetry())
        updates = live.follow("view", "ann", render, 3600.0)  # as after a read that took long
        async with asyncio.timeout(30):
            assert [content(await anext(updates)) for _ in range(2)] == ["", "content"]
        await updates.aclose()
        await live.close()

    asyncio.run(work())


def test_a_page_that_waits_for_too_many_others_is_refused_soon() -> None:
    async def work() -> None:
        limit, release = ReadLimit(), asyncio.Event()
        held: list[int] = []

        async def hold(number: int) -> None:
            async with limit.read():
                held.append(number)
                await release.wait()

        holders = [asyncio.create_task(hold(number)) for number in range(4)]
        while len(held) < 4:
            await asyncio.sleep(0)
        with pytest.raises(TooBusy, match="try again"):
            async with limit.read(0.01):
                raise AssertionError("a fifth page is read")
        patient = asyncio.create_task(hold(5))
        release.set()
        await asyncio.gather(*holders, patient)
        assert held == [0, 1, 2, 3, 5]

    asyncio.run(work())


# --- masks -----------------------------------------------------------------------------------

app = Umbel("sqlite:////never/opened.db", namespace="masks")
codec = BodyCodec()


@app.task(name="shop.pay")
def pay(order: int, *card: str, note: str = "", **options: str) -> None:
    """Pay."""


def seen_by_viewer(task: str, *mask: str, **fields: Any) -> str:
    body = fields.pop("body", None) or codec.encode({"args": [], "kwargs": {}})
    record = Record(
        **{"id": "1", "task": task, "namespace": "n", "queue": "q", "state": State.BURIED}
        | {"created": 0.0, "body": body}
        | fields
    )
    visibility = Visibility(User(name="eve", role="viewer"), mask, codec, app.registry)
    return f"{visibility.job(record)} {visibility.row(record)}"


def call(*args: Any, **kwargs: Any) -> Body:
    return codec.encode({"args": [*args], "kwargs": kwargs})


def test_further_positional_arguments_have_the_name_of_their_parameter() -> None:
    text = seen_by_viewer("shop.pay", "card", body=call(7, "4711", SECRET, note="shown"))
    assert SECRET not in text
    assert "4711" not in text
    assert "shown" in text
    text = seen_by_viewer("shop.pay", "note", body=call(7, "4711", note=SECRET))
    assert SECRET not in text
    assert "4711" in text


def test_further_named_arguments_are_masked_by_their_parameter_too() -> None:
    assert SECRET not in seen_by_viewer("shop.pay", "options", body=call(7, pin=SECRET))
    assert SECRET not in seen_by_viewer("shop.pay", "pin", body=call(7, pin=SECRET))
    assert SECRET in seen_by_viewer("shop.pay", "other", body=call(7, pin=SECRET))


def test_parameters_are_found_by_position_or_name() -> None:
    task = app.registry.find("shop.pay")
    assert [parameter_name(task, place) for place in (0, 1, 2)] == ["order", "card", "card"]
    names = [parameter_name(task, place) for place in ("order", "note", "card", "pin")]
    assert names == ["order", "note", "options", "options"]
    assert parameter_name(None, 0) == ""


@pytest.mark.parametrize(
    "body",
    [
        Body("application/x-unknown", SECRET.encode()),
        Body("application/json", b'{"card": "' + SECRET.encode()),
        codec.encode([SECRET]),
        codec.encode(SECRET),
        codec.encode({"args": SECRET}),
    ],
    ids=["an unknown type", "cut", "a list", "a text", "arguments that are no list"],
)
def test_a_body_whose_values_have_no_names_is_masked(body: Body) -> None:
    text = seen_by_viewer("shop.pay", "card", body=body)
    assert SECRET not in text
    assert b64encode(body.data).decode() not in text


@pytest.mark.parametrize("kind", ["application/x-unknown", "application/json"])
def test_a_result_that_cannot_be_read_is_masked(kind: str) -> None:
    result = Body(kind, b'{"card": "' + SECRET.encode())
    text = seen_by_viewer("shop.pay", "card", result=result)
    assert SECRET not in text
    assert b64encode(result.data).decode() not in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ValueError: card hunter2", "ValueError"),
        ("shop.CardError: hunter2", "shop.CardError"),
        ("hunter2", MASKED),
        ("hunter2: no", MASKED),
        ("Hunter2: no", MASKED),
        ("ValueError", MASKED),
        ("node a: ValueError: hunter2", MASKED),
        ("", ""),
    ],
)
def test_of_an_error_a_viewer_sees_the_type_and_of_a_reason_nothing(text: str, shown: str) -> None:
    def visibility(mask: tuple[str, ...]) -> Visibility:
        return Visibility(User(name="eve", role="viewer"), mask, codec, app.registry)

    assert visibility(("card",)).error(text) == shown
    assert visibility(()).error(text) == text


def test_the_reason_of_a_rejected_job_is_masked() -> None:
    text = seen_by_viewer("shop.pay", "card", reason=f"the card {SECRET} was declined")
    assert SECRET not in text
