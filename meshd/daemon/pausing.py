"""`meshd pause`, `drain` and `resume`. A pause is stored in the home, so it survives a restart."""

from typing import Protocol

from meshd.base.errors import UserError
from meshd.identity.keystore import Home
from meshd.worker.worker_options import Pause

_BLOB = "paused"


class PausedMember(Protocol):
    """The member that announces a pause to the mesh (peer/local_member.py)."""

    def pause(self, *, paused: bool) -> None: ...


def was_paused(home: Home) -> bool:
    """Return True if this node was paused when it last ran."""
    return bool(home.read_blob(_BLOB))


class Pausing:
    """The pause of a node. `pause`: the role's pause; None if the role lends nothing."""

    def __init__(self, home: Home, local: PausedMember, pause: Pause | None) -> None:
        """Begin paused if the node was paused when it last ran."""
        self._home = home
        self._local = local
        self._pause = pause
        if pause is not None and was_paused(self._home):
            pause.begin(end_leases=True)

    @property
    def is_paused(self) -> bool:
        return self._pause is not None and self._pause.is_on

    def begin(self, *, end_leases: bool) -> None:
        """Pause, also after a restart. Raises UserError on a node that lends nothing."""
        pause = self._lent()
        self._home.write_blob(_BLOB, b"1")
        self._local.pause(paused=True)
        pause.begin(end_leases=end_leases)

    def end(self) -> None:
        """Resume. Raises UserError on a node that lends nothing."""
        pause = self._lent()
        self._home.write_blob(_BLOB, b"")
        pause.end()
        self._local.pause(paused=False)

    def _lent(self) -> Pause:
        if self._pause is None:
            raise UserError(
                "this node lends no devices, so there is nothing to pause",
                hint="run it on a worker; `meshd stop` ends this node",
            )
        return self._pause
