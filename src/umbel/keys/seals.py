"""A seal on a message to one worker: who vouches for it, for how long, and that nothing changed.

The signature covers where the message goes, what it is called, what is to run, with which
arguments and headers, and until when the seal holds. Not covered is what only says when, how
often and after whom it runs, or changes on the way: times, priority, gates, unique key, trace.
"""

from __future__ import annotations

import base64
import binascii
import math
from enum import StrEnum
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from umbel.keys.keyring import Key, Keyring, moment
from umbel.messages import Envelope, at

SEAL = "umbelseal"
"""The header it travels in."""
_FORM = "1"
_LIFE = 86_400.0
"""Seconds that a seal holds from when the message is due, if the message itself has no end."""
_CLOCKS_DIFFER = 3600.0
"""Seconds that a seal holds beyond an end that the store counts: the end of a seal is a moment by
the sender's clock, which may be behind the store's."""


_FARTHEST = 253_402_300_799
"""The end of the last year that every store knows."""


class Refusal(StrEnum):
    """Why a message to one worker is not heard."""

    CLOSED = "closed"
    UNSIGNED = "unsigned"
    FORGED = "forged"
    EXPIRED = "expired"
    REPLAYED = "replayed"


class Refused(Exception):
    """It is not heard, and why."""

    def __init__(self, why: Refusal, text: str) -> None:
        super().__init__(text)
        self.why = why


class _Seal(NamedTuple):
    key: str
    until: int
    signature: bytes


def seal(envelope: Envelope, key: Key, now: float) -> Envelope:
    """The message under seal."""
    until = math.ceil(_end(envelope, now))
    signature = base64.urlsafe_b64encode(key.sign(_covered(envelope, key.id, until))).decode()
    headers = {**envelope.headers, SEAL: f"{_FORM}.{key.id}.{until}.{signature}"}
    return replace(envelope, headers=headers)


def _end(envelope: Envelope, now: float) -> float:
    if envelope.expires_in is not None:
        return now + envelope.expires_in + _CLOCKS_DIFFER
    if envelope.expires is not None:
        return envelope.expires
    return (at(envelope.not_before, envelope.delay, now) or now) + _LIFE


def read_seal(envelope: Envelope, ring: Keyring, now: float) -> float:
    """Until when the seal holds, or held.

    Raises:
        Refused: there is none, it is somebody else's, or something was changed.
    """
    text = envelope.headers.get(SEAL)
    if text is None:
        raise Refused(Refusal.UNSIGNED, "it is not signed; send it with UMBEL_KEYS set")
    found = _read(text)
    if found is None:
        raise Refused(Refusal.FORGED, "what should be its signature is none")
    key = ring.trusted(found.key, moment(now))
    if key is None:
        raise Refused(
            Refusal.FORGED, f"it is signed by {found.key}, not trusted here: see umbel keys list"
        )
    if not key.has_signed(found.signature, _covered(envelope, found.key, found.until)):
        raise Refused(Refusal.FORGED, "the signature is not below this message")
    return float(min(found.until, _FARTHEST))


def _read(text: str) -> _Seal | None:
    form, _, rest = text.partition(".")
    name, _, rest = rest.partition(".")
    until, _, signature = rest.partition(".")
    if form != _FORM or not until.isascii() or not until.isdecimal() or len(until) > 15:
        return None
    try:
        return _Seal(name, int(until), base64.b64decode(signature, b"-_", validate=True))
    except (binascii.Error, ValueError):
        return None


def _covered(envelope: Envelope, key: str, until: int) -> bytes:
    """What is signed: the first line break ends the JSON, so no part can pass for another."""
    headers = {name: value for name, value in envelope.headers.items() if name != SEAL}
    told = {
        "form": _FORM,
        "key": key,
        "until": until,
        "namespace": envelope.namespace,
        "queue": envelope.queue,
        "id": envelope.id,
        "subject": envelope.subject,
        "type": envelope.body.content_type,
        "headers": headers,
    }
    return msgspec.json.encode(told, order="sorted") + b"\n" + envelope.body.data
