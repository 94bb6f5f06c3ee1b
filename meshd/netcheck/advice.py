"""Describe networks in words: their kind, problems, remedies, and which connections two of them allow."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from meshd.wire.netfacts import DEPENDING, Filtering, Mapped, Mapping, NetFacts, Ports, Tcp, Udp

Severity = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Advice:
    """One problem: a stable code, a description, and a hint (may be empty)."""

    code: str
    severity: Severity
    what: str
    hint: str = ""


def nat_class(facts: NetFacts) -> str:
    """Name the NAT in two or three words, as people call them."""
    if facts.udp is Udp.BLOCKED:
        return "UDP blocked"
    match facts.mapping:
        case Mapping.UNKNOWN:
            return "unknown"
        case Mapping.NONE:
            open_ = facts.filtering in (Filtering.INDEPENDENT, Filtering.UNKNOWN)
            return "none (public address)" if open_ else "none, but a firewall"
        case Mapping.INDEPENDENT:
            return {
                Filtering.INDEPENDENT: "full cone",
                Filtering.ADDRESS: "address-restricted",
                Filtering.ADDRESS_PORT: "port-restricted",
                Filtering.UNKNOWN: "endpoint-independent",
            }[facts.filtering]
        case _:
            return {
                Ports.COUNTING: "symmetric, counting",
                Ports.RANDOM: "symmetric, random",
            }.get(facts.ports, "symmetric")


def outlook(facts: NetFacts, *, servers: Sequence[str] = (), unresolved: Sequence[str] = ()) -> str:
    """Say whether peers could be direct: one sentence, lower case, without a full stop.

    `servers` were asked, all but the `unresolved`.
    """
    if facts.public:
        return "any peer can reach this node directly"
    if facts.mapped is Mapped.YES:
        return "any peer can reach this node directly, through the port that the router maps"
    if facts.udp is Udp.BLOCKED:
        if facts.tcp is Tcp.ONLY_443:
            return "only peers or relays with a public address that listen on TCP port 443"
        if facts.tcp_mapping is not Mapping.UNKNOWN and not facts.tcp_symmetric:
            return "peers with a public address, and over TCP those whose NAT is not symmetric"
        return "peers with a public address; others through a relay"
    if facts.mapping is Mapping.UNKNOWN:
        return _why_unknown(servers, unresolved)
    if facts.mapping is Mapping.NONE:
        return "nearly all peers: this node has a public address, but its firewall needs hole punching"
    if not facts.symmetric:
        if facts.filtering in (Filtering.INDEPENDENT, Filtering.ADDRESS):
            return "nearly all peers, even those behind a symmetric NAT"
        return "nearly all peers; those behind a symmetric NAT need some seconds longer, or a relay"
    if facts.ports is Ports.COUNTING:
        return "most peers; some only after a port search, which takes seconds"
    return "peers with an open NAT or a public address; others by a port search, or through a relay"


def _why_unknown(servers: Sequence[str], unresolved: Sequence[str]) -> str:
    if unresolved:
        return f"unknown: {len(unresolved)} of the {len(servers)} servers could not be resolved"
    if not servers:
        return "unknown: no STUN server is asked (`--stun none`)"
    if len(servers) > 1:
        return "unknown: this needs answers from two STUN servers, and fewer came"
    return "unknown: give at least two STUN servers, or one with two addresses"


def advise(facts: NetFacts, *, servers: Sequence[str], unresolved: Sequence[str] = ()) -> tuple[Advice, ...]:
    """Return what is wrong and what to do about it, the worst first."""
    found: list[Advice] = []
    if not servers:
        found.append(
            Advice(
                "no_servers",
                "warning",
                "no servers are configured, so this network is unknown",
                "give STUN servers (--stun HOST:PORT) or a relay (--relay URL)",
            )
        )
    for name in unresolved:
        found.append(Advice("unresolved", "warning", f"cannot resolve `{name}`", "check the name and DNS"))
    found += _blocked(facts, bool(servers), resolved=len(unresolved) < len(servers))
    found += _nat(facts)
    order: tuple[Severity, ...] = ("error", "warning", "info")
    return tuple(sorted(found, key=lambda advice: order.index(advice.severity)))


def _blocked(facts: NetFacts, asked: bool, *, resolved: bool) -> list[Advice]:
    if facts.tcp is Tcp.INTERCEPTED:
        what = "something on this network answers instead of the servers, such as a login page"
        return [Advice("captive", "error", what, "open a web page in a browser and log in to the network")]
    if asked and facts.udp is Udp.UNKNOWN and facts.tcp in (Tcp.UNKNOWN, Tcp.BLOCKED):
        what, hint = (
            "no STUN server or relay answers, over UDP or TCP",
            "check that this machine is online, and the servers' addresses",
        )
        if not resolved:  # nothing was asked: the name server is the likely fault
            what, hint = (
                "no name of a STUN server or relay can be resolved",
                "check that this machine is online, its DNS, and the servers' names",
            )
        return [Advice("offline", "error", what, hint)]
    if facts.udp is Udp.BLOCKED and facts.tcp is Tcp.ONLY_443:
        what = "this network allows only outgoing TCP to port 443"
        return [Advice("only_443", "warning", what, "use a relay that listens on port 443 (--relay URL)")]
    if facts.udp is Udp.BLOCKED:
        what = "this network blocks UDP"
        return [
            Advice(
                "udp_blocked", "warning", what, "allow outgoing UDP in the firewall; TCP is used meanwhile"
            )
        ]
    return []


def _nat(facts: NetFacts) -> list[Advice]:
    found = []
    if facts.symmetric and facts.mapped is not Mapped.YES:
        hint = "enable UPnP, NAT-PMP or PCP on the router, or forward the mesh port; otherwise use a relay"
        what = "the NAT uses a different port for each destination, which makes direct connections hard"
        found.append(Advice("symmetric", "warning", what, hint))
    if facts.carrier_nat:
        what = "there is a second NAT between the router and the internet (the provider's, or another router)"
        hint = (
            "ports mapped on the router cannot be reached from outside; IPv6 or a public address would help"
        )
        found.append(Advice("carrier_nat", "info", what, hint))
    elif facts.mapped is Mapped.NO and facts.mapping not in (Mapping.NONE, Mapping.UNKNOWN):
        what = "the router maps no port for this node"
        hint = "enable UPnP, NAT-PMP or PCP on the router, so that all peers can connect directly"
        found.append(Advice("not_mapped", "info", what, hint))
    if facts.mapping is Mapping.NONE and facts.filtering in (Filtering.ADDRESS, Filtering.ADDRESS_PORT):
        what = "this node has a public address, but a firewall blocks incoming connections"
        found.append(Advice("firewall", "info", what, "allow the mesh port, TCP and UDP, in the firewall"))
    return found


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
