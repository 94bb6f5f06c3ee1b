"""Decides when to renew, when to check, and how to interpret a router's answers. Times are loop seconds.
Pure.

RFC 6887, 8.5 and 11.2.1; RFC 6886, 3.3 and 3.6.
"""

import ipaddress
from dataclasses import dataclass

from meshd.portmap.interface import Pulse
from meshd.wire.portmap import Granted

LIFETIME = 7200  # seconds asked for: RFC 6886, 3.3 recommends two hours
PULSE_SECONDS = 120.0  # how often a router is asked whether it remembers; a restart is found within this
SHORTEST_LIFETIME = 120  # a shorter grant is renewed as if it were this long, or the router drowns in us
RETRY_FIRST = 15.0  # after a failed renewal; doubles
RETRY_MOST = 900.0
SEARCH_AGAIN = 1200.0  # when no router answered: another look, for somebody may switch it on

# Not reachable from outside (RFC 6890), in words. Documentation prefixes are not among them: nobody has them.
_INSIDE: tuple[tuple[ipaddress.IPv4Network, str], ...] = tuple(
    (ipaddress.IPv4Network(network), why)
    for network, why in (
        ("100.64.0.0/10", "the provider shares one address among customers (carrier-grade NAT)"),
        ("192.0.0.0/24", "the provider has no IPv4 of its own for this line (DS-Lite)"),
        ("10.0.0.0/8", "another router is between it and the internet"),
        ("172.16.0.0/12", "another router is between it and the internet"),
        ("192.168.0.0/16", "another router is between it and the internet"),
        ("169.254.0.0/16", "it has no address from its provider"),
        ("0.0.0.0/8", "it has no address from its provider"),
        ("127.0.0.0/8", "it reports its own internal address"),
        ("224.0.0.0/3", "it reports an impossible address"),
    )
)


def why_not_outside(host: str) -> str | None:
    """Return why a router's outer address cannot be reached from outside; None: it is public."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "it reports no address"
    if isinstance(address, ipaddress.IPv6Address):
        return None if address.is_global else "it reports an impossible address"
    return next((why for network, why in _INSIDE if address in network), None)


@dataclass(frozen=True, slots=True)
class Beat:
    """A router's epoch, and when it was read."""

    epoch: int
    at: float


def forgot(before: Beat | None, after: Beat) -> bool:
    """Return True when the router was restarted between two signs of life (RFC 6887, 8.5).

    Its clock may run wrong by a sixteenth, and 2 s more.
    """
    if before is None:
        return False
    if after.epoch < before.epoch - 1:
        return True
    ours, theirs = after.at - before.at, float(after.epoch - before.epoch)
    return ours + 2 < theirs - theirs / 16 or theirs + 2 < ours - ours / 16


@dataclass(frozen=True, slots=True)
class PortLease:
    """One mapping that is held: `due` is when to renew it, `ends` when the router drops it."""

    granted: Granted
    due: float
    ends: float
    failures: int = 0


def begin(granted: Granted, now: float) -> PortLease:
    """Return a lease just granted: to be renewed at half its life."""
    life = max(min(granted.lifetime, LIFETIME), SHORTEST_LIFETIME)
    return PortLease(granted, now + life / 2, now + max(granted.lifetime, SHORTEST_LIFETIME))


def failed(lease: PortLease, now: float) -> PortLease:
    """Return the lease after a failed renewal: try again with exponential back-off."""
    pause = min(RETRY_MOST, RETRY_FIRST * 2.0 ** min(lease.failures, 16))
    return PortLease(lease.granted, now + pause, lease.ends, lease.failures + 1)


def moved(held: list[Granted], pulse: Pulse) -> bool:
    """Return True when the router has another outer address than at the time of the mappings."""
    return bool(pulse.external_host) and any(
        granted.external_host and granted.external_host != pulse.external_host for granted in held
    )
