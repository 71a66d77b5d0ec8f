"""Tasks, message attributes and TLS certificates for the tests of links."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import trustme

from umbel import Umbel
from umbel.messages import fresh_id


def with_tasks(app: Umbel) -> Umbel:
    @app.task(name="add")
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task(name="echo")
    async def echo(text: str) -> str:
        return text

    @app.task(name="fail", retry=0)
    def fail() -> None:
        raise ValueError("no luck")

    return app


def task_named(app: Umbel, name: str) -> Any:
    """Return the task with this name."""
    found = app.registry.get(name)
    assert found is not None
    return found


def command_attributes(task: str = "add", **attributes: str) -> dict[str, str]:
    return {
        "specversion": "1.0",
        "id": fresh_id(),
        "type": "umbel.command",
        "source": "/test",
        "subject": task,
        **attributes,
    }


class Certificates:
    """Certificates of one authority, as files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._authority = trustme.CA()
        self._authority.cert_pem.write_to_path(folder / "ca.pem")
        for name in ("router", "worker"):
            issued = self._authority.issue_cert("127.0.0.1", common_name=name)
            issued.private_key_pem.write_to_path(folder / f"{name}.key")
            issued.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")

    def query(self, name: str, trusting: Certificates | None = None) -> str:
        authority = (trusting or self).folder / "ca.pem"
        own = f"certfile={self.folder}/{name}.pem&keyfile={self.folder}/{name}.key"
        return f"?cafile={authority}&{own}"

    def client_context(self) -> ssl.SSLContext:
        """A context that trusts this authority and presents no certificate."""
        return ssl.create_default_context(cafile=self.folder / "ca.pem")

    def present(self, name: str, context: ssl.SSLContext) -> None:
        """Make a context present one of these certificates."""
        context.load_cert_chain(self.folder / f"{name}.pem", self.folder / f"{name}.key")
