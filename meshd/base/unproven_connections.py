"""Unauthenticated connections: limited in number and time.

Anybody can connect. So connections that have proven nothing are kept in three lots that displace only their
own: strangers; callers whose first bytes show that they know the mesh; and callers from addresses where a
member has proven itself lately. When a lot is full, the network (IPv4 /24, IPv6 /48) with most connections
in it loses one, of the address with most. Somebody with one address, or one network, displaces only itself.
Somebody with many displaces an older stranger: an honest caller shows its mark within milliseconds.
"""

import ipaddress
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache

from meshd.base.peer_limits import STRANGERS, STRANGERS_OF_ADDRESS

MAX_UNPROVEN = STRANGERS.most
MAX_UNPROVEN_OF_ONE = STRANGERS_OF_ADDRESS.most


class Standing(Enum):
    """The trust in a connection that has proven nothing yet. Each standing has its own places."""

    STRANGER = auto()
    MARKED = auto()
    KNOWN_ADDRESS = auto()


@dataclass(slots=True)
class _Guest:
    address: str
    network: str
    send_away: Callable[[], None]


class UnprovenConnections:
    """Connections that have proven nothing yet, each with a callback that closes it.

    `most` and `most_of_one` hold for each standing. `below(n)` returns a random number from 0 to n - 1.
    """

    def __init__(
        self,
        *,
        most: int = MAX_UNPROVEN,
        most_of_one: int = MAX_UNPROVEN_OF_ONE,
        below: Callable[[int], int] = secrets.randbelow,
    ) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._below = below
        self._lots: dict[Standing, dict[object, _Guest]] = {
            standing: {} for standing in Standing
        }  # oldest first
        self.sent_away = 0  # so far

    def __len__(self) -> int:
        return sum(map(len, self._lots.values()))

    def arrive(
        self,
        guest: object,
        *,
        host: str,
        send_away: Callable[[], None],
        standing: Standing = Standing.STRANGER,
    ) -> None:
        """Take `guest` in; if there is no room, send another of the same standing away."""
        self._place(guest, _Guest(origin(host), _network(host), send_away), self._lots[standing])

    def promote(self, guest: object) -> None:
        """Give `guest`, if it is still here, a place among the marked: it has shown a mark."""
        for standing, lot in self._lots.items():
            if standing is not Standing.MARKED and guest in lot:
                self._place(guest, lot.pop(guest), self._lots[Standing.MARKED])

    def count_from(self, host: str) -> int:
        """Return how many connections from the address of `host` are waiting."""
        address = origin(host)
        return sum(there.address == address for lot in self._lots.values() for there in lot.values())

    def is_crowded_for(self, guest: object) -> bool:
        """Return True if `guest` has a place among strangers, and all their places are taken."""
        strangers = self._lots[Standing.STRANGER]
        return guest in strangers and len(strangers) >= self._most

    def leave(self, guest: object) -> None:
        """Give up the place of `guest`, which has proven itself or is gone."""
        for lot in self._lots.values():
            lot.pop(guest, None)

    def _place(self, guest: object, entry: _Guest, lot: dict[object, _Guest]) -> None:
        same = [other for other, there in lot.items() if there.address == entry.address]
        if len(same) >= self._most_of_one:
            self._send_one_away(same, lot)
        elif len(lot) >= self._most:
            self._send_one_away(_largest_share(lot), lot)
        lot[guest] = entry

    def _send_one_away(self, guests: list[object], lot: dict[object, _Guest]) -> None:
        """Send one of the older half of `guests` away: neither the newest nor a foreseeable one."""
        away = lot.pop(guests[self._below((len(guests) + 1) // 2)])
        self.sent_away += 1
        away.send_away()


def _largest_share(lot: dict[object, _Guest]) -> list[object]:
    """Return the guests of the addresses with most guests in the networks with most guests."""
    networks = Counter(there.network for there in lot.values())
    most = max(networks.values())
    rest = {guest: there for guest, there in lot.items() if networks[there.network] == most}
    addresses = Counter(there.address for there in rest.values())
    most = max(addresses.values())
    return [guest for guest, there in rest.items() if addresses[there.address] == most]


def origin(host: str) -> str:
    """Return the prefix that counts as one address: an IPv6 host can use any address of its /64."""
    return _prefix(host, v4=32, v6=64)


def _network(host: str) -> str:
    """Return the network that one customer of a provider may have: IPv4 /24, IPv6 /48."""
    return _prefix(host, v4=24, v6=48)


@lru_cache(maxsize=1024)
def _prefix(host: str, *, v4: int, v6: int) -> str:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    bits = v4 if address.version == 4 else v6
    if bits == address.max_prefixlen:
        return str(address)
    return str(ipaddress.ip_network((int(address), bits), strict=False))
