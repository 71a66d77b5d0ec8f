"""``umbel keys [list] | make | rotate | revoke | export``."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import msgspec

from umbel.cli.answers import answer, say, table
from umbel.cli.command_context import CommandContext, command, group
from umbel.cli.errors import Failure
from umbel.cli.words import count, duration
from umbel.keys import Key, Keyring

_HEAD = ("key", "state", "signs from", "trusted until", "private")
_DEFAULT = "umbel.keys"
_OTHERS = 0o077


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A key as programs read it; what is secret of it stays in the file."""

    key: str
    state: str
    """``signs``, ``next`` (it will), ``trusted``, or ``past``."""
    public: bytes
    private: bool
    signs: datetime
    until: datetime | None


def _of_file(function: Callable[..., Any]) -> Callable[..., Any]:
    """With ``--file``, where the keys are."""
    return click.option(
        "--file",
        "path",
        type=click.Path(path_type=Path, dir_okay=False),
        default=lambda: os.environ.get("UMBEL_KEYS") or _DEFAULT,
        help=f"Where they are; UMBEL_KEYS if not given, else {_DEFAULT} in this folder.",
    )(function)


@group()
@_of_file
def keys(frame: CommandContext, path: Path, as_json: bool) -> None:
    """Show the keys that sign messages to one worker, and those that are trusted.

    Without keys whoever can publish can also command each worker. Make a file once, give it to
    workers and to whoever sends them messages, and set UMBEL_KEYS to its place.
    """
    _show(path, as_json)


@command(name="list")
@_of_file
def list_keys(frame: CommandContext, path: Path, as_json: bool) -> None:
    """Show the keys of a file."""
    _show(path, as_json)


@command()
@_of_file
def make(frame: CommandContext, path: Path, as_json: bool) -> None:
    """Make a file with a first key. Only its owner can read it."""
    ring = Keyring().with_new(_now())
    try:
        ring.write(path, new=True)
    except FileExistsError:
        raise Failure(f"{path} is there already; umbel keys rotate makes another key") from None
    _tell(
        ring.keys[-1],
        as_json,
        f"made {path}. Copy it to every worker and publisher, and set UMBEL_KEYS={path} there",
    )


@command()
@_of_file
@click.option(
    "--after",
    default=3600.0,
    show_default=True,
    help="Seconds until it signs; copy the file first.",
)
@click.option(
    "--overlap", default=172_800.0, show_default=True, help="Seconds older ones are trusted longer."
)
def rotate(frame: CommandContext, path: Path, after: float, overlap: float, as_json: bool) -> None:
    """Make a new key that will sign, and let the older ones lapse after that.

    Copy the file to everybody before the new key signs: workers read it again by themselves.
    """
    if not (0 <= after <= 1e9 and 0 <= overlap <= 1e9):
        raise click.UsageError("--after and --overlap: give seconds, 0 or more.")
    now = _now()
    ring = Keyring.read(path).rotated(now, timedelta(seconds=after), timedelta(seconds=overlap))
    ring.write(path)
    new = ring.keys[-1]
    _tell(
        new,
        as_json,
        f"{new.id} signs in {duration(after)}: copy {path} to every worker and publisher before;"
        f" older keys are trusted for {duration(after + overlap)}",
    )


@command()
@_of_file
@click.argument("key", metavar="KEY")
def revoke(frame: CommandContext, path: Path, key: str, as_json: bool) -> None:
    """Trust a key no more, from when its workers have the new file on."""
    ring = Keyring.read(path)
    named = [one for one in ring.keys if one.id.startswith(key)]
    if len(named) != 1:
        known = ", ".join(one.id for one in ring.keys) or "none"
        what = "is none of the keys" if not named else "begins several keys"
        raise Failure(f"{key!r} {what} in {path}; there is {known}")
    left = ring.without(named[0].id)
    left.write(path)
    hint = "" if left.signer(_now()) else "; nobody can sign now: umbel keys rotate --after 0"
    _tell(named[0], as_json, f"{named[0].id} is not trusted any more{hint}")


@command()
@_of_file
@click.argument("to", type=click.Path(path_type=Path, dir_okay=False))
def export(frame: CommandContext, path: Path, to: Path, as_json: bool) -> None:
    """Write a file of public keys, for workers that hear messages and send none.

    A worker that broadcasts, or sends to others, needs a private key, too.
    """
    ring = Keyring.read(path).public_only()
    try:
        ring.write(to, new=True)
    except FileExistsError:
        raise Failure(f"{to} is there already; remove it first") from None
    if as_json:
        answer(_views(ring))
    else:
        say(f"{count(len(ring.keys), 'public key')} in {to}")


for _command in (list_keys, make, rotate, revoke, export):
    keys.add_command(_command)


def _show(path: Path, as_json: bool) -> None:
    ring = Keyring.read(path)
    views = _views(ring)
    if as_json:
        answer(views)
        return
    rows = [
        (
            view.key,
            view.state,
            _moment(view.signs),
            "it is revoked" if view.until is None else _moment(view.until),
            "yes" if view.private else "no",
        )
        for view in views
    ]
    table(_HEAD, rows)
    if any(view.private for view in views) and path.stat().st_mode & _OTHERS:
        say(f"warning: others can read {path}: chmod 600 {path}")


def _views(ring: Keyring) -> list[KeyView]:
    now = _now()
    signer = ring.signer(now)
    return [
        KeyView(
            key=key.id,
            state=_state(key, signer, now),
            public=key.public,
            private=key.private is not None,
            signs=key.signs,
            until=key.until,
        )
        for key in ring.keys
    ]


def _state(key: Key, signer: Key | None, now: datetime) -> str:
    if key.until is not None and key.until <= now:
        return "past"
    if key == signer:
        return "signs"
    return "next" if key.signs > now else "trusted"


def _tell(key: Key, as_json: bool, text: str) -> None:
    if as_json:
        answer({"key": key.id, "signs": key.signs})
    else:
        say(text)


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def _moment(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
