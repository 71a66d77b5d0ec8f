"""An application with a dashboard, and requests as a browser makes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from integration.conftest import working
from integration.running import ask, until
from umbel import Retry, Signal, Umbel
from umbel.control import Role
from umbel.dashboard import DashboardOptions
from umbel.dashboard.serving import listen, serving, url_of
from umbel.messages import State

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202egnp.exe"
PASSWORD = "correct horse battery"
VALUES = {"id": "", "name": "default", "key": "limit:shop.count"}


class Browser:
    """Requests as a page of the dashboard makes them."""

    def __init__(self, url: str, **headers: str) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, headers={"accept": "text/html", **headers})
        self.origin = re.match(r"http://[^/]+", url)[0]  # type: ignore[index]

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.http.get(path.lstrip("/"), headers=headers)

    @property
    def token(self) -> str:
        return re.search(r'data-csrf="(\w+)"', self.get("/login").text)[1]  # type: ignore[index]

    def act(self, action: str, **fields: str) -> httpx.Response:
        headers = {"origin": self.origin, "x-csrf": self.token}
        return self.http.post(f"api/v1/actions/{action}", json=fields, headers=headers)

    def log_in(self, name: str, password: str, following: str = "") -> httpx.Response:
        fields = {"name": name, "password": password, "next": following, "csrf": self.token}
        return self.http.post("login", data=fields, headers={"origin": self.origin})


@contextmanager
def served(app: Umbel, **options: Any) -> Iterator[str]:
    chosen = DashboardOptions(**{"port": 0, **options})
    listening = listen(chosen)
    with serving(app, chosen, listening, "shop"):
        yield url_of(listening, chosen)


@contextmanager
def updates_of(url: str, view: str) -> Iterator[Iterator[dict[str, Any]]]:
    """The updates that an open page receives."""
    with httpx.stream("GET", f"{url}live?view={view}", timeout=60) as stream:
        yield (json.loads(line[6:]) for line in stream.iter_lines() if line[:5] == "data:")


def declare(app: Umbel) -> Umbel:
    @app.task(name="shop.add", every=3600)
    def add(a: int = 1, b: int = 2) -> int:
        return a + b

    @app.task(name="shop.charge", retry=Retry(0))
    def charge(order: int, card: str = "") -> None:
        raise ValueError(f"card {card} of order {order} was declined")

    @app.task(name="shop.count", limit=1)
    def count(shelf: int) -> int:
        return shelf

    @app.workflow(name="shop.restock")
    def restock(shelf: int) -> Any:
        counted = count.s(shelf)
        return add.s(counted, 1).after(Signal("approved", type=bool).after(counted))

    return app


def bury(app: Umbel, count: int = 1, card: str = "4711") -> list[str]:
    """Run jobs that fail; return their ids."""
    charge = app.registry.find("shop.charge")
    handles = [charge.delay(number, card) for number in range(count)]
    with working(app):
        until(lambda: all(h.state is State.BURIED for h in handles), "the jobs to be buried")
    return [handle.id for handle in handles]


def add_user(app: Umbel, name: str, role: Role) -> None:
    ask(app, lambda operations: operations.access.set_user(name, role, PASSWORD))
