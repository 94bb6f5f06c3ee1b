"""Tunnels of users in a running daemon: the answers to `meshd expose` and `meshd tunnel`."""

import functools
import ipaddress
import os

from meshd.admin.api import (
    Done,
    ExposedList,
    ExposedView,
    ExposeListRequest,
    ExposeRemoveRequest,
    ExposeRequest,
    TunnelCloseRequest,
    TunnelList,
    TunnelListRequest,
    TunnelOpenRequest,
)
from meshd.admin.request import Answers
from meshd.admin.snapshot import exposed_view, tunnel_views
from meshd.admin.status import TunnelView
from meshd.base import log
from meshd.base.errors import UserError
from meshd.base.socket_owners import Address, ConnectionOwners
from meshd.base.sockets import LOOPBACK_HOST
from meshd.config.forms import HostPort, parse_address
from meshd.identity import naming
from meshd.identity.keys import PeerId
from meshd.identity.keystore import Home
from meshd.peer.mesh import PeerMesh, UnknownPeer
from meshd.tunnel.interface import OwnerCheck, TunnelStatus
from meshd.tunnel.user_tunnels import OwnTunnels

TUNNELS_BLOB = "tunnels"
LOG = log.get("tunnel")


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
        return ExposedList(exposed=tuple(exposed_view(one, names) for one in self._tunnels.exposed()))

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
                one
                for one in self._tunnels.opened()
                if one.listen == listen or one.listen.rpartition(":")[2] == listen
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
        found = [one for one in self._tunnels.opened() if one.service == service]
        names = self._names()
        meant = set(naming.meant(peer, {str(one.peer): names.get(one.peer, "") for one in found}))
        node = PeerId.parse(meant.pop()) if len(meant) == 1 else self._peer(peer)
        return [one for one in found if one.peer == node]

    def _views(self, statuses: list[TunnelStatus]) -> tuple[TunnelView, ...]:
        return tunnel_views(statuses, self._names())

    def _names(self) -> dict[PeerId, str]:
        return {peer.peer: peer.name for peer in self._mesh.peers()}

    def _peer(self, text: str) -> PeerId:
        """Return the peer of this name, which may be known only from a service, a tunnel or its whole id."""
        kept = {peer for one in self._tunnels.exposed() for peer in one.peers}
        kept |= {one.peer for one in self._tunnels.opened()}
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
