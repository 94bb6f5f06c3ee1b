"""A small internet: a core, public hosts on it, and routers with hosts behind them. See README.md here.

Addresses are public ones that lead nowhere but here: `20.N.0.0/24` and `2a0e:N::/48` for whatever is the
Nth thing at the core; `192.168.N.0/24` inside the router N; `100.64.0.0/10` inside a carrier.
"""

import itertools
import socket
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.netns import nat
from tests.netns.nat import Nat, Passes, RouterRules
from tests.netns.space import Namespace, sweep
from tests.netns.wan import Line, Wan

UDP_MAPPING_SECONDS = 120  # how long an idle UDP mapping lives; routers in the field: 30 to 300


@dataclass(frozen=True, slots=True)
class Host:
    """`v4`, `v6`: its own addresses. `wan`: the emulator on its own line, if there is one."""

    space: Namespace
    v4: tuple[str, ...] = ()
    v6: tuple[str, ...] = ()
    device: str = "eth0"
    wan: Wan | None = None

    @property
    def address(self) -> str:
        """The first one."""
        return (*self.v4, *self.v6)[0]

    def put_up_firewall(self) -> None:
        """From now on this host answers only those that it asked."""
        self.space.nft(nat.host_firewall())


@dataclass(slots=True)
class _Inside:
    """The inner side of a router: a bridge called `lan` with addresses to give."""

    v4: str  # `192.168.7.`, or empty
    v6: str  # `2a0e:7:0:1::`, or empty
    length: int
    ports: "itertools.count[int]" = field(default_factory=lambda: itertools.count(10))

    @property
    def network(self) -> str:
        return f"{self.v4}0/{self.length}"


class Router:
    """A router; made by `World.router`."""

    def __init__(
        self,
        world: "World",
        space: Namespace,
        *,
        number: int,
        inside: _Inside,
        outer: str,
        wan: Wan | None,
        behind: "Router | None" = None,
    ) -> None:
        self._world = world
        self._inside = inside
        self.space = space
        self.number = number
        self.outer = outer  # IPv4 address outside; empty without IPv4
        self.wan = wan
        self.behind = behind

    def host(self, label: str, *, multicast: bool = True, alone: bool = False) -> Host:
        """A host in the router's LAN. `multicast`: other hosts' multicast (and IPv6 neighbours) reaches it.

        `alone`: the bridge hands nothing on between ports that are alone (guest Wi-Fi).
        """
        space = self._world.space(label)
        number = next(self._inside.ports)
        port = f"p{number}"
        self.space.ip(
            f"link add {port} type veth peer name eth0 netns {space.name}",
            f"link set {port} master lan up",
            f"link set dev {port} type bridge_slave isolated {_switch(alone)}",
            f"link set dev {port} type bridge_slave mcast_flood {_switch(multicast)}",
        )
        v4 = (f"{self._inside.v4}{number}",) if self._inside.v4 else ()
        v6 = (f"{self._inside.v6}{number}",) if self._inside.v6 else ()
        space.ip("link set eth0 up", *_give("eth0", v4, self._inside.length, v6))
        gateways = [f"{net}1" for net in (self._inside.v4, self._inside.v6) if net]
        space.ip(*(f"route add default via {gateway} dev eth0" for gateway in gateways))
        return Host(space, v4, v6)

    def move(self, host: Host) -> Host:
        """Give a host another address of this LAN; the old one is dead at once."""
        number = next(self._inside.ports)
        old = [*(f"addr del {one}/{self._inside.length} dev eth0" for one in host.v4)]
        old += [f"addr del {one}/64 dev eth0" for one in host.v6]
        v4 = (f"{self._inside.v4}{number}",) if host.v4 else ()
        v6 = (f"{self._inside.v6}{number}",) if host.v6 else ()
        host.space.ip(*old, *_give("eth0", v4, self._inside.length, v6))
        nets = [net for net, has in ((self._inside.v4, v4), (self._inside.v6, v6)) if has]
        host.space.ip(*(f"route replace default via {net}1 dev eth0" for net in nets))
        return Host(host.space, v4, v6, host.device, host.wan)

    def load(self, rules: RouterRules) -> None:
        """Other rules from now on. Flows that are there keep their mappings; see `forget`."""
        self.space.nft(rules.text())

    def forget(self) -> None:
        """All mappings are gone, as after a reboot."""
        if self.outer:
            self.space.nft("\n".join(f"flush map ip nat {name}" for name in nat.MAPS))
        self.space.forget_flows()


class World:
    """Context manager: everything made through it goes with it. Not for several threads at once."""

    def __enter__(self) -> Self:
        sweep()
        self._stack = ExitStack()
        self._numbers = itertools.count(1)
        self._names = ""
        self._spaces: list[Namespace] = []
        try:
            self.core = self.space("core")
            self.core.sysctl(_FORWARDS)
            # private addresses lead nowhere, and nobody says so
            private = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")
            self.core.ip(*(f"route add blackhole {net}" for net in private))
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def space(self, label: str) -> Namespace:
        """A namespace with loopback only."""
        space = self._stack.enter_context(Namespace(label))
        space.set_names(self._names)
        self._spaces.append(space)
        return space

    def name(self, name: str, host: Host) -> None:
        """Programs that are started from now on find the host by this name, in both families."""
        self._names += "".join(f"{address} {name}\n" for address in (*host.v4[:1], *host.v6[:1]))
        for space in self._spaces:
            space.set_names(self._names)

    def line(self, near: Namespace, near_device: str, far: Namespace, far_device: str, line: Line) -> Wan:
        """An emulated line between any two namespaces; addresses are the caller's."""
        return self._stack.enter_context(Wan(near, near_device, far, far_device, line=line))

    def public(self, label: str = "public", *, line: Line | None = None, v4: bool = True) -> Host:
        """A host on the core with two addresses of each family (one family without `v4`)."""
        space = self.space(label)
        number = next(self._numbers)
        outer, outer6, wan = self._uplink(space, "eth0", number, line, v4=v4, v6=True, addresses=2)
        return Host(space, outer, outer6, "eth0", wan)

    def router(
        self,
        label: str,
        kind: Nat = Nat.PORT_RESTRICTED,
        *,
        line: Line | None = None,
        behind: Router | None = None,
        passes: Passes = Passes.ALL,
        hairpin: bool = False,
        rejects: bool = False,
        crossing: bool = True,
        carrier: bool = False,
        mapping_seconds: int = UDP_MAPPING_SECONDS,
        lan: str = "",
    ) -> Router:
        """A router of IPv4 at the core, or in the LAN of another (`behind`: NAT behind NAT).

        `carrier`: its inside is 100.64.0.0/10. `line`: an emulated one between it and the core.
        `mapping_seconds`: how long an idle UDP mapping lives. `lan`: the beginning of its inner addresses
        (`192.168.1.`) where two places shall have the same.
        """
        number = next(self._numbers)
        if behind is None:
            space = self.space(label)
            [outer], _, wan = self._uplink(space, "wan", number, line, v4=True, v6=False, addresses=1)
        else:
            assert line is None, "an emulated line leads to the core"
            host = behind.host(label)
            space, [outer], wan = host.space, host.v4, None
            space.ip("link set eth0 down", "link set eth0 name wan", "link set wan up")
            gateway = behind._inside.v4 + "1"
            space.ip(f"route replace default via {gateway} dev wan")
        lan = lan or f"192.168.{number}."
        inside = _Inside("100.64.0.", "", 10) if carrier else _Inside(lan, "", 24)
        self._open_lan(space, inside)
        router = Router(self, space, number=number, inside=inside, outer=outer, wan=wan, behind=behind)
        rules = RouterRules(
            nat=kind,
            outer=outer,
            inner=inside.network,
            passes=passes,
            hairpin=hairpin,
            rejects=rejects,
            crossing=crossing,
        )
        router.load(rules)
        space.sysctl(
            {
                "net/netfilter/nf_conntrack_udp_timeout": str(mapping_seconds),
                "net/netfilter/nf_conntrack_udp_timeout_stream": str(mapping_seconds),
            }
        )
        return router

    def router6(self, label: str, *, line: Line | None = None) -> Router:
        """A router of global IPv6 addresses and nothing else, whose firewall lets in only what answers."""
        number = next(self._numbers)
        space = self.space(label)
        _, _, wan = self._uplink(space, "wan", number, line, v4=False, v6=True, addresses=1)
        inside = _Inside("", f"2a0e:{number}:0:1::", 64)
        self._open_lan(space, inside)
        self.core.ip(f"route add 2a0e:{number}:0:1::/64 via 2a0e:{number}::2")
        space.nft(nat.v6_firewall())
        return Router(self, space, number=number, inside=inside, outer="", wan=wan)

    def _uplink(
        self,
        space: Namespace,
        device: str,
        number: int,
        line: Line | None,
        *,
        v4: bool,
        v6: bool,
        addresses: int,
    ) -> tuple[tuple[str, ...], tuple[str, ...], Wan | None]:
        port = f"c{number}"
        wan = None
        if line is None:
            self.core.ip(f"link add {port} type veth peer name {device} netns {space.name}")
        else:
            wan = self.line(space, device, self.core, port, line)
        mine = range(2, 2 + addresses)
        ours = tuple(f"20.{number}.0.{one}" for one in mine) if v4 else ()
        ours6 = tuple(f"2a0e:{number}::{one}" for one in mine) if v6 else ()
        core = ((f"20.{number}.0.1",) if v4 else (), (f"2a0e:{number}::1",) if v6 else ())
        self.core.ip(f"link set {port} up", *_give(port, core[0], 24, core[1]))
        space.ip(f"link set {device} up", *_give(device, ours, 24, ours6))
        space.ip(*(f"route add default via {one} dev {device}" for side in core for one in side))
        return ours, ours6, wan

    def _open_lan(self, space: Namespace, inside: _Inside) -> None:
        space.sysctl(_FORWARDS)
        v4 = (f"{inside.v4}1",) if inside.v4 else ()
        v6 = (f"{inside.v6}1",) if inside.v6 else ()
        bridged = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
        if bridged.exists():  # where br_netfilter is loaded, a router's rules would hold for its LAN as well
            space.sysctl(
                {"net/bridge/bridge-nf-call-iptables": "0", "net/bridge/bridge-nf-call-ip6tables": "0"}
            )
        space.ip(
            "link add lan type bridge mcast_snooping 0 forward_delay 0",
            "link set lan up",
            *_give("lan", v4, inside.length, v6),
        )


_FORWARDS = {"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1"}


def _switch(on: bool) -> str:
    return "on" if on else "off"


def _give(device: str, v4: tuple[str, ...], length: int, v6: tuple[str, ...]) -> list[str]:
    given = [f"addr add {one}/{length} dev {device}" for one in v4]
    return given + [f"addr add {one}/64 dev {device} nodad" for one in v6]


def family_of(host: str) -> socket.AddressFamily:
    """AF_INET or AF_INET6 of an address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET
