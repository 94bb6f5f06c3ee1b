"""The daemon as seen from outside: what a control connection may ask of it.

A unix socket in the node's home carries one JSON object a line, request and reply in turn (server.py,
client.py). The values are in api.py; the daemon implements `Control`; nothing here decides anything.
Whoever may open the socket is the user who runs the daemon: what the CLI may do needs no other key.
"""

from typing import Protocol

from meshd.admin.api import (
    AcceptReply,
    ExposedList,
    ExposedView,
    InviteList,
    InviteReply,
    PingReply,
    RevokeReply,
    TunnelList,
)
from meshd.admin.net_api import NetcheckReply
from meshd.admin.status import Status, TunnelView

SOCKET_NAME = "control.sock"
POINTER_NAME = "control.sock.path"  # holds the true path where the home's own is too long for a socket
MAX_SOCKET_PATH_BYTES = 100  # sun_path takes 104 on macOS, 108 on Linux, with the final zero
MAX_LINE_BYTES = 64 << 10  # a request; replies may be as long as they are
MAX_REPLY_BYTES = 8 << 20
MAX_CONNECTIONS = 16
MAX_PING_SECONDS = 60.0


class TunnelControl(Protocol):
    """Services that this node exposes, and peers' services that are opened here; all outlive a restart.

    Every method raises MeshdError.
    """

    async def expose(self, name: str, *, target: str, to: tuple[str, ...]) -> ExposedView:
        """Let exactly the nodes `to` reach `target` (host:port) as `name`."""
        ...

    async def exposed(self) -> ExposedList:
        """All of this node."""
        ...

    async def unexpose(self, name: str) -> None:
        """End a service, and the connections to it."""
        ...

    async def open_tunnel(self, peer: str, service: str, *, listen: str) -> TunnelView:
        """Listen for a peer's service. Raises Refused when the peer is connected and says no."""
        ...

    async def tunnels(self) -> TunnelList:
        """Those that users have opened."""
        ...

    async def close_tunnels(self, *, listen: str, peer: str, service: str) -> TunnelList:
        """End the tunnel that listens at `listen`, or all to a peer's service; returns them."""
        ...


class Control(TunnelControl, Protocol):
    """What the daemon offers. Every method raises MeshdError (its `what` and `hint` reach the user)."""

    async def status(self) -> Status:
        """A snapshot, taken now."""
        ...

    async def ping(self, peer: str, timeout: float) -> PingReply:
        """One round trip to the peer of that name, id or beginning of an id, at most `timeout` seconds."""
        ...

    async def invite(self, *, expires_s: int, uses: int, roles: tuple[str, ...]) -> InviteReply:
        """Make an invite; kept on disk before this returns."""
        ...

    async def invite_list(self) -> InviteList:
        """The invites of this node."""
        ...

    async def invite_revoke(self, id: str) -> RevokeReply:
        """Ban an invite and whoever came by it."""
        ...

    async def accept(self, code: str) -> AcceptReply:
        """Send to the addresses of a reply code for a while, so that its maker can come in."""
        ...

    async def revoke(self, peer: str) -> RevokeReply:
        """Ban a node; its sessions close."""
        ...

    async def netcheck(self, *, fresh: bool) -> NetcheckReply:
        """What network this node is in; `fresh` checks now, which takes some seconds."""
        ...

    async def leave(self, *, drop_root: bool = False) -> None:
        """Give up the membership, and begin to stop. A founder has to say that the root may be lost."""
        ...

    async def stop(self) -> None:
        """Begin to stop; returns before the daemon has ended so that the answer still gets out."""
        ...
