"""Decide whether a peer's process has ended, or only the path to it is silent. Pure.

When a process dies, for any reason, its kernel closes its TCP connections, and then refuses new ones at the
port where it listened. A machine or a path that fails does neither: it is silent. None of these signs is
signed, so an attacker on the path can forge them, and a firewall may refuse connections that a living peer
accepts. So several signs have to agree, over a time in which a living peer would have dialled again; and a
peer that comes back as the same process has shown that such signs mean nothing on its path.
"""

import math
from collections.abc import Sequence

from meshd.link.interface import DialFailure, Tried

ASK_SECONDS = (0.3, 2.0, 3.0, 4.0, 6.0)  # after the last link ended: the later ones if this machine is busy
# After the last link ended, at the earliest; a living peer dials again within a fraction of that.
GONE_SECONDS = 2.0
_APART_SECONDS = 1.2  # between two refusals
# On other paths a router answers in the peer's place, and it takes a living peer longer to be back.
_PATHS = ("loopback", "lan", "public")
# A kernel closes the sockets of a dying process one by one: the port may accept a connection and then reset
# it.
_DYING_SECONDS = 1.0  # including the time that a busy machine takes to report
_SLACK_SECONDS = 0.5  # data of another link may arrive so much later than the end of the link that was cut


class Departure:
    """The signs that one peer's process has ended.

    Times are loop seconds; places `host:port`, as in LinkInfo.
    """

    def __init__(self) -> None:
        self._cut: dict[str, float] = {}  # when a link from this host was closed by its kernel
        self._heard = -math.inf
        self._ended: float | None = None
        self._asked = 0
        self._refused_at: float | None = None  # the first time since the end
        self._is_doubted = False
        self._incarnation = b""
        self._declared = b""

    def link_up(self, incarnation: bytes) -> None:
        """Forget all signs: the peer is there. If this process was declared dead, doubt the next ones."""
        self._is_doubted = bool(incarnation) and incarnation == self._declared
        self._incarnation = incarnation
        self._cut.clear()
        self._heard = -math.inf
        self._ended = None

    def link_ended(self, remote: str, path: str, *, cut: bool, heard: float, last: bool, now: float) -> None:
        """Note the end of a link; `remote` and `path` as in LinkInfo.

        `cut`: the far kernel closed it; `heard`: when it last brought bytes; `last`: there is no other link.
        """
        self._heard = max(self._heard, heard)
        if cut and path in _PATHS:
            self._cut[_host(remote)] = now
        if last:
            self._ended, self._asked, self._refused_at = now, 0, None

    @property
    def hosts(self) -> frozenset[str]:
        """The hosts where the peer's port should be tried; empty without such signs, or in doubt."""
        if self._ended is None or self._is_doubted:
            return frozenset()
        return frozenset(host for host, at in self._cut.items() if at >= self._heard - _SLACK_SECONDS)

    @property
    def ask_at(self) -> float | None:
        """The time to dial the peer's addresses at `hosts` next; None: there is nothing to try."""
        if self._ended is None or self._asked == len(ASK_SECONDS) or not self.hosts:
            return None
        return self._ended + ASK_SECONDS[self._asked]

    def asked(self) -> None:
        """Note that the dial of `ask_at` has begun."""
        self._asked += 1

    def tried(self, tried: Sequence[Tried], now: float) -> str:
        """Note how plain TCP dials ended; return why the process has ended, or "" while that is open."""
        # Only places where the peer was count.
        here = [one for one in tried if _host(one.place) in self.hosts]
        if not here or self._ended is None:
            return ""
        # Anything but a refusal means that something still listens there.
        if any(one.failure is not DialFailure.REFUSED for one in here):
            if now - self._ended >= _DYING_SECONDS:
                self._is_doubted = True
            return ""
        # Two refusals, far enough apart, mean that the process has ended.
        if self._refused_at is None:
            self._refused_at = now
        if now - self._ended < GONE_SECONDS or now - self._refused_at < _APART_SECONDS:
            return ""
        self._declared, self._ended = self._incarnation, None
        place = here[0].place
        return f"its process has ended: its machine closed the connection, and `{place}` refuses new ones"


def _host(place: str) -> str:
    """Return the host as in Candidate: without the brackets of IPv6."""
    return place.rpartition(":")[0].strip("[]")
