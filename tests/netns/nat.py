"""Rules of nftables for the kinds of NAT and firewall that people have. Text in, text out.

A router's outer interface is called `wan`, its inner one (a bridge) `lan`. What the words mean, RFC 4787:
a *mapping* is the outer port that a flow from inside gets; *filtering* is who may answer to it.

| Nat | UDP mapping | UDP filtering | TCP |
|---|---|---|---|
| FULL_CONE | one for each inner port, kept | anybody | as PORT_RESTRICTED |
| ADDRESS_RESTRICTED | the same | addresses that were sent to | as PORT_RESTRICTED |
| PORT_RESTRICTED | the same | address and port that was sent to | the same |
| PORT_NOT_KEPT | one for each inner port, another number | address and port | the same |
| SYMMETRIC_RANDOM | a random one for each remote address and port | address and port | the same |
| SYMMETRIC_COUNTING | the next number for each flow | address and port | the same |
"""

from dataclasses import dataclass
from enum import StrEnum


class Nat(StrEnum):
    """The rules by which a router translates."""

    FULL_CONE = "full cone"
    ADDRESS_RESTRICTED = "address-restricted"
    PORT_RESTRICTED = "port-restricted"
    PORT_NOT_KEPT = "port-restricted, port not kept"
    SYMMETRIC_RANDOM = "symmetric, random"
    SYMMETRIC_COUNTING = "symmetric, counting"


class Passes(StrEnum):
    """The packets that a router lets out."""

    ALL = "all"
    NO_UDP = "no udp"
    ONLY_443 = "only tcp 443"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterRules:
    """`outer` is the router's own address outside, `inner` the network inside (`192.168.1.0/24`).

    `hairpin`: hosts inside reach each other by their outer addresses. `rejects`: an unexpected SYN from
    outside is answered by RST, as some routers do, and not dropped. `crossing`: a SYN passes inward where one
    went out before (simultaneous open, RFC 5382 REQ-2); a router without it lets only a SYN-ACK in.
    """

    nat: Nat
    outer: str
    inner: str
    passes: Passes = Passes.ALL
    hairpin: bool = False
    rejects: bool = False
    crossing: bool = True

    def text(self) -> str:
        """The whole ruleset of an IPv4 router; what was loaded before is gone."""
        return f"flush ruleset\n{self._nat()}\n{self._filter()}"

    def _target(self) -> str:
        """Where the source address goes."""
        match self.nat:
            case Nat.PORT_NOT_KEPT:  # a hash of the inner address and port, not of the other end
                return f"{self.outer}:jhash ip saddr . th sport mod {PORTS} seed 0x2b map @ports"
            case Nat.SYMMETRIC_RANDOM:
                return f"{self.outer} random,fully-random"
            case Nat.SYMMETRIC_COUNTING:
                return f"{self.outer}:numgen inc mod {PORTS} map @ports"
            case _:
                return self.outer  # conntrack keeps the port as long as no two hosts inside share one

    def _nat(self) -> str:
        before, note = [], []
        if self.nat is Nat.FULL_CONE:
            before.append('iifname "wan" meta l4proto udp dnat ip to udp dport map @anybody')
        if self.nat is Nat.ADDRESS_RESTRICTED:
            before.append('iifname "wan" meta l4proto udp dnat ip to ip saddr . udp dport map @known')
            note.append(
                'oifname "wan" meta l4proto udp update @known { ip daddr . udp sport : '
                "ct original ip saddr . ct original proto-src }"
            )
        if self.nat is Nat.FULL_CONE or self.hairpin:
            note.append(
                'oifname "wan" meta l4proto udp update @anybody { udp sport : '
                "ct original ip saddr . ct original proto-src }"
            )
        after = [f'oifname "wan" meta l4proto {{ tcp, udp }} snat to {self._target()}']
        after.append(f'oifname "wan" snat to {self.outer}')  # ping
        if self.hairpin:
            turned = f'iifname "lan" ip daddr {self.outer}'
            before.append(f"{turned} meta l4proto udp dnat ip to udp dport map @anybody")
            before.append(f"{turned} meta l4proto tcp dnat ip to tcp dport map @anybody_tcp")
            note.append(
                'oifname "wan" meta l4proto tcp update @anybody_tcp { tcp sport : '
                "ct original ip saddr . ct original proto-src }"
            )
            after.append(
                f'oifname "lan" ct status dnat ct original ip saddr {self.inner} '
                f"meta l4proto {{ tcp, udp }} snat to {self._target()}"
            )
        ports = _PORTS if "@ports" in self._target() else ""
        return _NAT.format(ports=ports, before=_lines(before), note=_lines(note), after=_lines(after))

    def _filter(self) -> str:
        outward = {
            Passes.ALL: ['iifname "lan" oifname "wan" accept'],
            Passes.NO_UDP: ["meta l4proto udp drop", 'iifname "lan" oifname "wan" accept'],
            Passes.ONLY_443: ['iifname "lan" oifname "wan" tcp dport 443 accept'],
        }[self.passes]
        inward = [f'iifname "lan" ip daddr {self.outer} drop', 'iifname "lan" accept']
        if self.rejects:
            inward.append('iifname "wan" meta l4proto tcp reject with tcp reset')
        turned = ['iifname "lan" oifname "lan" ct status dnat accept'] if self.hairpin else []
        crossed = [] if self.crossing else [_DROPS_CROSSING]
        return _FILTER.format(
            inward=_lines(inward),
            onward=_lines([*crossed, *outward, 'iifname "wan" ct status dnat accept', *turned]),
        )


_DROPS_CROSSING = 'iifname "wan" ct direction reply tcp flags & (syn | ack) == syn drop'
MAPS = ("anybody", "anybody_tcp", "known")  # what these rules remember beside conntrack's flows
PORTS = 8192  # outer ports of the NATs that choose them
FIRST_PORT = 40000
# A number as such would be taken for a port in the byte order of this machine, and count in steps of 256.
_PORTS = (
    "  map ports { typeof numgen inc mod 2 : tcp dport; elements = {"
    + ",\n".join(f"{number} : {FIRST_PORT + number}" for number in range(PORTS))
    + "} }"
)

_NAT = """
table ip nat {{
{ports}
  map anybody {{
    type inet_service : ipv4_addr . inet_service; flags dynamic,timeout; size 65535; timeout 300s;
  }}
  map anybody_tcp {{
    type inet_service : ipv4_addr . inet_service; flags dynamic,timeout; size 65535; timeout 300s;
  }}
  map known {{
    type ipv4_addr . inet_service : ipv4_addr . inet_service; flags dynamic,timeout; size 65535; timeout 300s;
  }}
  chain before {{ type nat hook prerouting priority dstnat; policy accept;
{before}
  }}
  chain after {{ type nat hook postrouting priority srcnat; policy accept;
{after}
  }}
  chain note {{ type filter hook postrouting priority srcnat + 10; policy accept;
{note}
  }}
}}"""

# What nobody asked for is dropped before it becomes a connection: a router that kept it would give the next
# flow from inside another port.
_FILTER = """
table inet filter {{
  chain input {{ type filter hook input priority filter; policy drop;
    iifname "lo" accept
    ct state established,related accept
    icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit }} accept
{inward}
  }}
  chain forward {{ type filter hook forward priority filter; policy drop;
{onward}
    ct state established,related accept
  }}
}}"""


def v6_firewall() -> str:
    """A router of global IPv6 addresses that lets in only what answers."""
    return "flush ruleset\n" + _FILTER.format(
        inward=_lines(['iifname "lan" accept']), onward=_lines(['iifname "lan" oifname "wan" accept'])
    )


def host_firewall() -> str:
    """A host that does not answer uninvited packets: no RST, no ICMP, nothing."""
    return _HOST


_HOST = """flush ruleset
table inet filter {
  chain input { type filter hook input priority filter; policy drop;
    iifname "lo" accept
    ct state established,related accept
    icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-advert } accept
  }
}"""


def _lines(rules: list[str]) -> str:
    return "\n".join(f"    {rule}" for rule in rules)
