"""Links over TCP with TLS 1.3: all addresses of a peer are raced; a port takes others' connections in.

The listener's certificate is made at its start and trusted by nobody. The dialler takes whichever certificate
it is shown and binds the proof to it (secure/handshake.py), so that somebody in the middle, who must show
another one, cannot pass a proof on. Both ends of a link are proven before anything of it is handed upward.
"""

import asyncio
import ipaddress
import secrets
import ssl
from collections.abc import Callable, Sequence
from functools import partial

from meshd.base.errors import LocalProtocolError, MeshdError
from meshd.base.sockets import accept_from
from meshd.base.tasks import Owner
from meshd.identity.invite import JoinKeys
from meshd.identity.keys import PeerId
from meshd.identity.proof import MARK_NONCE_BYTES, Proven, Purpose, caller_mark
from meshd.link.interface import Accept, LinkKind, Transport
from meshd.link.net import local_addresses
from meshd.link.net.happy_eyeballs import dial_order, race
from meshd.link.secure.entrance import Arrival, Entrance, PortListener, Visitors
from meshd.link.secure.handshake import (
    PROOF_SECONDS,
    HandshakeContext,
    ProvenLink,
    dial_error,
    prove_dialled,
    proven_link,
)
from meshd.link.secure.joining import Joining, OnJoiner
from meshd.link.secure.tls import dialer_context, listener_context
from meshd.link.tcp.pipe import TcpPipe
from meshd.link.tcp.plain_visit import AwaitedConnections
from meshd.link.tcp.sockets import connect, listen
from meshd.wire.address import Candidate
from meshd.wire.dialable import Dialable

CONNECT_SECONDS = 3.0  # one lost SYN is sent again after 1 s, a second one after 3 s
ATTEMPT_SECONDS = 10.0  # connecting, TLS and proof together, for one address

Reached = tuple[TcpPipe, Proven]


class TcpDialer:
    """Makes TCP links; `handshake` is called at each dial."""

    transport = Transport.TCP

    def __init__(self, handshake: Callable[[], HandshakeContext]) -> None:
        self._handshake = handshake
        self._context = dialer_context()

    async def dial(self, peer: PeerId, candidates: Sequence[Dialable]) -> ProvenLink:
        """Race the TCP candidates, 250 ms apart; 10 s at most for each.

        Raises Refused when the peer said why not, else DialError with the failure that came closest.
        """
        handshake = self._handshake()
        attempt = partial(_attempt, self._context, handshake=handshake, expect=peer, join=None)
        pipe, proven = await race(dial_order(candidates, "tcp"), attempt, kind=LinkKind.TCP)
        return _link(pipe, proven, dialled=True, mapped=_is_mapped(pipe, candidates))


async def dial_join(
    candidates: Sequence[Dialable], *, handshake: HandshakeContext, inviter: PeerId, join: JoinKeys
) -> Joining:
    """Reach the inviter of a token and prove that we hold it; what is said then is rendezvous/join.py's.

    `handshake` has the key that asks and the token's mesh. The caller closes the pipe, or stays. Raises as
    `TcpDialer.dial`.
    """
    attempt = partial(_attempt, dialer_context(), handshake=handshake, expect=inviter, join=join)
    pipe, proven = await race(dial_order(candidates, "tcp"), attempt, kind=LinkKind.TCP)
    make_link = partial(_link, pipe, dialled=True, mapped=_is_mapped(pipe, candidates))
    return Joining(pipe, proven, binding=pipe.binding(), make_link=make_link)


async def _attempt(
    context: ssl.SSLContext,
    made: list[TcpPipe],
    candidate: Dialable,
    *,
    handshake: HandshakeContext,
    expect: PeerId,
    join: JoinKeys | None,
) -> Reached:
    """Dial one address, to the end of the proof. Raises DialError, Refused."""
    loop = asyncio.get_running_loop()
    # Mark the hello, so that a busy listener tells us from strangers.
    mark = caller_mark(handshake.mesh, expect, secrets.token_bytes(MARK_NONCE_BYTES))
    pipe = TcpPipe(context, server_side=False, server_hostname=mark)
    made.append(pipe)
    try:
        # Connect, encrypt, and prove both ends.
        async with asyncio.timeout(ATTEMPT_SECONDS):
            async with asyncio.timeout(CONNECT_SECONDS):
                sock = await connect(candidate)
                await loop.create_connection(lambda: pipe, sock=sock)
            await pipe.secure()
            purpose = Purpose.MEMBER if join is None else Purpose.JOIN
            proven = await prove_dialled(
                pipe, handshake=handshake, expect=expect, purpose=purpose, binding=pipe.binding(), join=join
            )
    except (MeshdError, OSError) as error:
        await pipe.aclose()
        raise dial_error(error, kind=LinkKind.TCP, place=candidate.place) from error
    except asyncio.CancelledError:
        pipe.abort()
        await pipe.wait_lost()
        raise
    # The other side is proven: open full buffers.
    pipe.widen()
    return pipe, proven


def _is_mapped(pipe: TcpPipe, candidates: Sequence[Candidate]) -> bool:
    """Return True if it was reached by a port that a router maps."""
    return any(candidate.kind == "mapped" and candidate.place == pipe.remote for candidate in candidates)


def _link(pipe: TcpPipe, proven: Proven, *, dialled: bool, mapped: bool) -> ProvenLink:
    path = local_addresses.path_between(pipe.local_host, pipe.remote_host)
    path = "mapped" if mapped and path == "public" else path
    return proven_link(
        pipe, proven, kind=LinkKind.TCP, local=pipe.local, remote=pipe.remote, path=path, dialled=dialled
    )


class TcpListener(PortListener):
    """Takes in TCP links. `open` first, then `serve` until cancelled, which closes it.

    Its opener calls `close` in the end: a `serve` that is cancelled before its first step does not.
    `host` empty: every address of this machine. Joiners are handed to `on_joiner` (link/secure/joining.py);
    without it they are turned away. `visitors` may be set at any time: it answers browsers.
    """

    kind = LinkKind.TCP
    _proto = "tcp"

    def __init__(
        self,
        handshake: Callable[[], HandshakeContext],
        *,
        host: str = "",
        port: int = 0,
        on_joiner: OnJoiner | None = None,
        proof_seconds: float = PROOF_SECONDS,
    ) -> None:
        entrance = Entrance(handshake, on_joiner=on_joiner, proof_seconds=proof_seconds)
        super().__init__(entrance, partial(listen, host, port))
        self._context: ssl.SSLContext = listener_context(entrance.certificate)
        self.visitors: Visitors | None = None
        self.plain = AwaitedConnections()

    async def serve(self, accept: Accept) -> None:
        """Hand every proven link to `accept`, which keeps it as long as it lives, until cancelled.

        The link is closed when `accept` returns; its MeshdErrors end that link only.
        """
        if not self._sockets:
            raise LocalProtocolError("the listener is not open")
        try:
            async with Owner() as owner:

                def made(pipe: TcpPipe) -> None:
                    self._arrive(pipe, accept, owner)

                def visited(pipe: TcpPipe, first: bytes) -> bool:
                    return self._let_visit(pipe, first, owner)

                def fresh() -> TcpPipe:
                    return TcpPipe(
                        self._context,
                        server_side=True,
                        on_made=made,
                        on_hello=self._entrance.goes_on,
                        on_http=visited,
                        on_plain=self._take_plain,
                    )

                for sock in self._sockets:
                    owner.start(
                        accept_from(sock, fresh, hears=self._entrance.hears),
                        name=f"tcp-accept-{sock.getsockname()[0]}",
                    )
                await asyncio.Event().wait()
        finally:
            self.close()

    def _arrive(self, pipe: TcpPipe, accept: Accept, owner: Owner) -> None:
        def make_link(proven: Proven) -> ProvenLink:
            # who comes from outside to a private address came by a port of the router
            mapped = ipaddress.ip_address(pipe.local_host).is_private
            return _link(pipe, proven, dialled=False, mapped=mapped)

        def blames(_secured: bool) -> bool:
            return not pipe.wants_no_link

        self._entrance.arrive(Arrival(pipe, pipe.remote_host, make_link, blames), accept, owner, name="tcp")

    def _take_plain(self, pipe: TcpPipe, tag: bytes) -> bool:
        """Give a plain connection to who awaits it; False if nobody does, or no descriptor is free."""
        awaited = self.plain.find(tag)
        if awaited is None:
            return False
        try:
            awaited.give(pipe.as_socket())
        except OSError:
            return False
        return True

    def _let_visit(self, pipe: TcpPipe, first: bytes, owner: Owner) -> bool:
        """Have a browser answered; False if nothing is for browsers there: then it is a mistake in TLS."""
        visitors = self.visitors
        if visitors is None or not visitors.expects(pipe.local_host, pipe.remote_host):
            return False
        self._entrance.visited(pipe.as_visit(first), visitors, owner, instead_of=pipe)
        return True
