"""Owns the values that flow through every room: messages, leases, outcomes, states, the wire form.

Called by every room above. Never does I/O, reads the clock, or knows a task's code.
"""

from umbel.messages.bodies import (
    JSON,
    MESSAGEPACK,
    PICKLE,
    Body,
    BodyCodec,
    decode_as,
)
from umbel.messages.envelopes import (
    Command,
    Document,
    Envelope,
    MessageType,
    fresh_id,
    fresh_ids,
    random_hex,
)
from umbel.messages.leases import Attempt, Delivery, Failure, Lease
from umbel.messages.outcomes import (
    Cancelled,
    Expired,
    Failed,
    Interrupted,
    Outcome,
    Rejected,
    Retry,
    Snoozed,
    Succeeded,
)
from umbel.messages.records import Record
from umbel.messages.settlements import (
    Again,
    Disposition,
    Finish,
    Settlement,
    disposition,
    is_final,
)
from umbel.messages.states import LIVE, TERMINAL, TRANSITIONS, State

__all__ = [
    "JSON",
    "LIVE",
    "MESSAGEPACK",
    "PICKLE",
    "TERMINAL",
    "TRANSITIONS",
    "Again",
    "Attempt",
    "Body",
    "BodyCodec",
    "Cancelled",
    "Command",
    "Delivery",
    "Disposition",
    "Document",
    "Envelope",
    "Expired",
    "Failed",
    "Failure",
    "Finish",
    "Interrupted",
    "Lease",
    "MessageType",
    "Outcome",
    "Record",
    "Rejected",
    "Retry",
    "Settlement",
    "Snoozed",
    "State",
    "Succeeded",
    "decode_as",
    "disposition",
    "fresh_id",
    "fresh_ids",
    "is_final",
    "random_hex",
]
