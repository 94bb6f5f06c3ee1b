"""The kinds of places that people's machines stand in, as the grid pairs them."""

from dataclasses import dataclass
from enum import StrEnum

from tests.netns.nat import Nat, Passes
from tests.netns.wan import Line
from tests.netns.world import Host, Router, World


class Together(StrEnum):
    """Two hosts whose places have to do with each other."""

    LAN = "one LAN"
    LAN_WITHOUT_MULTICAST = "one LAN, multicast filtered"
    CARRIER = "one carrier, no hairpin"
    CARRIER_HAIRPIN = "one carrier, hairpin"
    NAT_IN_NAT = "one home, a router behind the router"
    SAME_ADDRESS = "two homes, the same private address"


class Kind(StrEnum):
    """One host somewhere. CARRIER: a home router behind a second one. STEALTH: NAT and a host that hides.

    NO_CROSSING: a router that refuses simultaneous TCP open.
    """

    PUBLIC = "public"
    FULL_CONE = "full cone"
    ADDRESS_RESTRICTED = "address-restr."
    PORT_RESTRICTED = "port-restr."
    PORT_NOT_KEPT = "port not kept"
    SYMMETRIC_RANDOM = "sym. random"
    SYMMETRIC_COUNTING = "sym. counting"
    CARRIER = "carrier"
    NO_UDP = "UDP blocked"
    ONLY_443 = "only TCP 443"
    STEALTH = "stealth"
    V6 = "IPv6 only"
    GUEST = "guest Wi-Fi"
    NO_CROSSING = "no TCP crossing"


NATS = {
    Kind.FULL_CONE: Nat.FULL_CONE,
    Kind.ADDRESS_RESTRICTED: Nat.ADDRESS_RESTRICTED,
    Kind.PORT_RESTRICTED: Nat.PORT_RESTRICTED,
    Kind.PORT_NOT_KEPT: Nat.PORT_NOT_KEPT,
    Kind.SYMMETRIC_RANDOM: Nat.SYMMETRIC_RANDOM,
    Kind.SYMMETRIC_COUNTING: Nat.SYMMETRIC_COUNTING,
}
ONE_PLACE = frozenset({Kind.GUEST})  # a pair of these is two hosts at one place


@dataclass(frozen=True, slots=True)
class Site:
    """`router` is the one next to the host; None for a public host."""

    kind: Kind
    host: Host
    router: Router | None = None

    def forget(self) -> None:
        """The place is as new: no router of it has a mapping of what was before."""
        router = self.router
        while router is not None:
            router.forget()
            router = router.behind

    def neighbour(self, label: str) -> "Site":
        """Another host at the same place."""
        assert self.router is not None
        return Site(self.kind, self.router.host(label, alone=self.kind is Kind.GUEST), self.router)


def site(world: World, kind: Kind, label: str, *, line: Line | None = None) -> Site:
    """Build one, its own line to the core emulated if `line` says how."""
    if kind is Kind.PUBLIC:
        return Site(kind, world.public(label, line=line))
    if kind is Kind.V6:
        router = world.router6(f"{label}-router", line=line)
        return Site(kind, router.host(label), router)
    if kind is Kind.CARRIER:
        carrier = world.router(f"{label}-carrier", Nat.PORT_NOT_KEPT, line=line, carrier=True)
        router = world.router(f"{label}-router", behind=carrier)
        return Site(kind, router.host(label), router)
    passes = {Kind.NO_UDP: Passes.NO_UDP, Kind.ONLY_443: Passes.ONLY_443}.get(kind, Passes.ALL)
    crossing = kind is not Kind.NO_CROSSING
    nat = NATS.get(kind, Nat.PORT_RESTRICTED)
    router = world.router(f"{label}-router", nat, line=line, passes=passes, crossing=crossing)
    host = router.host(label, alone=kind is Kind.GUEST)
    if kind is Kind.STEALTH:
        host.put_up_firewall()
    return Site(kind, host, router)


def together(world: World, kind: Together, label: str) -> tuple[Host, Host]:
    """The founder's host, and the joiner's."""
    match kind:
        case Together.LAN | Together.LAN_WITHOUT_MULTICAST:
            router = world.router(f"{label}-router")
            multicast = kind is Together.LAN
            return router.host(f"{label}-1", multicast=multicast), router.host(
                f"{label}-2", multicast=multicast
            )
        case Together.CARRIER | Together.CARRIER_HAIRPIN:
            hairpin = kind is Together.CARRIER_HAIRPIN
            carrier = world.router(f"{label}-carrier", Nat.PORT_NOT_KEPT, carrier=True, hairpin=hairpin)
            homes = [world.router(f"{label}-home{number}", behind=carrier) for number in (1, 2)]
            return homes[0].host(f"{label}-1"), homes[1].host(f"{label}-2")
        case Together.NAT_IN_NAT:
            outer = world.router(f"{label}-outer")
            inner = world.router(f"{label}-inner", behind=outer)
            return inner.host(f"{label}-1"), outer.host(f"{label}-2")
        case Together.SAME_ADDRESS:
            homes = [world.router(f"{label}-home{number}", lan="192.168.1.") for number in (1, 2)]
            return homes[0].host(f"{label}-1"), homes[1].host(f"{label}-2")
