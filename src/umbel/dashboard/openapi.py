"""The OpenAPI description of the HTTP interface, made from the tables of pages and actions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from umbel.dashboard.requests import Action
from umbel.dashboard.views import Page

_ERRORS = {
    "401": "The token is missing, unknown or expired.",
    "403": "The role of the user does not allow it.",
    "503": "The store is unreachable.",
}


def api_path(page: Page) -> str:
    """Return where the HTTP interface has the data of a page."""
    return "/overview" if page.path == "/" else page.path


def describe(
    pages: Iterable[Page], actions: Mapping[str, Action], root: str, version: str
) -> dict[str, Any]:
    """Return the description in OpenAPI 3.1."""
    paths: dict[str, Any] = {}
    for page in pages:
        names = re.findall(r"{(\w+)}", page.path)
        parameters = [_parameter(name, "path") for name in names]
        parameters += [_parameter(name, "query") for name in page.parameters]
        paths[api_path(page)] = {
            "get": {
                "operationId": f"read_{page.name}",
                "summary": (page.read.__doc__ or page.title).split("\n")[0],
                "description": f"Needs the role {page.role}.",
                "parameters": parameters,
                "responses": _responses("What the page shows."),
            }
        }
    paths["/live"] = {"get": _live()}
    for action in actions.values():
        fields = {name: {"type": "string"} for name in action.fields}
        body = {"schema": {"type": "object", "properties": fields}}
        paths[f"/actions/{action.name}"] = {
            "post": {
                "operationId": action.name.replace("-", "_"),
                "summary": action.summary,
                "description": f"Needs the role {action.role}.",
                "requestBody": {"content": {"application/json": body}},
                "responses": _responses("What was done.")
                | {"409": {"description": "The state does not allow it."}},
            }
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Umbel", "version": version},
        "servers": [{"url": f"{root}/api/v1"}],
        "security": [{"token": []}],
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "paths": paths,
    }


def _live() -> dict[str, Any]:
    text = "An event for each change: now, data as the page has it, and error and since on trouble."
    return {
        "operationId": "follow",
        "summary": "Return the data of a page now and whenever it changes.",
        "description": "Needs the role of the page. view is its path and query: /queues.",
        "parameters": [_parameter("view", "query") | {"required": True}],
        "responses": {
            **{code: {"description": why} for code, why in _ERRORS.items()},
            "200": {"description": text, "content": {"text/event-stream": {}}},
            "503": {"description": "Too many pages are open."},
        },
    }


def _parameter(name: str, where: str) -> dict[str, Any]:
    schema = {"type": "string"}
    return {"name": name, "in": where, "required": where == "path", "schema": schema}


def _responses(text: str) -> dict[str, Any]:
    ok = {"description": text, "content": {"application/json": {"schema": {"type": "object"}}}}
    return {"200": ok, **{code: {"description": why} for code, why in _ERRORS.items()}}
