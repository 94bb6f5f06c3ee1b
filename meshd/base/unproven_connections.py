"""Unauthenticated connections: limited in number and time.

Anybody can connect, so at most 32 such connections exist at once, and at most 8 from one address. Beyond that
the oldest is closed: an attacker who opens connections and stays silent only displaces its own, because an
honest dialler needs only some milliseconds.
"""

import ipaddress
from collections.abc import Callable

from meshd.base.peer_limits import STRANGERS, STRANGERS_OF_ADDRESS

MAX_UNPROVEN = STRANGERS.most
MAX_UNPROVEN_OF_ONE = STRANGERS_OF_ADDRESS.most


class UnprovenConnections:
    """Connections that have proven nothing yet, in order of arrival; each comes with what closes it."""

    def __init__(self, *, most: int = MAX_UNPROVEN, most_of_one: int = MAX_UNPROVEN_OF_ONE) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._waiting: dict[object, tuple[str, Callable[[], None]]] = {}  # oldest first
        self.sent_away = 0  # so far

    def __len__(self) -> int:
        return len(self._waiting)

    def arrive(self, guest: object, *, host: str, send_away: Callable[[], None]) -> None:
        """Take `guest` in, sending the oldest away (its own neighbours first) if there is no room."""
        place = origin(host)
        same = [other for other, (where, _) in self._waiting.items() if where == place]
        if len(same) >= self._most_of_one:
            self._send_away(same[0])
        elif len(self._waiting) >= self._most:
            self._send_away(next(iter(self._waiting)))
        self._waiting[guest] = (place, send_away)

    def leave(self, guest: object) -> None:
        """`guest` has proven itself or is gone."""
        self._waiting.pop(guest, None)

    def _send_away(self, guest: object) -> None:
        _, send_away = self._waiting.pop(guest)
        self.sent_away += 1
        send_away()


def origin(host: str) -> str:
    """What counts as one address: an IPv6 host owns its whole /64, so it could come from any of it."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
    return str(address)
