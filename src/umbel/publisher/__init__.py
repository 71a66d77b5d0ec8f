"""Owns getting calls into a broker: build the message, encode it, publish it in good company.

Called by: tasks, through their Outlet. Never: fetches, settles, or waits beyond its deadline.
"""

from umbel.publisher.bridge import Bridge, waker
from umbel.publisher.building import Builder
from umbel.publisher.forwarder import Forwarder, Tell
from umbel.publisher.publisher import Publisher, Send
from umbel.publisher.reentrant import ReentrantForwarder

__all__ = [
    "Bridge",
    "Builder",
    "Forwarder",
    "Publisher",
    "ReentrantForwarder",
    "Send",
    "Tell",
    "waker",
]
