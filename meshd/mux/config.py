"""The configuration of a durable session: limits, times, and the node's memory budget.

Both ends of a session use the same `stream_window` and `session_window`: they are what an end may send
before it has heard any credit.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from meshd.mux.upload import Upload
from meshd.wire.limits import MAX_STREAMS

Side = Literal["leader", "follower"]  # the leader has the even stream ids and says which link carries data


class Priority(IntEnum):
    """The order in which streams use a busy link; the number goes over the wire."""

    INTERACTIVE = 0  # somebody waits for each answer
    BULK = 1  # the total counts


@dataclass(frozen=True, slots=True)
class MuxConfig:
    """Limits in bytes, times in seconds."""

    stream_window: int = 256 << 10  # first window of a stream, both directions
    max_stream_window: int = 8 << 20  # what it may grow to by measured need
    session_window: int = 16 << 20  # unread bytes of all streams together, and our own send buffers likewise
    grace: float = 120.0  # how long a session without a link is kept
    ping_interval: float = 1.5
    dead_after: float = 4.5  # silence, or no proof that the peer hears us, that makes a link dead
    max_streams: int = MAX_STREAMS  # streams that we open at once


class NodeBudget:
    """The budget that all sessions of this node share: the bytes by which their windows may grow beyond their
    first size, and the upload a second (None: as much as the links carry).
    """

    def __init__(self, left: int, upload: Upload | None = None) -> None:
        self.left = left
        self.upload = upload

    def take(self, count: int) -> bool:
        """Take `count` bytes if available; False if not."""
        if count > self.left:
            return False
        self.left -= count
        return True

    def give(self, count: int) -> None:
        """Give back `count` bytes."""
        self.left += count
