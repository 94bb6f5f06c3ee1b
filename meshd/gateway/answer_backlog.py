"""What waits for an API client that reads slowly, or not at all. Pure.

As long as bytes of an answer wait, it keeps a slot of llama-server that others want.
"""

from meshd.base.peer_limits import API_STUCK_SECONDS

_LEAST_TAKEN = 64 << 10  # in that time, of what waits: 220 bytes a second are enough


class AnswerBacklog:
    """From when writing waits for the client until it goes on; `waiting` bytes at first."""

    def __init__(self, waiting: int) -> None:
        self._waiting = waiting
        self._taken = 0
        self._looks = 0  # not a clock: a daemon that was suspended has not seen who reads

    def is_stuck(self, waiting: int) -> bool:
        """Once a second, with what waits now: whether the client has taken too little for too long."""
        self._taken += max(0, self._waiting - waiting)
        self._waiting = waiting
        self._looks += 1
        if self._taken >= _LEAST_TAKEN:
            self._taken = self._looks = 0
        return self._looks > API_STUCK_SECONDS.most
