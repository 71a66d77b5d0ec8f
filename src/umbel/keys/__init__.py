"""Owns who may write to a worker's own queue: keys, files of keys, signatures of messages.

Called by: the application, which signs messages to one worker; the worker, which verifies them.
Never: opens a connection, or decides what happens to a refused message.
"""

from umbel.keys.keyring import Key, KeyFile, Keyring
from umbel.keys.signatures import (
    SIGNATURE_HEADER,
    Refusal,
    Refused,
    sign_envelope,
    verify_signature,
)
from umbel.keys.user_key import UserKeyFile, user_key_path

__all__ = [
    "SIGNATURE_HEADER",
    "Key",
    "KeyFile",
    "Keyring",
    "Refusal",
    "Refused",
    "UserKeyFile",
    "sign_envelope",
    "user_key_path",
    "verify_signature",
]
