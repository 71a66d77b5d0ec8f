"""Owns who may write to a worker's own queue: keys, where they are kept, seals on messages.

Called by: the application, which seals what it sends there; the worker, which checks it.
Never: opens a connection, or decides what becomes of a message that is refused.
"""

from umbel.keys.keyring import Key, KeyFile, Keyring
from umbel.keys.seals import SEAL, Refusal, Refused, read_seal, seal

__all__ = ["SEAL", "Key", "KeyFile", "Keyring", "Refusal", "Refused", "read_seal", "seal"]
