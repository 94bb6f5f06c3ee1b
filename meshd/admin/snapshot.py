"""Status values of each part to the views that the control socket shows. Pure.

`wall` is Unix time now, `now` loop time now: what happened at a loop time is shown as a date.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from meshd.admin.api import ExposedView
from meshd.admin.status import (
    ChildView,
    DeviceView,
    LinkView,
    MdnsState,
    MdnsView,
    PathName,
    PeerStateName,
    PeerView,
    TunnelView,
)
from meshd.identity.keys import PeerId
from meshd.model.reference_layer import ReferenceRates
from meshd.model.status import LentMemory
from meshd.peer.interface import PathStatus, PeerState, PeerStatus
from meshd.process.interface import ChildStatus
from meshd.rendezvous.interface import MdnsStatus
from meshd.tunnel.interface import ExposedStatus, TunnelStatus
from meshd.wire.lease import OfferedDevice

_STATES: Mapping[PeerState, PeerStateName] = {
    PeerState.KNOWN: "known",
    PeerState.CONNECTING: "connecting",
    PeerState.CONNECTED: "connected",
    PeerState.SUSPENDED: "suspended",
    PeerState.LOST: "lost",
}
_PATHS: Mapping[str, PathName] = {
    "loopback": "loopback",
    "lan": "lan",
    "public": "public",
    "mapped": "mapped",
    "punched": "punched",
    "relayed": "relayed",
}


def link_path(path: str) -> PathName:
    """The name in JSON; what a later version may call otherwise counts as public."""
    return _PATHS.get(path, "public")


def link_view(path: PathStatus, *, now: float, wall: float) -> LinkView:
    """One path of a peer."""
    return LinkView(
        kind=path.link.kind,
        path=link_path(path.link.path),
        remote=path.link.remote,
        rtt_ms=None if path.rtt is None else round(path.rtt * 1000, 3),
        since=round(wall - (now - path.link.established_at), 3),
        sent_bytes=path.sent_bytes,
        received_bytes=path.received_bytes,
        bytes_s=None if path.rate is None else round(path.rate),
    )


def peer_view(peer: PeerStatus, *, now: float, wall: float) -> PeerView:
    """One peer: the selected path is its link, the others stand by."""
    selected = [path for path in peer.paths if path.selected]
    others = [path for path in peer.paths if not path.selected]
    link = link_view(selected[0], now=now, wall=wall) if selected else None
    native = peer.native
    return PeerView(
        id=str(peer.peer),
        name=peer.name,
        role=peer.role,
        state=_STATES[peer.state],
        link=link,
        standby_links=tuple(link_view(path, now=now, wall=wall) for path in others),
        why_not_direct=peer.why_not_direct or None,
        resumes=peer.resumes,
        version=peer.software,
        native="" if native is None else f"{native.pin}+{native.sources[:12]}",
        native_protocol="" if native is None else native.protocol,
        state_s=round(max(0.0, now - peer.since), 3),
        last_error=peer.last_error,
        says_banned=peer.says_banned,
        grace_s=float(peer.grace),
        stopped=peer.stopped,
        present=peer.present,
        faults=peer.faults,
        last_fault=peer.last_fault,
        paused=peer.paused,
    )


def peer_views(peers: Iterable[PeerStatus], *, now: float, wall: float) -> tuple[PeerView, ...]:
    """All peers, in the order in which `--tensor-split` counts them: by name, then id."""
    views = (peer_view(peer, now=now, wall=wall) for peer in peers)
    return tuple(sorted(views, key=lambda view: (view.name, view.id)))


def lent_views(lent: Iterable[LentMemory], names: Mapping[PeerId, str]) -> tuple[LentMemory, ...]:
    """With the names of the heads."""
    called = {str(peer): name for peer, name in names.items()}
    return tuple(replace(one, head_name=called.get(one.head, "")) for one in lent)


def tunnel_views(
    tunnels: Iterable[TunnelStatus], names: Mapping[PeerId, str] = MappingProxyType({})
) -> tuple[TunnelView, ...]:
    """Forwards in the order given; `names` are those of the peers that are known by one."""
    return tuple(
        TunnelView(
            peer=str(t.peer),
            service=t.service,
            listen=t.listen,
            streams=t.streams,
            sent_bytes=t.sent_bytes,
            received_bytes=t.received_bytes,
            user=t.user,
            last_error=t.last_error,
            peer_name=names.get(t.peer, ""),
        )
        for t in tunnels
    )


def exposed_view(service: ExposedStatus, names: Mapping[PeerId, str]) -> ExposedView:
    """A service of this node."""
    host = f"[{service.host}]" if ":" in service.host else service.host
    return ExposedView(
        name=service.name,
        target=f"{host}:{service.port}",
        to=tuple(map(str, service.peers)),
        to_names=tuple(names.get(peer, "") for peer in service.peers),
        streams=service.streams,
        sent_bytes=service.sent_bytes,
        received_bytes=service.received_bytes,
    )


def device_view(device: OfferedDevice, rates: ReferenceRates, *, age: float) -> DeviceView:
    """A device that was listed `age` seconds ago."""
    return DeviceView(
        name=device.name,
        kind=device.kind,
        description=device.description,
        free_bytes=device.free_bytes,
        total_bytes=device.total_bytes,
        listed_s=round(max(0.0, age), 3),
        weight_bytes_s=rates.weight_bytes_s,
        flops=rates.flops,
    )


def mdns_view(status: MdnsStatus | None) -> MdnsView:
    """None: it is switched off, or this node listens on loopback only."""
    if status is None:
        return MdnsView(state="off")
    state: MdnsState = "silent" if status.silent else "heard" if status.heard else "looking"
    return MdnsView(state=state, networks=status.networks, members=status.members, why=status.why)


def child_views(children: Iterable[ChildStatus]) -> tuple[ChildView, ...]:
    """Child processes in the order given."""
    return tuple(
        ChildView(name=c.name, pid=c.pid, state=str(c.state), restarts=c.restarts, reason=c.reason)
        for c in children
    )
