"""Owns publishing: build the messages of calls, send them in batches, keep them during an outage.

Called by: the client in ``app``. Never: fetches, settles, or waits beyond its deadline.
"""

from umbel.publisher.bridge import Bridge, blocking_send, waker
from umbel.publisher.building import Builder
from umbel.publisher.forwarder import BROKER_TIME_SHARE, Forwarder
from umbel.publisher.publisher import Publisher, Send
from umbel.publisher.reporting import emit_or_log, log_event

__all__ = [
    "BROKER_TIME_SHARE",
    "Bridge",
    "Builder",
    "Forwarder",
    "Publisher",
    "Send",
    "blocking_send",
    "emit_or_log",
    "log_event",
    "waker",
]
