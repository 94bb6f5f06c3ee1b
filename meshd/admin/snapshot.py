"""Status values of each part to the views that the control socket shows. Pure.

A view declares what programs read. What a part calls the same is taken as it is (`view_of`); the functions
here give the rest: ids as text with the names of nodes, dates for loop times. Times are rounded when they are
written (status.py). `wall` is Unix time now, `now` loop time now.

Presents the network facts as `meshd netcheck` shows them.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import TypeVar, cast, get_args

from meshd.admin.api import ExposedView, NatView, NetcheckReply, PortMappingView, ProblemView
from meshd.admin.status import ChildView, DeviceView, LinkView, PathName, PeerView, TunnelView
from meshd.identity.keys import PeerId
from meshd.model.device_speed import ReferenceRates
from meshd.model.status import LentMemory
from meshd.netcheck.advice import advise, nat_class, outlook
from meshd.netcheck.interface import NetReport
from meshd.peer.interface import PathStatus, PeerStatus
from meshd.portmap.interface import MapState, MapStatus
from meshd.process.interface import ChildStatus
from meshd.tunnel.interface import ExposedStatus, TunnelStatus
from meshd.wire.lease import OfferedDevice
from meshd.wire.netfacts import Mapped, NetFacts
from meshd.wire.netfacts import Mapping as NatMapping

T = TypeVar("T")
_PATHS = frozenset(get_args(PathName))
NOT_ASKED = MapStatus(state=MapState.OFF)


def view_of(view: type[T], value: object, /, **others: object) -> T:
    """Make a view of `value`: `others`, and each other field that `value` has under the same name."""
    names = [field.name for field in fields(view) if field.name not in others]  # type: ignore[arg-type]
    return view(**{name: getattr(value, name) for name in names if hasattr(value, name)}, **others)


def link_path(path: str) -> PathName:
    """Return the name in JSON; a path that a later version calls otherwise counts as public."""
    return cast(PathName, path) if path in _PATHS else "public"


def link_view(path: PathStatus, *, now: float, wall: float) -> LinkView:
    """Show one path of a peer."""
    return view_of(
        LinkView,
        path,
        kind=path.link.kind,
        path=link_path(path.link.path),
        remote=path.link.remote,
        rtt_ms=None if path.rtt is None else path.rtt * 1000,
        since=wall - (now - path.link.established_at),
        bytes_s=None if path.rate is None else round(path.rate),
    )


def peer_view(peer: PeerStatus, *, now: float, wall: float, draining: Collection[str] = ()) -> PeerView:
    """Show one peer: the selected path is its link, the others stand by."""
    native = peer.native
    links = [link_view(path, now=now, wall=wall) for path in peer.paths if path.selected]
    spare = [link_view(path, now=now, wall=wall) for path in peer.paths if not path.selected]
    return view_of(
        PeerView,
        peer,
        id=str(peer.peer),
        link=links[0] if links else None,
        standby_links=tuple(spare),
        why_not_direct=peer.why_not_direct or None,
        version=peer.software,
        native="" if native is None else f"{native.pin}+{native.sources[:12]}",
        native_protocol="" if native is None else native.protocol,
        state_s=max(0.0, now - peer.since),
        grace_s=float(peer.grace),
        draining=peer.paused and peer.name in draining,
    )


def peer_views(
    peers: Iterable[PeerStatus], *, now: float, wall: float, draining: Collection[str] = ()
) -> tuple[PeerView, ...]:
    """Show all peers, in the order in which `--tensor-split` counts them: by name, then id.

    `draining`: the names of the paused workers that models of this node still use.
    """
    views = (peer_view(peer, now=now, wall=wall, draining=draining) for peer in peers)
    return tuple(sorted(views, key=lambda view: (view.name, view.id)))


def lent_views(lent: Iterable[LentMemory], names: Mapping[PeerId, str]) -> tuple[LentMemory, ...]:
    """Add the names of the heads."""
    called = {str(peer): name for peer, name in names.items()}
    return tuple(replace(lease, head_name=called.get(lease.head, "")) for lease in lent)


def tunnel_views(
    tunnels: Iterable[TunnelStatus], names: Mapping[PeerId, str] = MappingProxyType({})
) -> tuple[TunnelView, ...]:
    """Show forwards in the order given; `names` are those of the peers that are known by one."""
    return tuple(
        view_of(TunnelView, tunnel, peer=str(tunnel.peer), peer_name=names.get(tunnel.peer, ""))
        for tunnel in tunnels
    )


def exposed_view(service: ExposedStatus, names: Mapping[PeerId, str]) -> ExposedView:
    """Show a service of this node."""
    host = f"[{service.host}]" if ":" in service.host else service.host
    return view_of(
        ExposedView,
        service,
        target=f"{host}:{service.port}",
        to=tuple(map(str, service.peers)),
        to_names=tuple(names.get(peer, "") for peer in service.peers),
    )


def device_view(device: OfferedDevice, rates: ReferenceRates, *, age: float) -> DeviceView:
    """Show a device that was listed `age` seconds ago."""
    return view_of(
        DeviceView,
        device,
        listed_s=max(0.0, age),
        weight_bytes_s=rates.weight_bytes_s,
        flops=rates.flops,
    )


def child_views(children: Iterable[ChildStatus]) -> tuple[ChildView, ...]:
    """Show child processes in the order given."""
    return tuple(view_of(ChildView, child, state=str(child.state)) for child in children)


def netcheck_reply(report: NetReport, router: MapStatus, *, now: float, daemon: bool) -> NetcheckReply:
    """Return the reply of netcheck. `now` in loop seconds, as `report.at`."""
    # Names of RFC 5780 in lower case; empty values as null.
    facts = report.facts
    return NetcheckReply(
        udp=facts.udp.name.lower(),
        tcp=facts.tcp.name.lower(),
        nat=NatView(
            kind=nat_class(facts),
            mapping=facts.mapping.name.lower(),
            filtering=facts.filtering.name.lower(),
            ports=facts.ports.name.lower(),
            step=facts.udp_step,
        ),
        tcp_nat=NatView(
            kind=_tcp_class(facts),
            mapping=facts.tcp_mapping.name.lower(),
            filtering="unknown",
            ports=facts.tcp_ports.name.lower(),
            step=facts.tcp_step,
        ),
        ipv6=facts.ipv6.name.lower(),
        hairpin=facts.hairpin.name.lower(),
        public_v4=facts.public_v4 or None,
        public_v6=report.seen_v6 or None,
        carrier_nat=facts.carrier_nat,
        port_mapping=_port_mapping(router),
        direct=outlook(facts, servers=report.servers, unresolved=report.unresolved),
        problems=tuple(
            view_of(ProblemView, problem)
            for problem in advise(facts, servers=report.servers, unresolved=report.unresolved)
        ),
        servers=report.servers,
        age_s=round(max(0.0, now - report.at), 1),
        daemon=daemon,
    )


def mapped(router: MapStatus) -> tuple[Mapped, str]:
    """Return the state of port mapping for netcheck, and the router's outer address or nothing."""
    states = {
        MapState.MAPPED: Mapped.YES,
        MapState.OFFERED: Mapped.YES,  # a daemon would ask for it
        MapState.BEHIND_NAT: Mapped.BEHIND_NAT,
        MapState.SILENT: Mapped.NO,
        MapState.REFUSED: Mapped.NO,
        MapState.NO_GATEWAY: Mapped.NO,
    }
    state = states.get(router.state, Mapped.UNKNOWN)
    if router.verified is False:
        state = Mapped.BEHIND_NAT
    return state, router.external or ""


def _port_mapping(router: MapStatus) -> PortMappingView:
    return view_of(
        PortMappingView,
        router,
        state=str(router.state),
        language=None if router.language is None else str(router.language),
        mappings=tuple(map(str, router.mappings)),
    )


def _tcp_class(facts: NetFacts) -> str:
    return {
        NatMapping.UNKNOWN: "unknown",
        NatMapping.NONE: "none",
        NatMapping.INDEPENDENT: "endpoint-independent",
    }.get(facts.tcp_mapping, "symmetric")
