"""Detect a mesh-server that reports no progress although it must: it hangs or is suspended.

The head cannot tell a hung server from a silent path, for which it waits as long as `--grace` says.
"""

from meshd.rpc.mesh_protocol import HUNG_SECONDS

LOOK_SECONDS = 1.0


class ChildSilence:
    """Count a mesh-server's silence (implements tunnel.interface.Flow).

    Silence is counted in looks, not measured by a clock, so a daemon that was suspended itself accuses no
    server.
    """

    def __init__(self) -> None:
        self._answered = 0  # bytes at the last look
        self._peer_waits = False
        self._silent = 0.0  # seconds

    def peer_waits(self, waits: bool) -> None:
        """Note whether the peer currently fails to take what the server sends."""
        self._peer_waits = waits

    def target_waits(self, waits: bool) -> None:
        """Ignore that the server takes nothing now: it may compute for long."""

    def look(self, answered: int) -> str:
        """Return why the server is given up, or an empty string. Call this every LOOK_SECONDS.

        `answered` is the number of bytes that the server has sent so far. Before the server's first message,
        WELCOME, silence does not count: the head does the waiting.
        """
        said, self._answered = answered != self._answered, answered
        if said or not answered or self._peer_waits:
            self._silent = 0.0
            return ""
        self._silent += LOOK_SECONDS
        return (
            f"it hangs: it has said nothing for {self._silent:.0f} s" if self._silent > HUNG_SECONDS else ""
        )
