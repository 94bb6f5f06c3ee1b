"""Which connections two networks allow, and why there is no direct path. Pure."""

from dataclasses import dataclass
from enum import IntEnum

from meshd.wire.netfacts import DEPENDING, Filtering, Mapped, Mapping, NetFacts, Ports, Tcp, Udp


class Likelihood(IntEnum):
    """The likelihood that a kind of connection works; greater is better."""

    NO = 0
    HARD = 1  # by prediction of ports, or by many sockets: seconds, and not always
    MAYBE = 2  # facts are missing
    YES = 3


@dataclass(frozen=True, slots=True)
class Reachability:
    """The ways worth trying between two nodes, besides a relay."""

    udp: Likelihood
    tcp: Likelihood


def reachability(mine: NetFacts, theirs: NetFacts) -> Reachability:
    """Return the same from both sides. Addresses in one LAN are always worth a try, and not
    considered here.
    """
    return Reachability(_udp(mine, theirs), _tcp(mine, theirs))


def _udp(a: NetFacts, b: NetFacts) -> Likelihood:
    if Udp.BLOCKED in (a.udp, b.udp):
        return Likelihood.NO
    if a.public or b.public:
        return Likelihood.YES
    if Mapping.UNKNOWN in (a.mapping, b.mapping):
        return Likelihood.MAYBE
    if not a.symmetric and not b.symmetric:
        return Likelihood.YES
    if a.symmetric and b.symmetric:
        return Likelihood.HARD if a.ports is Ports.COUNTING and b.ports is Ports.COUNTING else Likelihood.NO
    straight = b if a.symmetric else a
    if straight.filtering in (Filtering.INDEPENDENT, Filtering.ADDRESS):
        return Likelihood.YES
    return Likelihood.HARD


def _tcp(a: NetFacts, b: NetFacts) -> Likelihood:
    if a.mapped is Mapped.YES or b.mapped is Mapped.YES:
        return Likelihood.YES
    if {a.tcp, b.tcp} & {Tcp.BLOCKED, Tcp.ONLY_443, Tcp.INTERCEPTED}:
        return Likelihood.NO
    known = [facts.tcp_mapping for facts in (a, b) if facts.tcp_mapping is not Mapping.UNKNOWN]
    if len(known) < 2:
        return Likelihood.MAYBE
    depending = [mapping for mapping in known if mapping in DEPENDING]
    if not depending:
        return Likelihood.YES
    return Likelihood.HARD if len(depending) == 1 else Likelihood.NO


def why_not_direct(mine: NetFacts, theirs: NetFacts | None, *, last_error: str = "") -> str:
    """Return one sentence for people, lower case and without a full stop. `theirs` None: the peer has not
    told.

    `last_error` is how the last direct attempt ended: shown where the networks themselves give no reason.
    """
    # One network alone may rule everything out.
    for who, facts in (("this node", mine), ("the peer", theirs)):
        if facts is not None and (reason := _alone(who, facts)):
            return reason
    if theirs is None:
        return _still_trying("the peer has not reported its network", last_error)
    # Else the two together may, or make it unlikely.
    possible = reachability(mine, theirs)
    if max(possible.udp, possible.tcp) is Likelihood.NO:
        return _never(mine, theirs)
    if max(possible.udp, possible.tcp) is Likelihood.HARD:
        harder = "this node is" if mine.symmetric else "the peer is"
        return _still_trying(
            f"{harder} behind a NAT that uses a different port for each destination, which must be "
            "searched for",
            last_error,
        )
    # Else it should work: name what is most likely in the way.
    if mine.public_v4 and mine.public_v4 == theirs.public_v4:
        return _still_trying(
            f"both are behind the same address `{mine.public_v4}`, and its router does not support "
            "hairpinning",
            last_error,
        )
    if Udp.BLOCKED in (mine.udp, theirs.udp):
        who = "this node" if mine.udp is Udp.BLOCKED else "the peer"
        return _still_trying(f"{who}'s network blocks UDP, which leaves only TCP", last_error)
    return _still_trying("both networks allow a direct path", last_error)


def _alone(who: str, facts: NetFacts) -> str:
    """Return the reason of a network that rules out everything, whatever the other one is; else nothing."""
    if facts.tcp is Tcp.INTERCEPTED and facts.udp is not Udp.WORKS:
        return f"something on {who}'s network intercepts connections: log in to that network first"
    if facts.udp is Udp.BLOCKED and facts.tcp is Tcp.ONLY_443:
        return f"{who}'s network allows only TCP to port 443: use a relay on that port"
    return ""


def _never(mine: NetFacts, theirs: NetFacts) -> str:
    if Udp.BLOCKED in (mine.udp, theirs.udp):
        who = "this node" if mine.udp is Udp.BLOCKED else "the peer"
        return f"{who}'s network blocks UDP, and the NATs in between allow no incoming TCP"
    return (
        "both sides are behind NATs that use a different port for each destination, so no port "
        "can be predicted"
    )


def _still_trying(reason: str, last_error: str) -> str:
    if last_error:
        return f"{reason}; the last attempt failed: {last_error}"
    return f"{reason}; retrying"
