"""The OpenAPI description of the HTTP interface, made from the tables of pages and actions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from umbel.dashboard.action_requests import Action
from umbel.dashboard.views import Page

_ERRORS = {
    "400": "A parameter or field is missing or wrong; the text names it.",
    "401": "The token is missing, unknown or expired.",
    "403": "The role of the user does not allow it.",
    "404": "There is no such job, page or action.",
    "409": "The state does not allow it.",
    "413": "The request is too large.",
    "415": "The request is not a JSON object.",
    "429": "There were too many logins.",
    "503": "The store is unreachable, or too much is read at the same time.",
}
_OF_READS = ("400", "401", "403", "404", "429", "503")
_SCHEMAS = {
    "Error": {
        "type": "object",
        "properties": {"error": {"type": "string", "description": "Why, and what helps."}},
        "required": ["error"],
    },
    "Done": {
        "type": "object",
        "properties": {
            "done": {"type": "string", "description": "What was done, as a sentence."},
            "id": {"type": "string", "description": "The job or graph that was published."},
        },
        "required": ["done"],
    },
}


def api_path(page: Page) -> str:
    """Return where the HTTP interface has the data of a page."""
    return "/overview" if page.path == "/" else page.path


def describe(
    pages: Iterable[Page], actions: Mapping[str, Action], root: str, version: str
) -> dict[str, Any]:
    """Return the description in OpenAPI 3.1."""
    paths: dict[str, Any] = {api_path(page): {"get": _read(page)} for page in pages}
    paths["/live"] = {"get": _live()}
    paths["/audit.csv"] = {"get": _audit_file()}
    for action in actions.values():
        paths[f"/actions/{action.name}"] = {"post": _act(action)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Umbel", "version": version},
        "servers": [{"url": f"{root}/api/v1"}],
        "security": [{"token": []}],
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": _SCHEMAS,
        },
        "paths": paths,
    }


def _read(page: Page) -> dict[str, Any]:
    return {
        "operationId": f"read_{page.name}",
        "summary": (page.read.__doc__ or page.title).split("\n")[0],
        "description": f"Needs the role {page.role}. Names in the path are percent-encoded.",
        "parameters": [
            *(_parameter(name, "path") for name in re.findall(r"{(\w+)}", page.path)),
            *(_parameter(name, "query") for name in page.parameters),
        ],
        "responses": _responses("What the page shows.", {"type": "object"}, _OF_READS),
    }


def _act(action: Action) -> dict[str, Any]:
    value = {"type": ["string", "number"]}
    body = {
        "type": "object",
        "properties": dict.fromkeys((*action.fields, *action.optional), value),
        "required": [*action.fields],
    }
    return {
        "operationId": action.name.replace("-", "_"),
        "summary": action.summary,
        "description": f"Needs the role {action.role}.",
        "requestBody": {
            "required": bool(action.fields),
            "content": {"application/json": {"schema": body}},
        },
        "responses": _responses("What was done.", _ref("Done"), _ERRORS),
    }


def _live() -> dict[str, Any]:
    text = "An event for each change: now, data as the page has it, and error and since on trouble."
    responses = _responses(text, {}, _OF_READS)
    responses["200"]["content"] = {"text/event-stream": {}}
    return {
        "operationId": "follow",
        "summary": "Return the data of a page now and whenever it changes.",
        "description": "Needs the role of the page. view is its path and query: /queues.",
        "parameters": [_parameter("view", "query") | {"required": True}],
        "responses": responses,
    }


def _audit_file() -> dict[str, Any]:
    responses = _responses("The audit log.", {}, _OF_READS)
    responses["200"]["content"] = {"text/csv": {}}
    return {
        "operationId": "read_audit_file",
        "summary": "Return the newest actions of users as CSV.",
        "description": "Needs the role admin.",
        "responses": responses,
    }


def _parameter(name: str, where: str) -> dict[str, Any]:
    schema = {"type": "string"}
    return {"name": name, "in": where, "required": where == "path", "schema": schema}


def _responses(text: str, schema: Mapping[str, Any], errors: Iterable[str]) -> dict[str, Any]:
    """Return the descriptions of the answer and of errors."""
    refused = {"application/json": {"schema": _ref("Error")}}
    return {
        "200": {"description": text, "content": {"application/json": {"schema": schema}}},
        **{code: {"description": _ERRORS[code], "content": refused} for code in errors},
    }


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
