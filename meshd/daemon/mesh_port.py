"""The mesh port: the requested one, else the one this node had before, else the first free of sixteen.

Invites and every record name this port, so a member keeps it (docs/cli.md). If a requested or kept port is
taken, that is an error that names its holder, because peers must not find another program there. A node that
is in no mesh takes another port, because nobody knows its port.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol

from meshd.base import log
from meshd.base.errors import LocalProtocolError, UserError
from meshd.base.hosts import is_loopback
from meshd.config.forms import HostPort
from meshd.config.tree import DEFAULT_MESH_PORT, MESH_PORT_TRIES
from meshd.identity.keystore import PORT_BLOB, Home
from meshd.link.net.one_port import PortTaken
from meshd.link.net.udp_sockets import Origin
from meshd.link.quic.links import QuicListener
from meshd.link.quic.sockets import DialPort, SharedPort
from meshd.link.secure.handshake import HandshakeContext
from meshd.link.secure.joining import Joining
from meshd.link.tcp.links import TcpListener
from meshd.wire.dialable import Dialable
from meshd.wire.stun import AnswerRates, Endpoint, answer_to

_KEPT_HINT = (
    "this node has used that port before, and others know it: stop that program, or start once with "
    "`--listen :0`, which picks another one and keeps it (tokens and port forwardings that name the old one "
    "no longer work)"
)
LOG = log.get("daemon")


class PortMember(Protocol):
    """The member that answers at a mesh port."""

    def handshake(self) -> HandshakeContext:
        """Return the current credentials of links, and what they check."""
        ...

    async def admit(self, joining: Joining) -> bool:
        """Answer one joiner; return True if it is a member now."""
        ...


class MeshPort:
    """The mesh port, bound before this node knows its membership.

    Connections wait until the listener is served, which is after `answer_as`.
    """

    def __init__(self, *, asked: HostPort | None, home: Home) -> None:
        """Bind the port. Raises UserError (PortTaken)."""
        self._member: PortMember | None = None
        self._stun_rates = AnswerRates()
        self._on_stun: Callable[[bytes, Endpoint], None] | None = None
        self.listener = open_listener(self._make, asked=asked, home=home)
        host = asked.host if asked is not None else ""
        self.local_only = bool(host) and is_loopback(host)
        self.quic = self._open_udp(host, self.listener.port)

    def answer_as(self, member: PortMember) -> None:
        """Set the member that answers; call it once, when this node is a member."""
        self._member = member

    @contextlib.contextmanager
    def stun_answers(self, heard: Callable[[bytes, Endpoint], None]) -> Iterator[None]:
        """Pass STUN servers' answers at the UDP port to `heard` within the block; blocks do not nest."""
        self._on_stun = heard
        try:
            yield
        finally:
            self._on_stun = None

    def close(self) -> None:
        """Close the ports."""
        self.listener.close()
        if self.quic is not None:
            self.quic.close()

    def _open_udp(self, host: str, port: int) -> QuicListener | None:
        """Bind the same number for UDP; None if it is taken: then no links come in by QUIC."""
        quic = QuicListener(
            self._as_member, host=host, port=port, on_joiner=self._admit, on_other=self._answer_stun
        )
        try:
            quic.open()
        except PortTaken as error:
            LOG.warning("udp_port_taken", why=error.what)
            return None
        return quic

    def dial_port(self, candidate: Dialable) -> DialPort | SharedPort:
        """Return the port from which to dial by QUIC: the mesh port, for which NATs are open, if possible."""
        return DialPort(candidate) if self.quic is None else self.quic.dial_port(candidate)

    def send(self, data: bytes, to: Endpoint) -> None:
        """Send a datagram other than QUIC's from the mesh's UDP port."""
        if self.quic is not None:
            self.quic.send_other(data, Origin((to.host, to.port)))

    def _answer_stun(self, data: bytes, origin: Origin) -> None:
        """Answer a STUN request as a server does, or pass on a server's answer to ours."""
        source = Endpoint(*origin.address[:2])
        answer = answer_to(data, source)
        if answer is None and self._on_stun is not None:
            self._on_stun(data, source)
        elif answer is not None and self.quic is not None and self._may_answer(source.host):
            self.quic.send_other(answer, origin)

    def _may_answer(self, host: str) -> bool:
        """Spend one STUN answer; hosts of members seen lately have a rate that strangers cannot use up."""
        now = asyncio.get_running_loop().time()
        callers = None if self._member is None else self._member.handshake().callers
        is_known = callers is not None and callers.knows(host, now)
        return self._stun_rates.may_answer(host, now, is_known=is_known)

    def _make(self, host: str, port: int) -> TcpListener:
        return TcpListener(self._as_member, host=host, port=port, on_joiner=self._admit)

    def _as_member(self) -> HandshakeContext:
        if self._member is None:
            raise LocalProtocolError("a link arrived before this node was a member")
        return self._member.handshake()

    async def _admit(self, joining: Joining) -> bool:
        return self._member is not None and await self._member.admit(joining)


def open_listener(
    make: Callable[[str, int], TcpListener], *, asked: HostPort | None, home: Home
) -> TcpListener:
    """Bind a listener at the port that this module chooses. Raises UserError (PortTaken)."""
    host = asked.host if asked is not None else ""
    kept = _kept(home)
    if asked is not None and asked.port:
        return _keep(home, _open(make, host, asked.port))
    if asked is not None:  # port 0: any, but preferably the one that others know
        try:
            return _keep(home, _open(make, host, kept))
        except PortTaken:
            return _keep(home, _open(make, host, 0))
    if kept:
        try:
            return _open(make, host, kept)
        except PortTaken as error:
            if home.load_membership() is not None:
                raise UserError(error.what, hint=_KEPT_HINT) from None
    for port in range(DEFAULT_MESH_PORT, DEFAULT_MESH_PORT + MESH_PORT_TRIES - 1):
        try:
            return _keep(home, _open(make, host, port))
        except PortTaken:
            continue
    return _keep(home, _open(make, host, DEFAULT_MESH_PORT + MESH_PORT_TRIES - 1))


def _open(make: Callable[[str, int], TcpListener], host: str, port: int) -> TcpListener:
    listener = make(host, port)
    listener.open()
    return listener


def _kept(home: Home) -> int:
    blob = home.read_blob(PORT_BLOB) or b""
    return int(blob) if blob.isdigit() and len(blob) <= 5 and int(blob) < 65536 else 0


def _keep(home: Home, listener: TcpListener) -> TcpListener:
    if _kept(home) != listener.port:
        home.keep_blob(PORT_BLOB, str(listener.port).encode())
    return listener
