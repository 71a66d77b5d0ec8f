"""Signatures of messages to one worker: by which key, valid until when, and that nothing changed.

The signature covers the queue, the id, the task, the arguments, the headers, and until when it is
valid. It does not cover fields that only determine when and how often the job runs, or that change
on the way: times, priority, gates, unique key, trace.
"""

from __future__ import annotations

import base64
import binascii
import math
from enum import StrEnum
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from umbel.keys.keyring import Key, Keyring, to_datetime
from umbel.messages import Envelope, resolve_time

SIGNATURE_HEADER = "umbelseal"
"""The header that carries the signature."""
_VERSION = "1"
_DEFAULT_VALIDITY = 86_400.0
"""Seconds that a signature is valid from when the message is due, if the message never expires."""
_CLOCK_TOLERANCE = 3600.0
"""Seconds that a signature is valid after the message has expired by the store's clock: validity is
measured by the sender's clock, which may be behind the store's."""
_REMEDY = "give its publisher and this worker the same file of keys: UMBEL_KEYS"
_MAX_TIME = 253_402_300_799
"""The end of the year 9999, the last one that every store accepts."""


class Refusal(StrEnum):
    """Why a message to one worker is refused."""

    CLOSED = "closed"
    UNSIGNED = "unsigned"
    FORGED = "forged"
    EXPIRED = "expired"
    REPLAYED = "replayed"


class Refused(Exception):
    """A message to one worker is refused."""

    def __init__(self, why: Refusal, text: str) -> None:
        super().__init__(text)
        self.why = why


class _Signature(NamedTuple):
    key: str
    until: int
    signature: bytes


def sign_envelope(envelope: Envelope, key: Key, now: float) -> Envelope:
    """Return the message with a signature header."""
    until = math.ceil(_valid_until(envelope, now))
    signature = base64.urlsafe_b64encode(key.sign(_signed_bytes(envelope, key.id, until))).decode()
    headers = {**envelope.headers, SIGNATURE_HEADER: f"{_VERSION}.{key.id}.{until}.{signature}"}
    return replace(envelope, headers=headers)


def _valid_until(envelope: Envelope, now: float) -> float:
    if envelope.expires_in is not None:
        return now + envelope.expires_in + _CLOCK_TOLERANCE
    if envelope.expires is not None:
        return envelope.expires
    return (resolve_time(envelope.not_before, envelope.delay, now) or now) + _DEFAULT_VALIDITY


def verify_signature(envelope: Envelope, ring: Keyring, now: float) -> float:
    """Return until when the signature is, or was, valid.

    Raises:
        Refused: there is no signature, its key is not trusted, or the message was changed.
    """
    text = envelope.headers.get(SIGNATURE_HEADER)
    if text is None:
        raise Refused(Refusal.UNSIGNED, f"it is not signed; {_REMEDY}")
    found = _parse(text)
    if found is None:
        raise Refused(Refusal.FORGED, "its signature is malformed")
    key = ring.trusted(found.key, to_datetime(now))
    if key is None:
        raise Refused(Refusal.FORGED, f"its key {found.key} is not trusted here; {_REMEDY}")
    if not key.has_signed(found.signature, _signed_bytes(envelope, found.key, found.until)):
        raise Refused(Refusal.FORGED, "the signature does not match the message")
    return float(min(found.until, _MAX_TIME))


def _parse(text: str) -> _Signature | None:
    version, _, rest = text.partition(".")
    name, _, rest = rest.partition(".")
    until, _, signature = rest.partition(".")
    if version != _VERSION or not until.isascii() or not until.isdecimal() or len(until) > 15:
        return None
    try:
        return _Signature(name, int(until), base64.b64decode(signature, b"-_", validate=True))
    except (binascii.Error, ValueError):
        return None


def _signed_bytes(envelope: Envelope, key: str, until: int) -> bytes:
    """Return the bytes to sign. The first line break ends the JSON, so no part is ambiguous."""
    headers = {name: value for name, value in envelope.headers.items() if name != SIGNATURE_HEADER}
    fields = {
        "form": _VERSION,
        "key": key,
        "until": until,
        "namespace": envelope.namespace,
        "queue": envelope.queue,
        "id": envelope.id,
        "subject": envelope.subject,
        "type": envelope.body.content_type,
        "headers": headers,
    }
    return msgspec.json.encode(fields, order="sorted") + b"\n" + envelope.body.data
