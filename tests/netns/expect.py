"""Which pairs of places can be joined directly, and how: by the theory of NATs, not by observation."""

from tests.netns.sites import Kind, Together

SYMMETRIC = frozenset({Kind.SYMMETRIC_RANDOM, Kind.SYMMETRIC_COUNTING})
NO_UDP = frozenset({Kind.NO_UDP, Kind.ONLY_443})
# an answer comes in only from the very address and port that was sent to
NARROW = frozenset(
    {
        Kind.PORT_RESTRICTED,
        Kind.PORT_NOT_KEPT,
        Kind.CARRIER,
        Kind.STEALTH,
        Kind.GUEST,
        Kind.V6,
        Kind.NO_CROSSING,
        *SYMMETRIC,
    }
)


def ways(one: Kind, two: Kind) -> tuple[str, ...]:
    """`tcp` (one of them is dialled), `udp` (punched), `tcp punched`, `predicted` (or by many sockets).

    Empty: only a relay can join them. A public node of the bench listens on TCP 443.
    """
    pair = {one, two}
    if Kind.V6 in pair and not pair <= {Kind.V6, Kind.PUBLIC}:
        return ()  # no address family in common
    if pair == {Kind.GUEST}:
        return ()  # one network whose hosts do not see each other, and no hairpin
    if Kind.PUBLIC in pair:
        return ("tcp",) if pair & NO_UDP else ("tcp", "udp")
    found = []
    hard = bool(pair & SYMMETRIC) and pair <= NARROW
    if not pair & NO_UDP and not hard:
        found.append("udp")
    # one router that lets SYNs cross is enough: the SYN that passes it is answered by a SYN-ACK
    if not pair & SYMMETRIC and Kind.ONLY_443 not in pair and pair != {Kind.NO_CROSSING}:
        found.append("tcp punched")
    if hard and not pair & NO_UDP and not pair <= SYMMETRIC:
        found.append("predicted")
    return tuple(found)


def pairs() -> list[tuple[Kind, Kind]]:
    """Every pair once."""
    kinds = list(Kind)
    return [(one, two) for number, one in enumerate(kinds) for two in kinds[number:]]


def ways_together(kind: Together) -> tuple[str, ...]:
    """As `ways`, for two whose places have to do with each other."""
    match kind:
        case Together.LAN | Together.LAN_WITHOUT_MULTICAST:
            return ("tcp", "udp")
        case Together.CARRIER_HAIRPIN:
            return ("udp", "tcp punched")
        case Together.CARRIER:
            return ()  # the only address that leads from one to the other is the one that does not turn round
        case Together.NAT_IN_NAT:
            return ("tcp",)  # the inner one dials the other's private address
        case Together.SAME_ADDRESS:
            return ("udp", "tcp punched")
