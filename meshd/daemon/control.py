"""The answers of the daemon to each request of admin/api.py on its control socket."""

import asyncio
import os
import resource
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from meshd import __version__
from meshd.admin.api import (
    AcceptReply,
    AcceptRequest,
    BanList,
    BanListRequest,
    Done,
    ForgetReply,
    ForgetRequest,
    InviteList,
    InviteListRequest,
    InviteReply,
    InviteRequest,
    InviteRevokeRequest,
    LeaveRequest,
    PauseRequest,
    PingReply,
    PingRequest,
    ResumeRequest,
    RevokeReply,
    RevokeRequest,
    StatusRequest,
    StopRequest,
    UnbanRequest,
)
from meshd.admin.authority import Authority
from meshd.admin.health import examine
from meshd.admin.models_api import (
    FilesInUseReply,
    FilesInUseRequest,
    MemberModelsReply,
    MemberModelsRequest,
    PullProgressRequest,
    PullReply,
    PullRequest,
    PullStopRequest,
)
from meshd.admin.net_api import NetcheckReply, NetcheckRequest
from meshd.admin.plan_api import CapacityReply, CapacityRequest, PlanReply, PlanRequest, WhyReply, WhyRequest
from meshd.admin.snapshot import (
    child_views,
    device_view,
    lent_views,
    link_path,
    peer_views,
    tunnel_views,
)
from meshd.admin.status import DeviceView, MeshView, NodeView, Status
from meshd.base import log
from meshd.base.errors import UserError
from meshd.daemon.models import ModelExchange
from meshd.daemon.network_state import NetworkState
from meshd.daemon.pausing import Pausing
from meshd.daemon.role_kind import BuiltRole
from meshd.daemon.storage import Storage
from meshd.daemon.tunnels import TunnelAnswers
from meshd.devices.interface import ListedDevices
from meshd.gateway.interface import GatewayStatus
from meshd.identity.invite import RelayHint, Reply
from meshd.identity.keys import PeerId
from meshd.identity.keystore import Home, Membership
from meshd.model.device_speed import DeviceSpeed
from meshd.model.reference_layer import REFERENCE_LAYERS, reference_rates
from meshd.peer.mesh import PeerMesh, UnknownPeer
from meshd.peer.node import Node
from meshd.rendezvous.interface import MdnsStatus
from meshd.rendezvous.open_for_joiners import ACCEPT_SECONDS
from meshd.tunnel.user_tunnels import OwnTunnels
from meshd.wire.address import Candidate

if TYPE_CHECKING:
    from meshd.daemon.planning import Planning

_STATM = Path("/proc/self/statm")


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of the daemon that status and control use."""

    home: Home
    home_path: Path
    membership: Membership
    authority: Authority
    mesh: PeerMesh
    node: Node
    built: Callable[[], BuiltRole]
    """The current role: it changes once its models are fetched."""
    tunnels: OwnTunnels
    mdns: Callable[[], MdnsStatus | None]
    candidates: Callable[[], tuple[Candidate, ...]]
    relays: Sequence[RelayHint]
    accept: Callable[[str], Reply]
    network_state: NetworkState
    planning: "Callable[[], Planning]"
    pausing: Pausing
    models: ModelExchange
    storage: Storage
    gateway: Callable[[], GatewayStatus | None]
    bans_changed: Callable[[], None]
    leave: Callable[[], None]
    stop: Callable[[str], None]


class DaemonControl(TunnelAnswers):
    """Answer the control requests of one daemon."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts.mesh, parts.tunnels)
        self._parts = parts
        self._began = asyncio.get_running_loop().time()

    @StatusRequest.answer
    async def status(self, request: StatusRequest) -> Status:
        # The state of the node and its role.
        parts, now, wall = self._parts, asyncio.get_running_loop().time(), time.time()
        facts = parts.node.facts
        role = parts.built().role.status
        peers = parts.mesh.peers()
        names = self._names()
        view = Status(
            node=NodeView(
                id=str(facts.peer),
                name=facts.name,
                role=facts.role,
                version=__version__,
                pid=os.getpid(),
                uptime_s=now - self._began,
                rss_bytes=resident_bytes(),
                listen=tuple(candidate.place for candidate in parts.candidates()),
                home=str(parts.home_path),
                paused=parts.pausing.is_paused,
            ),
            mesh=MeshView(
                id=str(parts.membership.mesh),
                members=1 + len(peers),
                roles=tuple(sorted(parts.membership.roles)),
            ),
            peers=peer_views(peers, now=now, wall=wall),
            tunnels=tunnel_views((*role.tunnels, *parts.tunnels.opened()), names),
            children=child_views(role.children),
            model=role.model,
            models=role.models,
            api=parts.gateway(),
            mdns=parts.mdns() or MdnsStatus(state="off"),
            store=role.store,
            devices=self._devices(role.listed, now),
            storage=await parts.storage.status(),
            lent=lent_views(role.lent, names),
            fetching=role.fetching,
        )
        # The problems in it, with hints.
        offsets = {str(peer.peer): peer.clock_offset for peer in peers if peer.clock_offset is not None}
        return examine(
            view,
            clock_offsets=offsets,
            native=facts.native,
            file_notes=role.notes,
            refused=role.refused,
            unfit=role.unfit,
            unknown=role.unknown,
            unwritten={**parts.home.keeping.waiting, **log.unwritten()},
        )

    def _devices(self, listed: ListedDevices, now: float) -> tuple[DeviceView, ...]:
        """Return the devices with earlier measurements; nothing is measured now."""
        speeds, found = self._parts.built().speeds, []
        for device in listed.devices:
            times = speeds.known(device, REFERENCE_LAYERS) if speeds is not None else ()
            found.append(device_view(device, reference_rates(DeviceSpeed(times)), age=now - listed.at))
        return tuple(found)

    @PingRequest.answer
    async def ping(self, request: PingRequest) -> PingReply:
        found = self._parts.mesh.find(request.peer)
        rtt, path = await self._parts.mesh.ping(found, request.seconds)
        return PingReply(
            peer=str(found),
            name=next((p.name for p in self._parts.mesh.peers() if p.peer == found), ""),
            rtt_ms=round(rtt * 1000, 3),
            kind=path.link.kind,
            path=link_path(path.link.path),
            remote=path.link.remote,
        )

    @InviteRequest.answer
    async def invite(self, request: InviteRequest) -> InviteReply:
        return self._parts.authority.invite(
            now=int(time.time()),
            expires_s=request.expires_s,
            uses=request.uses,
            roles=request.roles,
            secret=secrets.token_bytes(16),
            candidates=self._parts.candidates(),
            relays=self._parts.relays,
        )

    @AcceptRequest.answer
    async def accept(self, request: AcceptRequest) -> AcceptReply:
        reply = self._parts.accept(request.code)
        return AcceptReply(
            joiner=str(reply.joiner),
            addresses=tuple(one.place for one in reply.candidates),
            seconds=int(ACCEPT_SECONDS),
        )

    @InviteListRequest.answer
    async def invite_list(self, request: InviteListRequest) -> InviteList:
        return self._parts.authority.invites(int(time.time()), self._names())

    @InviteRevokeRequest.answer
    async def invite_revoke(self, request: InviteRevokeRequest) -> RevokeReply:
        reply = self._parts.authority.revoke_invite(request.id, now=int(time.time()), names=self._names())
        self._parts.bans_changed()
        return reply

    @RevokeRequest.answer
    async def revoke(self, request: RevokeRequest) -> RevokeReply:
        node, name = self._find(request.peer)
        reply = self._parts.authority.revoke_node(node, now=int(time.time()), name=name)
        self._parts.bans_changed()
        return reply

    @ForgetRequest.answer
    async def forget(self, request: ForgetRequest) -> ForgetReply:
        peer = self._parts.mesh.find(request.peer)
        name = next((one.name for one in self._parts.mesh.peers() if one.peer == peer), "")
        self._parts.mesh.forget(peer)
        return ForgetReply(id=str(peer), name=name)

    @BanListRequest.answer
    async def ban_list(self, request: BanListRequest) -> BanList:
        return self._parts.authority.bans()

    @UnbanRequest.answer
    async def unban(self, request: UnbanRequest) -> RevokeReply:
        reply = self._parts.authority.unban(request.id, now=int(time.time()))
        self._parts.bans_changed()
        return reply

    def _find(self, text: str) -> tuple[PeerId, str]:
        try:
            found = self._parts.mesh.find(text, self._parts.authority.admitted)
        except UnknownPeer as unknown:
            try:
                return self._parts.authority.find_admitted(text), ""
            except UserError:
                raise unknown from None
        return found, next((p.name for p in self._parts.mesh.peers() if p.peer == found), "")

    @NetcheckRequest.answer
    async def netcheck(self, request: NetcheckRequest) -> NetcheckReply:
        return await self._parts.network_state.reply()

    @CapacityRequest.answer
    async def capacity(self, request: CapacityRequest) -> CapacityReply:
        found = await self._parts.planning().capacity(again=request.again)
        # Not at the same time: reading files would make devices look slower.
        return replace(found, storage=await self._parts.storage.of_all())

    @PlanRequest.answer
    async def plan(self, request: PlanRequest) -> PlanReply:
        return await self._parts.planning().plan(request)

    @WhyRequest.answer
    async def why(self, request: WhyRequest) -> WhyReply:
        built = self._parts.built()
        if built.explain is None:
            raise UserError("this node serves no model", hint="run `meshd why` on the node that serves it")
        found = await built.explain()
        model = built.role.status.model
        if found is None or model is None:
            raise UserError("the model is not loaded", hint="run `meshd status` to see what it waits for")
        if not found.answers and found.running is None and found.round is None:
            raise UserError(
                "nothing was answered yet since the model was loaded", hint="ask it something first"
            )
        from meshd.daemon.plan_view import why_reply  # most workers never need this module

        return why_reply(model.name, found)

    @PauseRequest.answer
    async def pause(self, request: PauseRequest) -> Done:
        self._parts.pausing.begin(end_leases=not request.drain)
        return Done()

    @ResumeRequest.answer
    async def resume(self, request: ResumeRequest) -> Done:
        self._parts.pausing.end()
        return Done()

    @MemberModelsRequest.answer
    async def member_models(self, request: MemberModelsRequest) -> MemberModelsReply:
        return await self._parts.models.listed()

    @FilesInUseRequest.answer
    async def files_in_use(self, request: FilesInUseRequest) -> FilesInUseReply:
        return self._parts.models.in_use

    @PullRequest.answer
    async def pull(self, request: PullRequest) -> PullReply:
        return self._parts.models.start(request)

    @PullProgressRequest.answer
    async def pull_progress(self, request: PullProgressRequest) -> PullReply:
        return self._parts.models.progress(request.id)

    @PullStopRequest.answer
    async def pull_stop(self, request: PullStopRequest) -> PullReply:
        return self._parts.models.stop(request.id)

    @LeaveRequest.answer
    async def leave(self, request: LeaveRequest) -> Done:
        self._parts.home.leave(drop_root=request.drop_root)
        self._parts.leave()
        self._parts.stop("this node has left the mesh")
        return Done()

    @StopRequest.answer
    async def stop(self, request: StopRequest) -> Done:
        self._parts.stop("stopped")
        return Done()


def resident_bytes() -> int:
    """Return the bytes of this process in RAM now, or their peak if the system does not report them."""
    try:
        return int(_STATM.read_bytes().split()[1]) * resource.getpagesize()
    except OSError:  # not Linux
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
