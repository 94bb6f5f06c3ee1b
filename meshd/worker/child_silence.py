"""A mesh-server that says nothing, although it has to say how far it is: it hangs, or is frozen.

Its head cannot tell that from a path that is silent, for which it waits as long as `--grace` says.
"""

from meshd.rpc.mesh_protocol import HUNG_SECONDS

LOOK_SECONDS = 1.0


class ChildSilence:
    """See tunnel.interface.Flow. Counted in looks, not measured: who was itself suspended accuses nobody."""

    def __init__(self) -> None:
        self._answered = 0  # bytes at the last look
        self._peer_waits = False
        self._silent = 0.0  # seconds

    def peer_waits(self, waits: bool) -> None:
        """What it says is not taken from it now."""
        self._peer_waits = waits

    def target_waits(self, waits: bool) -> None:
        """It takes nothing now: it may compute for long."""

    def look(self, answered: int) -> str:
        """Called every LOOK_SECONDS; `answered`: bytes that it has said so far. Why it is given up, or empty.

        Before its first word, WELCOME, it is its head that waits.
        """
        said, self._answered = answered != self._answered, answered
        if said or not answered or self._peer_waits:
            self._silent = 0.0
            return ""
        self._silent += LOOK_SECONDS
        return (
            f"it hangs: it has said nothing for {self._silent:.0f} s" if self._silent > HUNG_SECONDS else ""
        )
