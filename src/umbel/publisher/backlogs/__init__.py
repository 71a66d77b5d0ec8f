"""Where messages wait while their broker is out of reach, oldest first."""

from umbel.publisher.backlogs.memory import MemoryBacklog
from umbel.publisher.backlogs.port import Backlog, Held, UnreadableMessage
from umbel.publisher.backlogs.reserve import Reserve

__all__ = ["Backlog", "Held", "MemoryBacklog", "Reserve", "UnreadableMessage"]
