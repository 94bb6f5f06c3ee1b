"""The answers of the daemon to each request of admin/api.py on its control socket."""

import asyncio
import functools
import ipaddress
import os
import resource
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from meshd import __version__
from meshd.admin.api import (
    AcceptReply,
    AcceptRequest,
    BanList,
    BanListRequest,
    Done,
    DrainReply,
    DrainRequest,
    ExposedList,
    ExposedView,
    ExposeListRequest,
    ExposeRemoveRequest,
    ExposeRequest,
    FilesInUseReply,
    FilesInUseRequest,
    ForgetReply,
    ForgetRequest,
    InviteList,
    InviteListRequest,
    InviteReply,
    InviteRequest,
    InviteRevokeRequest,
    LeaveRequest,
    MemberModelsReply,
    MemberModelsRequest,
    MetricsReply,
    MetricsRequest,
    NetcheckReply,
    NetcheckRequest,
    PauseRequest,
    PingReply,
    PingRequest,
    PullProgressRequest,
    PullReply,
    PullRequest,
    PullStopRequest,
    ResumeRequest,
    RevokeReply,
    RevokeRequest,
    StatusRequest,
    StopRequest,
    TunnelCloseRequest,
    TunnelList,
    TunnelListRequest,
    TunnelOpenRequest,
    UnbanRequest,
)
from meshd.admin.health import examine
from meshd.admin.request import Answers, Request
from meshd.admin.snapshot import (
    child_views,
    device_view,
    exposed_view,
    lent_views,
    link_path,
    peer_views,
    tunnel_views,
)
from meshd.admin.status import DeviceView, DrainView, MeshView, NodeView, Status, TunnelView
from meshd.base import log
from meshd.base.errors import UserError
from meshd.base.metrics_port import MetricsReader
from meshd.base.socket_owners import Address, ConnectionOwners
from meshd.base.sockets import LOOPBACK_HOST
from meshd.base.tasks import in_thread
from meshd.config.forms import HostPort, parse_address
from meshd.daemon.member_node import PAUSED_BLOB, MemberNode, was_paused
from meshd.daemon.mesh_page import MeshPage
from meshd.daemon.models import ModelExchange, Storage
from meshd.daemon.role_kind import BuiltRole
from meshd.devices.interface import ListedDevices, RoleStatus
from meshd.identity import naming
from meshd.identity.keys import PeerId
from meshd.identity.keystore import Home
from meshd.model.device_speed import REFERENCE_LAYERS, DeviceSpeed, reference_rates
from meshd.peer.local_member import LocalMember
from meshd.peer.mesh import PeerMesh, UnknownPeer
from meshd.rendezvous.interface import MdnsStatus
from meshd.rendezvous.join import ACCEPT_SECONDS
from meshd.tunnel.interface import OwnerCheck, TunnelStatus
from meshd.tunnel.user_tunnels import OwnTunnels
from meshd.worker.worker_options import Pause

if TYPE_CHECKING:
    from meshd.daemon.planning import Planning
    from meshd.gateway.server import Gateway

R = TypeVar("R")
TUNNELS_BLOB = "tunnels"
DRAIN_SECONDS = 30.0  # after which a drain that nobody asks for any more is lifted
LOG = log.get("tunnel")
_STATM = Path("/proc/self/statm")


class Pausing:
    """The pause of a node (`meshd pause`, `drain`, `resume`), stored in its home: it survives a restart.

    `pause`: the role's pause; None if the role lends nothing.
    """

    def __init__(self, home: Home, local: LocalMember, pause: Pause | None) -> None:
        """Begin paused if the node was paused when it last ran."""
        self._home = home
        self._local = local
        self._pause = pause
        if pause is not None and was_paused(self._home):
            pause.begin(end_leases=True)

    @property
    def is_paused(self) -> bool:
        return self._pause is not None and self._pause.is_on

    @property
    def is_draining(self) -> bool:
        """Return True if what is lent may be used until its users give it back."""
        return self._pause is not None and self._pause.drains

    def begin(self, *, end_leases: bool) -> None:
        """Pause, also after a restart. Raises UserError on a node that lends nothing."""
        pause = self._lent()
        self._home.write_blob(PAUSED_BLOB, b"1")
        self._local.pause(paused=True)
        pause.begin(end_leases=end_leases)

    def drain(self, *, on: bool) -> None:
        """Pause until the daemon ends, or no longer; a pause of the user's own stays."""
        if self._pause is None or was_paused(self._home):
            return
        self._local.pause(paused=on)
        if on:
            self._pause.begin(end_leases=False)
        else:
            self._pause.end()

    def end(self) -> None:
        """Resume. Raises UserError on a node that lends nothing."""
        pause = self._lent()
        self._home.write_blob(PAUSED_BLOB, b"")
        pause.end()
        self._local.pause(paused=False)

    def _lent(self) -> Pause:
        if self._pause is None:
            raise UserError(
                "this node lends no devices, so there is nothing to pause",
                hint="run it on a worker; `meshd stop` ends this node",
            )
        return self._pause


def make_tunnels(mesh: PeerMesh, home: Home) -> OwnTunnels:
    """Restore the tunnels of the last run. Raises UserError if their file is damaged."""
    tunnels = OwnTunnels(
        mesh=mesh, save=lambda data: home.keep_blob(TUNNELS_BLOB, data), owned_by_user=of_this_user()
    )
    tunnels.load(home.read_blob(TUNNELS_BLOB), file=str(home.path / f"{TUNNELS_BLOB}.blob"))
    return tunnels


def of_this_user() -> OwnerCheck:
    """Return a check that a tunnel's client belongs to the user who runs this daemon.

    A tunnel on loopback is for that user's programs only, like the control socket.
    """
    owners = ConnectionOwners()

    async def owned_by_user(client: Address, server: Address) -> bool:
        owns = await owners.user_has(os.getuid(), client, server)
        if owns is None:
            _warn_user_unknown()
        return owns is not False

    return owned_by_user


@functools.cache  # once per daemon
def _warn_user_unknown() -> None:
    LOG.warning("tunnel_user_unknown", why="this system does not tell which user made a connection")


class TunnelAnswers(Answers):
    """Answer requests about tunnels and exposed services; both outlive a restart."""

    def __init__(self, mesh: PeerMesh, tunnels: OwnTunnels) -> None:
        self._mesh = mesh
        self._tunnels = tunnels

    @ExposeRequest.answer
    async def expose(self, request: ExposeRequest) -> ExposedView:
        """Expose a service. An unknown node is named by its whole id; without names they stay as before."""
        place = _place(request.target, "the service")
        if not place.port:
            raise UserError(f"`{request.target}` has no port", hint="give the service as HOST:PORT")
        peers = [self._peer(text) for text in request.to] or None
        status = self._tunnels.expose(
            request.name, host=place.host or LOOPBACK_HOST, port=place.port, peers=peers
        )
        return exposed_view(status, self._names())

    @ExposeListRequest.answer
    async def exposed(self, request: ExposeListRequest) -> ExposedList:
        names = self._names()
        return ExposedList(exposed=tuple(exposed_view(service, names) for service in self._tunnels.exposed()))

    @ExposeRemoveRequest.answer
    async def unexpose(self, request: ExposeRemoveRequest) -> Done:
        self._tunnels.unexpose(request.name)
        return Done()

    @TunnelOpenRequest.answer
    async def open_tunnel(self, request: TunnelOpenRequest) -> TunnelView:
        listen = request.listen
        place = _place(listen, "the listener") if listen else HostPort(LOOPBACK_HOST, 0)
        host = LOOPBACK_HOST if place.host == "localhost" else place.host or "0.0.0.0"
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise UserError(
                f"cannot listen on `{listen}` for a tunnel", hint="give an address of this machine as IP:PORT"
            ) from None
        status = await self._tunnels.open(
            self._peer(request.peer), request.service, host=host, port=place.port
        )
        return self._views([status])[0]

    @TunnelListRequest.answer
    async def tunnels(self, request: TunnelListRequest) -> TunnelList:
        return TunnelList(tunnels=self._views(self._tunnels.opened()))

    @TunnelCloseRequest.answer
    async def close_tunnels(self, request: TunnelCloseRequest) -> TunnelList:
        listen = request.listen
        if listen:
            chosen = [
                tunnel
                for tunnel in self._tunnels.opened()
                if tunnel.listen == listen or tunnel.listen.rpartition(":")[2] == listen
            ]
            what = f"no tunnel listens on `{listen}`"
        else:
            chosen = self._to(request.peer, request.service)
            what = f"there is no open tunnel to `{request.service}` of `{request.peer}`"
        if not chosen:
            raise UserError(what, hint="run `meshd tunnel ls` to list the tunnels")
        views = self._views(chosen)
        await self._tunnels.close(chosen)
        return TunnelList(tunnels=views)

    def _to(self, peer: str, service: str) -> list[TunnelStatus]:
        """Return the open tunnels to `service` on `peer`; the name need only be unique among their peers."""
        found = [tunnel for tunnel in self._tunnels.opened() if tunnel.service == service]
        names = self._names()
        meant = set(naming.meant(peer, {str(tunnel.peer): names.get(tunnel.peer, "") for tunnel in found}))
        node = PeerId.parse(meant.pop()) if len(meant) == 1 else self._peer(peer)
        return [tunnel for tunnel in found if tunnel.peer == node]

    def _views(self, statuses: list[TunnelStatus]) -> tuple[TunnelView, ...]:
        return tunnel_views(statuses, self._names())

    def _names(self) -> dict[PeerId, str]:
        return {peer.peer: peer.name for peer in self._mesh.peers()}

    def _peer(self, text: str) -> PeerId:
        """Return the peer of this name, which may be known only from a service, a tunnel or its whole id."""
        kept = {peer for service in self._tunnels.exposed() for peer in service.peers}
        kept |= {tunnel.peer for tunnel in self._tunnels.opened()}
        try:
            return self._mesh.find(text, kept)
        except UnknownPeer as unknown:
            if len(text.strip()) != naming.ID_CHARS:
                raise UnknownPeer(
                    unknown.what,
                    hint="run `meshd peers` for names and ids; for a node not listed there, give the "
                    "whole id",
                ) from None
            return PeerId.parse(text)


def _place(text: str, what: str) -> HostPort:
    try:
        return parse_address(text)
    except ValueError as error:
        raise UserError(
            f"`{text[:80]}` is not a valid address of {what}: {error}", hint="write HOST:PORT"
        ) from None


class DaemonControl(TunnelAnswers):
    """Answer the control requests of one daemon."""

    def __init__(
        self,
        member: MemberNode,
        home: Home,
        *,
        built: Callable[[], BuiltRole],
        planning: "Callable[[], Planning]",
        gateway: "Callable[[], Gateway | None]",
        stop: Callable[[str], None],
        tunnels: OwnTunnels,
        pausing: Pausing,
        models: ModelExchange,
        storage: Storage,
        page: MeshPage,
    ) -> None:
        """Answer for `member`, whose files are in `home`. `built`: its role, another one once models came."""
        super().__init__(member.mesh, tunnels)
        self._member = member
        self._home = home
        self._built = built
        self._planning = planning
        self._gateway = gateway
        self._stop = stop
        self._pausing = pausing
        self._models = models
        self._storage = storage
        self._page = page
        self._exposing = asyncio.Lock()
        self._drains, self._drain_ends = asyncio.Event(), 0.0
        self._began = asyncio.get_running_loop().time()

    async def answer(self, request: Request[R]) -> R:
        """Return the reply of the method for this request, perhaps in the module that most workers lack."""
        if type(request) in self.answered():
            return await super().answer(request)
        if type(request) in self._page.answered():
            return await self._page.answer(request)
        from meshd.daemon.plan_answers import PlanAnswers

        return await PlanAnswers(self._built(), self._planning, self._storage).answer(request)

    @StatusRequest.answer
    async def status(self, request: StatusRequest) -> Status:
        storage = await self._storage.status()  # first, as it may take a moment
        return replace(self.status_now(), storage=storage)

    def status_now(self) -> Status:
        """Return the status without this machine's storage, for which folders are walked."""
        # The state of the node and its role.
        member, now, wall = self._member, asyncio.get_running_loop().time(), time.time()
        facts = member.node.facts
        role = self._built().role.status
        peers = self._mesh.peers()
        mdns = member.transports.mdns
        names, gateway = self._names(), self._gateway()
        view = Status(
            node=NodeView(
                id=str(facts.peer),
                name=facts.name,
                role=facts.role,
                version=__version__,
                pid=os.getpid(),
                uptime_s=now - self._began,
                rss_bytes=resident_bytes(),
                listen=tuple(candidate.place for candidate in member.local.token_candidates()),
                home=str(self._home.path),
                paused=self._pausing.is_paused,
                draining=self._draining(),
            ),
            mesh=MeshView(
                id=str(member.membership.mesh),
                members=1 + len(peers),
                roles=tuple(sorted(member.membership.roles)),
            ),
            peers=peer_views(peers, now=now, wall=wall, draining=_drained(role)),
            tunnels=tunnel_views((*role.tunnels, *self._tunnels.opened()), names),
            children=child_views(role.children),
            model=role.model,
            models=role.models,
            api=gateway.status if gateway is not None else None,
            mdns=mdns.status if mdns is not None else MdnsStatus(state="off"),
            store=role.store,
            devices=self._devices(role.listed, now),
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
            unwritten={**self._home.keeping.waiting, **log.unwritten()},
            no_backup=member.membership.is_founder and not self._home.has_root_backup,
            restored=self._home.has_root_from_backup,
            copied=member.local.is_copied(now),
        )

    def _devices(self, listed: ListedDevices, now: float) -> tuple[DeviceView, ...]:
        """Return the devices with earlier measurements; nothing is measured now."""
        speeds, found = self._built().speeds, []
        for device in listed.devices:
            times = speeds.known(device, REFERENCE_LAYERS) if speeds is not None else ()
            found.append(device_view(device, reference_rates(DeviceSpeed(times)), age=now - listed.at))
        return tuple(found)

    async def exposition(self, reader: MetricsReader) -> str:
        """Return the metrics that `reader` may see, in Prometheus's text format."""

        def written(status: Status, gateway: "Gateway | None") -> str:
            from meshd.base.metrics import exposition  # megabytes, which few workers need
            from meshd.daemon.metrics import node_metrics

            requests = gateway.collect() if gateway is not None else ()
            return exposition(node_metrics(status, reader), requests)

        async with self._exposing:  # many readers keep no more than one thread busy
            status, gateway = await self.status(StatusRequest()), self._gateway()
            # it takes some milliseconds, in which tokens pass this loop
            return await in_thread(functools.partial(written, status, gateway))

    @MetricsRequest.answer
    async def metrics(self, request: MetricsRequest) -> MetricsReply:
        return MetricsReply(text=await self.exposition(MetricsReader.OPERATOR))

    @PingRequest.answer
    async def ping(self, request: PingRequest) -> PingReply:
        found = self._mesh.find(request.peer)
        rtt, path = await self._mesh.ping(found, request.seconds)
        return PingReply(
            peer=str(found),
            name=self._names().get(found, ""),
            rtt_ms=round(rtt * 1000, 3),
            kind=path.link.kind,
            path=link_path(path.link.path),
            remote=path.link.remote,
        )

    @InviteRequest.answer
    async def invite(self, request: InviteRequest) -> InviteReply:
        if request.browser and self._built().gateway is None:
            raise UserError(
                "a browser chats with the node that invites it, and a worker has no chat",
                hint="run this on a node that serves a model and has the role `invite`",
            )
        made = self._member.authority.invite(
            now=int(time.time()),
            expires_s=request.expires_s,
            uses=request.uses,
            roles=request.roles,
            browser=request.browser,
            secret=secrets.token_bytes(16),
            candidates=self._member.local.token_candidates(),
            relays=self._member.transports.relays,
        )
        return replace(made, url=self._member.transports.page_url(made.token)) if request.browser else made

    @AcceptRequest.answer
    async def accept(self, request: AcceptRequest) -> AcceptReply:
        reply = self._member.transports.joiners.accept(request.code)
        return AcceptReply(
            joiner=str(reply.joiner),
            addresses=tuple(candidate.place for candidate in reply.candidates),
            seconds=int(ACCEPT_SECONDS),
        )

    @InviteListRequest.answer
    async def invite_list(self, request: InviteListRequest) -> InviteList:
        return self._member.authority.invites(int(time.time()), self._names())

    @InviteRevokeRequest.answer
    async def invite_revoke(self, request: InviteRevokeRequest) -> RevokeReply:
        reply = self._member.authority.revoke_invite(request.id, now=int(time.time()), names=self._names())
        self._mesh.bans_changed()
        return reply

    @RevokeRequest.answer
    async def revoke(self, request: RevokeRequest) -> RevokeReply:
        node, name = self._find(request.peer)
        reply = self._member.authority.revoke_node(node, now=int(time.time()), name=name)
        self._mesh.bans_changed()
        return reply

    @ForgetRequest.answer
    async def forget(self, request: ForgetRequest) -> ForgetReply:
        peer = self._mesh.find(request.peer)
        name = self._names().get(peer, "")
        self._mesh.forget(peer)
        return ForgetReply(id=str(peer), name=name)

    @BanListRequest.answer
    async def ban_list(self, request: BanListRequest) -> BanList:
        return self._member.authority.bans()

    @UnbanRequest.answer
    async def unban(self, request: UnbanRequest) -> RevokeReply:
        reply = self._member.authority.unban(request.id, now=int(time.time()))
        self._mesh.bans_changed()
        return reply

    def _find(self, text: str) -> tuple[PeerId, str]:
        browser = self._member.authority.find_browser(text)
        try:
            found = self._mesh.find(text, self._member.authority.admitted)
        except UnknownPeer as unknown:
            if browser is not None:
                return browser, text.strip()
            try:
                return self._member.authority.find_admitted(text), ""
            except UserError:
                raise unknown from None
        if browser is not None:
            raise UserError(f"`{text}` is a node and a browser", hint="give the id of one of them")
        return found, self._names().get(found, "")

    @NetcheckRequest.answer
    async def netcheck(self, request: NetcheckRequest) -> NetcheckReply:
        return await self._member.transports.network_state.reply()

    @PauseRequest.answer
    async def pause(self, request: PauseRequest) -> Done:
        self._pausing.begin(end_leases=not request.drain)
        return Done()

    @ResumeRequest.answer
    async def resume(self, request: ResumeRequest) -> Done:
        self._pausing.end()
        return Done()

    @DrainRequest.answer
    async def drain(self, request: DrainRequest) -> DrainReply:
        self._drain(on=request.on)
        gateway, leases = self._gateway(), self._leases()
        return DrainReply(requests=gateway.under_way if gateway is not None else 0, leases=leases)

    def _leases(self) -> int:
        # A head's llama-server runs on without requests; a worker's mesh-server is a lease.
        built = self._built()
        return len(built.role.status.children) if built.pause is not None else 0

    def _draining(self) -> DrainView | None:
        """Return what still uses this node, if it begins nothing new."""
        restarts, gateway = self._drains.is_set(), self._gateway()
        models = self._leases() if restarts or self._pausing.is_draining else 0
        requests = gateway.under_way if restarts and gateway is not None else 0
        return DrainView(models=models, requests=requests) if models or requests else None

    def _drain(self, *, on: bool) -> None:
        self._drain_ends = asyncio.get_running_loop().time() + DRAIN_SECONDS
        if on:
            self._drains.set()
        else:
            self._drains.clear()
        self._pausing.drain(on=on)
        if (gateway := self._gateway()) is not None:
            gateway.drains = on

    async def lift_drains(self) -> None:
        """Lift a drain that is no longer asked for, as by a client that was killed. Runs until cancelled."""
        while True:
            await self._drains.wait()
            left = self._drain_ends - asyncio.get_running_loop().time()
            if left > 0:
                await asyncio.sleep(left)
            else:
                self._drain(on=False)

    @MemberModelsRequest.answer
    async def member_models(self, request: MemberModelsRequest) -> MemberModelsReply:
        return await self._models.listed()

    @FilesInUseRequest.answer
    async def files_in_use(self, request: FilesInUseRequest) -> FilesInUseReply:
        return self._models.in_use

    @PullRequest.answer
    async def pull(self, request: PullRequest) -> PullReply:
        return self._models.start(request)

    @PullProgressRequest.answer
    async def pull_progress(self, request: PullProgressRequest) -> PullReply:
        return self._models.progress(request.id)

    @PullStopRequest.answer
    async def pull_stop(self, request: PullStopRequest) -> PullReply:
        return self._models.stop(request.id)

    @LeaveRequest.answer
    async def leave(self, request: LeaveRequest) -> Done:
        self._home.leave(drop_root=request.drop_root)
        self._member.local.leave()
        self._stop("this node has left the mesh")
        return Done()

    @StopRequest.answer
    async def stop(self, request: StopRequest) -> Done:
        self._stop("stopped")
        return Done()


def _drained(role: RoleStatus) -> set[str]:
    """Return the names of the paused workers that the models of this node still use."""
    models = role.models or ([role.model] if role.model is not None else [])
    return {name for model in models if model.draining is not None for name in model.draining.workers}


def resident_bytes() -> int:
    """Return the bytes of this process in RAM now, or their peak if the system does not report them."""
    try:
        return int(_STATM.read_bytes().split()[1]) * resource.getpagesize()
    except OSError:  # not Linux
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
