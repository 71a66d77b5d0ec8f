"""Keys and signatures: only unchanged messages that a trusted key has signed are accepted."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from umbel.clock import SystemClock
from umbel.errors import ConfigurationError
from umbel.keys import (
    SIGNATURE_HEADER,
    Key,
    KeyFile,
    Keyring,
    Refusal,
    Refused,
    sign_envelope,
    verify_signature,
)
from umbel.messages import JSON, Body, Envelope, fresh_id

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
RING = Keyring().with_new(NOW)
STRANGER = Keyring().with_new(NOW)


def envelope(**fields: Any) -> Envelope:
    plain = {
        "id": fresh_id(),
        "subject": "work",
        "queue": "worker-3",
        "namespace": "shop",
        "body": Body(JSON, b'{"args":[1],"kwargs":{}}'),
        "created": NOW.timestamp(),
        "headers": {"timeout": "5"},
    }
    return Envelope(**{**plain, **fields})


def signer(ring: Keyring, when: datetime = NOW) -> Key:
    found = ring.signer(when)
    assert found is not None
    return found


def refusal(message: Envelope, ring: Keyring = RING, when: datetime = NOW) -> Refusal | None:
    try:
        verify_signature(message, ring, when.timestamp())
    except Refused as refused:
        return refused.why
    return None


# --- signatures ------------------------------------------------------------------------------


def test_a_seal_holds_until_the_message_ends() -> None:
    signed = sign_envelope(envelope(), signer(RING), NOW.timestamp())
    assert verify_signature(signed, RING, NOW.timestamp()) == NOW.timestamp() + 86_400
    late = sign_envelope(envelope(not_before=NOW.timestamp() + 1000), signer(RING), NOW.timestamp())
    assert verify_signature(late, RING, NOW.timestamp()) == NOW.timestamp() + 87_400
    short = sign_envelope(envelope(expires=NOW.timestamp() + 9.5), signer(RING), NOW.timestamp())
    assert verify_signature(short, RING, NOW.timestamp()) == NOW.timestamp() + 10
    counted = sign_envelope(envelope(expires_in=9.5), signer(RING), NOW.timestamp())
    assert verify_signature(counted, RING, NOW.timestamp()) == NOW.timestamp() + 10 + 3600


def test_a_message_without_a_signature_or_with_an_untrusted_one_is_refused() -> None:
    assert refusal(envelope()) is Refusal.UNSIGNED
    assert refusal(sign_envelope(envelope(), signer(STRANGER), NOW.timestamp())) is Refusal.FORGED


texts = st.text(max_size=20)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "id": st.uuids().map(str),
    "subject": texts,
    "queue": texts,
    "namespace": texts,
    "body": st.builds(Body, texts, st.binary(max_size=40)),
    "headers": st.dictionaries(texts, texts, max_size=3),
}


@given(st.data(), st.sampled_from(sorted(FIELDS)))
def test_nothing_that_matters_can_be_changed_under_a_seal(data: st.DataObject, field: str) -> None:
    signed = sign_envelope(envelope(), signer(RING), NOW.timestamp())
    other = data.draw(FIELDS[field])
    if field == "headers":
        other = {**other, SIGNATURE_HEADER: signed.headers[SIGNATURE_HEADER]}
    assume(other != asdict(signed)[field])
    assert refusal(replace(signed, **{field: other})) is Refusal.FORGED


@given(st.data())
def test_no_other_text_passes_for_a_seal(data: st.DataObject) -> None:
    signed = sign_envelope(envelope(), signer(RING), NOW.timestamp())
    text = signed.headers[SIGNATURE_HEADER]
    at = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(at, len(text)))
    other = text[:at] + data.draw(texts) + text[end:]
    assume(_said(other) != _said(text))
    assert (
        refusal(replace(signed, headers={**signed.headers, SIGNATURE_HEADER: other}))
        is Refusal.FORGED
    )


def _said(text: str) -> Any:
    """The content of a signature header, in which one value can be written in two ways."""
    parts = text.split(".")
    if len(parts) != 4 or not (parts[2].isascii() and parts[2].isdecimal()):
        return text
    return parts[0], parts[1], int(parts[2]), parts[3]


@given(st.text(max_size=300))
def test_any_text_in_its_place_is_refused_and_raises_nothing_else(text: str) -> None:
    assert refusal(envelope(headers={SIGNATURE_HEADER: text})) is Refusal.FORGED


@given(first=st.binary(max_size=30), second=st.binary(max_size=30), name=texts)
def test_no_two_messages_have_the_same_signature(first: bytes, second: bytes, name: str) -> None:
    one = envelope(subject=name, body=Body(JSON, first))
    two = replace(one, body=Body(JSON, second))
    assume(first != second)
    moved = replace(two, headers=sign_envelope(one, signer(RING), NOW.timestamp()).headers)
    assert refusal(moved) is Refusal.FORGED


# --- rings -----------------------------------------------------------------------------------


def test_a_new_key_is_trusted_before_it_signs_and_the_old_one_after_that() -> None:
    old = signer(RING)
    ring = RING.rotated(NOW, HOUR, 2 * HOUR)
    assert signer(ring) == replace(old, until=NOW + 3 * HOUR)
    new = signer(ring, NOW + HOUR)
    assert new.id != old.id
    assert refusal(sign_envelope(envelope(), new, NOW.timestamp()), ring) is None
    signed = sign_envelope(envelope(), old, NOW.timestamp())
    assert refusal(signed, ring, NOW + 3 * HOUR - timedelta(seconds=1)) is None
    assert refusal(signed, ring, NOW + 3 * HOUR) is Refusal.FORGED


def test_rotating_again_and_again_forgets_what_is_past() -> None:
    ring = RING
    for hours in range(5):
        ring = ring.rotated(NOW + hours * HOUR, timedelta(), HOUR)
    assert len(ring.keys) == 2
    assert signer(ring, NOW + 4 * HOUR) == ring.keys[-1]


def test_a_revoked_key_is_not_trusted() -> None:
    signed = sign_envelope(envelope(), signer(RING), NOW.timestamp())
    assert refusal(signed, RING.without(signer(RING).id)) is Refusal.FORGED


def test_who_has_public_keys_checks_and_cannot_sign() -> None:
    public = RING.public_only()
    assert public.signer(NOW) is None
    assert refusal(sign_envelope(envelope(), signer(RING), NOW.timestamp()), public) is None


# --- files -----------------------------------------------------------------------------------


def test_a_file_is_its_owners_alone_and_gives_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "secret" / "keys"
    ring = RING.rotated(NOW, HOUR, HOUR)
    ring.write(path)
    assert Keyring.read(path) == ring
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["keys"]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277], ids=oct)
def test_a_new_file_and_its_folders_are_the_owners_alone_whatever_the_umask(
    tmp_path: Path, umask: int
) -> None:
    path = tmp_path / "a" / "b" / "keys"
    before = os.umask(umask)
    try:
        RING.write(path)
    finally:
        os.umask(before)
    found = [stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent, path.parent.parent)]
    assert found == [0o600, 0o700, 0o700]


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    RING.write(path)
    path.chmod(0o640)
    RING.rotated(NOW, HOUR, HOUR).write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_file_that_is_there_is_not_written_over_by_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    RING.write(path, new=True)
    with pytest.raises(FileExistsError):
        STRANGER.write(path, new=True)
    assert Keyring.read(path) == RING
    assert os.listdir(tmp_path) == ["keys"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "umbel keys make"),
        ("", "not a file of keys"),
        ("\xff", "not a file of keys"),
        ('{"keys": [{"public": "AAAA", "signs": "2026-01-31T12:00:00Z"}]}', "not an Ed25519 key"),
        (f'{{"keys": [{{"public": "{"A" * 43}=", "signs": "2026-01-31T12:00:00"}}]}}', "zone"),
    ],
)
def test_the_error_in_a_file_is_named(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "keys"
    if text is not None:
        path.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigurationError, match=says) as caught:
        KeyFile(path, SystemClock()).open()
    assert str(path) in str(caught.value)


def test_a_changed_file_is_read_again_and_a_broken_one_leaves_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("umbel.keys.keyring._CHECK_INTERVAL", 0.0)
    path, told = tmp_path / "keys", list[str]()
    RING.write(path)
    file = KeyFile(path, SystemClock(), told.append)
    assert file.ring == RING
    STRANGER.write(path)
    assert file.ring == STRANGER
    path.write_text("half of a fi")
    assert file.ring == STRANGER
    assert file.ring == STRANGER
    assert len(told) == 1
    assert str(path) in told[0]
    RING.write(path)
    assert file.ring == RING
