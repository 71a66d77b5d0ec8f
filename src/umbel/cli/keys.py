"""``umbel keys [list] | make | rotate | revoke | export``."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import msgspec

from umbel.cli.command_context import CommandContext, command, group
from umbel.cli.errors import Failure
from umbel.cli.formatting import count, duration
from umbel.cli.output import print_json, print_line, print_table
from umbel.keys import Key, Keyring

_HEAD = ("key", "state", "signs from", "trusted until", "private")
_DEFAULT_FILE = "umbel.keys"
_OTHERS_MODE_BITS = 0o077


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A key as programs read it, without its private part."""

    key: str
    state: str
    """``signs``, ``next`` (it will sign later), ``trusted``, or ``past``."""
    public: bytes
    private: bool
    signs: datetime
    until: datetime | None


def _with_file_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option ``--file``."""
    return click.option(
        "--file",
        "path",
        type=click.Path(path_type=Path, dir_okay=False),
        default=lambda: os.environ.get("UMBEL_KEYS") or _DEFAULT_FILE,
        help=f"The file of keys. Default: UMBEL_KEYS, otherwise {_DEFAULT_FILE} in this folder.",
    )(function)


@group()
@_with_file_option
def keys(context: CommandContext, path: Path, as_json: bool) -> None:
    """Show the keys that sign messages to one worker, and those that are trusted.

    On shared servers without keys, every client that can publish can also command each worker. Make
    a file once, copy it to the workers and to the clients that send them messages, and set
    UMBEL_KEYS to its path. On a SQLite file, the user's key is used if UMBEL_KEYS is not set.
    """
    _show(path, as_json)


@command(name="list")
@_with_file_option
def list_keys(context: CommandContext, path: Path, as_json: bool) -> None:
    """Show the keys of a file."""
    _show(path, as_json)


@command()
@_with_file_option
def make(context: CommandContext, path: Path, as_json: bool) -> None:
    """Make a file with a first key. Only its owner can read the file."""
    ring = Keyring().with_new(_now())
    try:
        ring.write(path, new=True)
    except FileExistsError:
        raise Failure(f"{path} exists already; umbel keys rotate adds a key") from None
    _print_result(
        ring.keys[-1],
        as_json,
        f"Made {path}. Copy it to every worker and publisher, and set UMBEL_KEYS={path} there.",
    )


@command()
@_with_file_option
@click.option(
    "--after",
    default=3600.0,
    show_default=True,
    help="Seconds until the new key signs; copy the file before.",
)
@click.option(
    "--overlap",
    default=172_800.0,
    show_default=True,
    help="Seconds that older keys are trusted after that.",
)
def rotate(
    context: CommandContext, path: Path, after: float, overlap: float, as_json: bool
) -> None:
    """Add a key that will sign, and let the older keys expire after that.

    Copy the file to all workers and clients before the new key signs. Workers reread it without a
    restart.
    """
    if not (0 <= after <= 1e9 and 0 <= overlap <= 1e9):
        raise click.UsageError("--after and --overlap: give seconds, 0 or more.")
    now = _now()
    ring = Keyring.read(path).rotated(now, timedelta(seconds=after), timedelta(seconds=overlap))
    ring.write(path)
    new = ring.keys[-1]
    _print_result(
        new,
        as_json,
        f"{new.id} signs in {duration(after)}. Copy {path} to every worker and publisher before."
        f" Older keys are trusted for {duration(after + overlap)}.",
    )


@command()
@_with_file_option
@click.argument("key", metavar="KEY")
def revoke(context: CommandContext, path: Path, key: str, as_json: bool) -> None:
    """Remove a key. A worker stops trusting it when it has the new file."""
    ring = Keyring.read(path)
    named = [one for one in ring.keys if one.id.startswith(key)]
    if len(named) != 1:
        known = ", ".join(one.id for one in ring.keys) or "none"
        what = "is none of the keys" if not named else "matches several keys"
        raise Failure(f"{key!r} {what} in {path}; the keys are: {known}")
    left = ring.without(named[0].id)
    left.write(path)
    hint = "" if left.signer(_now()) else " No key can sign now. Run: umbel keys rotate --after 0"
    _print_result(named[0], as_json, f"{named[0].id} is not trusted any more.{hint}")


@command()
@_with_file_option
@click.argument("to", type=click.Path(path_type=Path, dir_okay=False))
def export(context: CommandContext, path: Path, to: Path, as_json: bool) -> None:
    """Write a file of public keys, for workers that only receive messages.

    A worker that broadcasts or sends messages to other workers needs a private key, too.
    """
    ring = Keyring.read(path).public_only()
    try:
        ring.write(to, new=True)
    except FileExistsError:
        raise Failure(f"{to} exists already; remove it first") from None
    if as_json:
        print_json(_views(ring))
    else:
        print_line(f"{count(len(ring.keys), 'public key')} in {to}")


for _command in (list_keys, make, rotate, revoke, export):
    keys.add_command(_command)


def _show(path: Path, as_json: bool) -> None:
    ring = Keyring.read(path)
    views = _views(ring)
    if as_json:
        print_json(views)
        return
    rows = [
        (
            view.key,
            view.state,
            _minute(view.signs),
            "revocation" if view.until is None else _minute(view.until),
            "yes" if view.private else "no",
        )
        for view in views
    ]
    print_table(_HEAD, rows)
    if any(view.private for view in views) and path.stat().st_mode & _OTHERS_MODE_BITS:
        print_line(f"Warning: other users can read {path}. Run: chmod 600 {path}")


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


def _print_result(key: Key, as_json: bool, text: str) -> None:
    if as_json:
        print_json({"key": key.id, "signs": key.signs})
    else:
        print_line(text)


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def _minute(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
