"""TCP links through NATs, by simultaneous open: a second way for links of the kind tcp.

Both sides learn by STUN over TCP how the port they will use looks from outside, tell each other over signals
(wire/signal.py), and connect at the same moment (RFC 9293 3.5, figure 7): each side's SYN opens its own NAT
for the other's. The port listens as well, so that a SYN that comes before ours is answered, and a side that
is not behind a NAT works too; the kernel looks for a socket of exactly this pair first. RST and "no route"
are answered by trying again: some routers say so to a SYN that they did not expect, and the next one is
expected.

The result is a TCP connection like any other, with TLS 1.3 over it, the dialler being its client, and
the proof inside. Two addresses of the same peer may both work, so more than one socket may connect. Only the
dialler chooses: it proves itself on one at a time, so that the other side never takes two for links.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass

from meshd.base.errors import Broken, Closed, MeshdError, Refused, RemoteProtocolError
from meshd.base.log import get
from meshd.base.peer_limits import PUNCHED_UNPROVEN
from meshd.base.tasks import Owner
from meshd.identity.keys import PeerId
from meshd.identity.proof import Proven
from meshd.identity.tls_certificate import make_link_certificate
from meshd.link.attempts import Talk, Talks, Yielded
from meshd.link.interface import (
    Accept,
    DialError,
    DialFailure,
    Link,
    LinkKind,
    MayDial,
    Signals,
    Transport,
)
from meshd.link.net import local_addresses
from meshd.link.net.stun import ASK_SECONDS, bound_socket, resolve, tcp_mapping
from meshd.link.secure.handshake import (
    PROOF_SECONDS,
    HandshakeContext,
    dial_error,
    member_of,
    prove_accepted,
    prove_dialled,
    proven_link,
)
from meshd.link.secure.tls import dialer_context, listener_context
from meshd.link.tcp.pipe import TcpPipe
from meshd.link.tcp.sockets import limit_segments
from meshd.wire.address import Candidate
from meshd.wire.dialable import Dialable, Source
from meshd.wire.netfacts import Mapping, NetFacts, Tcp, TriState
from meshd.wire.signal import (
    MAX_PUNCH_CANDIDATES,
    MAX_WAITED_MS,
    Knock,
    PunchGo,
    Punching,
    PunchReady,
    decode_punching,
)
from meshd.wire.stun import Endpoint

FIRST_PAUSE_SECONDS = 0.03  # between a refused SYN and the next one; grows
PAUSE_GROWS = 1.4
MOST_PAUSE_SECONDS = 0.4
SECONDS_PER_CONNECT = 0.02  # of one attempt, all targets together: 50 a second at most (protocol-links.md)
SOCKET_SECONDS = 2.5  # one socket's patience: the kernel sends its SYN again after 1 s and after 3
_BACKLOG = 8
MEET_SECONDS = 3.5  # of connecting; one lost SYN is sent again after 1 s
MAX_CONNECTED = PUNCHED_UNPROVEN.most  # sockets of one attempt that have not proven anything yet
_READY_SECONDS = 4.0  # for the other side's word: its own STUN takes 1.5 at most, the rest is the way
ROUNDS = 2  # with ports of their own: what a router remembers of the first may be in the way
MOST_HEAD_START = 0.5  # seconds; more than half a round trip of any path worth having
_log = get("link")


def worth_trying(mine: NetFacts | None, theirs: NetFacts | None) -> bool:
    """Return False where no simultaneous open can work, to save useless SYNs every half minute.

    Unknown facts are no reason against trying: an attempt is cheap, and a relay carries the data meanwhile.
    """
    if mine is None or theirs is None:
        return True
    if any(facts.tcp in (Tcp.ONLY_443, Tcp.BLOCKED) for facts in (mine, theirs)):
        return False
    if mine.ipv6 is theirs.ipv6 is TriState.YES:
        return True
    if mine.public_v4 and mine.public_v4 == theirs.public_v4:
        return True  # perhaps in one LAN
    return not (_hidden(mine, theirs) or _hidden(theirs, mine))


def _hidden(facts: NetFacts, other: NetFacts) -> bool:
    """Return True if nobody can tell where `one` will be seen, but `other` must know it to let it in."""
    return facts.tcp_symmetric and other.tcp_mapping not in (Mapping.UNKNOWN, Mapping.NONE)


Found = Callable[[socket.socket], None]


class PunchPort:
    """One port of one family. `close` it in the end."""

    def __init__(self, family: int) -> None:
        self._family = family
        self._server = bound_socket(family, socket.SOCK_STREAM)
        try:
            self._server.listen(_BACKLOG)
            self.port: int = self._server.getsockname()[1]
        except BaseException:
            self._server.close()
            raise

    def close(self) -> None:
        """Listen no more."""
        self._server.close()

    def hosts(self, hosts: Iterable[str]) -> list[Candidate]:
        """Return this port at those addresses of this machine that are of its family."""
        v6 = self._family == socket.AF_INET6
        return [Candidate(host, self.port) for host in hosts if (":" in host) == v6 and "%" not in host]

    async def meet(self, targets: Sequence[Dialable], found: Found) -> None:
        """Connect to all targets and accept, until cancelled; each connected socket goes to `found`."""
        mine = [place for place in targets if place.is_v6 == (self._family == socket.AF_INET6)]
        async with Owner() as owner:
            owner.start(self._accept(found), name="punch-accept")
            for target in mine:
                owner.start(self._connect(target, found, len(targets)), name=f"punch-{target.place}")

    async def _accept(self, found: Found) -> None:
        loop = asyncio.get_running_loop()
        # by hand: loop.sock_accept loses the socket when it is cancelled at the wrong moment
        loop.add_reader(self._server, self._take, found)
        try:
            await asyncio.Event().wait()
        finally:
            loop.remove_reader(self._server)

    def _take(self, found: Found) -> None:
        with contextlib.suppress(OSError):
            sock, _ = self._server.accept()
            sock.setblocking(False)
            found(sock)

    async def _connect(self, target: Dialable, found: Found, among: int) -> None:
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE_SECONDS
        while True:
            with contextlib.suppress(OSError, TimeoutError):
                sock = bound_socket(self._family, socket.SOCK_STREAM, port=self.port)
                limit_segments(sock, target.host)
                try:
                    async with asyncio.timeout(SOCKET_SECONDS):
                        await loop.sock_connect(sock, (target.host, target.port))
                except BaseException:
                    sock.close()
                    raise
                found(sock)
                return
            await asyncio.sleep(max(pause, among * SECONDS_PER_CONNECT))
            pause = min(pause * PAUSE_GROWS, MOST_PAUSE_SECONDS)


class PunchGround:
    """The ports of one attempt, one for each family, and where they may be reached."""

    def __init__(self, ports: Sequence[PunchPort], candidates: Sequence[Candidate]) -> None:
        self._ports = ports
        self.candidates = tuple(candidates)[:MAX_PUNCH_CANDIDATES]

    async def meet(self, others: Sequence[Dialable], found: Found) -> None:
        """Connect to the others from every port, as `PunchPort.meet`."""
        own = set(self.candidates)
        targets = [candidate for candidate in others if candidate.proto == "tcp" and candidate not in own]
        async with Owner() as owner:
            for port in self._ports:
                owner.start(port.meet(targets[:MAX_PUNCH_CANDIDATES], found), name="punch-meet")


@contextlib.asynccontextmanager
async def ground(
    servers: Sequence[Endpoint], *, hosts: Sequence[str] | None = None, seconds: float = ASK_SECONDS
) -> AsyncIterator[PunchGround]:
    """Open fresh ports and learn how `servers` see the one of IPv4; closed when the block is left.

    IPv6 is not asked for: what stands in its way are firewalls, which change no address. `hosts` instead of
    this machine's own addresses, for tests.
    """
    own = local_addresses.hosts() if hosts is None else hosts
    with contextlib.ExitStack() as opened:
        ports: list[PunchPort] = []
        candidates: list[Candidate] = []
        # Open one port for each family in which this machine has an address.
        for family in (socket.AF_INET6, socket.AF_INET):
            if not any((":" in host) == (family == socket.AF_INET6) for host in own):
                continue
            with contextlib.suppress(OSError):
                port = PunchPort(family)
                opened.callback(port.close)
                ports.append(port)
                candidates += port.hosts(own)
        # Without IPv4 there is no NAT to ask about.
        v4 = [port for port in ports if port._family == socket.AF_INET]
        if not v4:
            yield PunchGround(ports, candidates)
            return
        async with tcp_mapping(v4[0].port, servers, family=socket.AF_INET, seconds=seconds) as seen:
            # Offer the outer addresses first: the other side most likely needs those.
            known = {(place.host, place.port) for place in candidates}
            mapped = dict.fromkeys(
                answer.mapped
                for answer in seen.answers
                if (answer.mapped.host, answer.mapped.port) not in known
            )
            far = [Candidate(place.host, place.port, "tcp", "srflx") for place in mapped]
            yield PunchGround(ports, [*far[:3], *candidates])


Reached = tuple[TcpPipe, Proven]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The part of this side once a socket is connected: `prove` runs after TLS, one at a time if it
    `chooses`.
    """

    context: ssl.SSLContext
    server: bool
    prove: Callable[[TcpPipe], Coroutine[object, object, Proven]]


class PunchRace:
    """One attempt's sockets."""

    def __init__(self, side: Side, place: str) -> None:
        self._side = side
        self._place = place
        self._turn = asyncio.Lock()  # the dialler's choice
        self._decided = asyncio.Event()
        self._pipes: list[TcpPipe] = []
        self._unowned: set[socket.socket] = set()  # not a pipe's yet
        self._busy = 0
        self._winner: Reached | None = None
        self._errors: list[MeshdError] = []

    async def run(self, ground: PunchGround, others: Sequence[Dialable]) -> Reached:
        """Return the first proven pipe; everything else is closed. Raises DialError, Refused."""
        try:
            async with Owner() as owner:
                meeting = ground.meet(others, lambda sock: self._found(sock, owner))
                owner.start(meeting, name="punch")
                await self._until_decided()
                owner.cancel()
        finally:
            self._close_all()
        if self._winner is not None:
            return self._winner
        if self._errors:
            raise self._errors[-1].afresh()
        what = f"TCP hole punching to `{self._place}` failed"
        raise DialError(what, kind=LinkKind.TCP, failure=DialFailure.TIMEOUT)

    async def _until_decided(self) -> None:
        for limit in (MEET_SECONDS, PROOF_SECONDS):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await self._decided.wait()
            if self._decided.is_set() or not self._busy:
                return

    def _found(self, sock: socket.socket, owner: Owner) -> None:
        if self._decided.is_set() or self._busy >= MAX_CONNECTED:
            sock.close()
            return
        self._unowned.add(sock)
        self._busy += 1
        try:
            task = owner.start_for(self._place, self._try(sock), name="punch-try")
        except Closed:  # shutting down
            self._tried()
        else:
            task.add_done_callback(lambda _: self._tried())

    def _tried(self) -> None:
        self._busy -= 1

    async def _try(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        pipe = TcpPipe(self._side.context, server_side=self._side.server)
        self._pipes.append(pipe)
        self._unowned.discard(sock)  # from here on it is closed with its transport
        try:
            if self._side.server:
                await loop.connect_accepted_socket(lambda: pipe, sock)
            else:
                await loop.create_connection(lambda: pipe, sock=sock)
            async with asyncio.timeout(PROOF_SECONDS):
                await pipe.secure()
            async with contextlib.nullcontext() if self._side.server else self._turn:
                if self._winner is None:
                    self._won(pipe, await self._side.prove(pipe))
        except (MeshdError, OSError, TimeoutError) as error:
            pipe.abort()
            self._failed(dial_error(error, kind=LinkKind.TCP, place=self._place))

    def _won(self, pipe: TcpPipe, proven: Proven) -> None:
        if self._winner is None:
            pipe.widen()
            self._winner = (pipe, proven)
            self._decided.set()

    def _failed(self, error: MeshdError) -> None:
        self._errors.append(error)
        del self._errors[:-MAX_CONNECTED]
        if isinstance(error, Refused):
            self._decided.set()  # the peer itself said no

    def _close_all(self) -> None:
        """Close everything but the winner; that one too when nobody will get it."""
        task = asyncio.current_task()
        kept = self._winner[0] if self._winner is not None and not (task and task.cancelling()) else None
        for sock in self._unowned:
            sock.close()
        for pipe in self._pipes:
            if pipe is not kept:
                pipe.abort()


Punched = tuple[TcpPipe, Proven, str]  # with the path, as in LinkInfo


class PunchLinks:
    """Dialer and Listener in one: `serve` must run for either, it hears the signals of both.

    `servers` gives STUN servers that answer over TCP as `host:port` (the relay, public members). `worth`
    says whether it is of any use to try a peer now (`worth_trying`). `hosts`: addresses to offer, for a node
    that keeps to this machine. `may_dial` says what of the other side's addresses may be connected to.
    """

    transport = Transport.TCP_PUNCH
    kind = LinkKind.TCP

    def __init__(
        self,
        handshake: Callable[[], HandshakeContext],
        signals: Signals,
        *,
        servers: Callable[[], Sequence[str]],
        worth: Callable[[PeerId], bool] = lambda _peer: True,
        hosts: Sequence[str] | None = None,
        may_dial: MayDial | None = None,
    ) -> None:
        self._handshake = handshake
        self._servers = servers
        self._worth = worth
        self._hosts = hosts
        self._may_dial = may_dial or local_addresses.by_interfaces(hosts)
        self._talks: Talks[Punching] = Talks(
            handshake().credentials.key.peer,
            signals,
            kind=LinkKind.TCP,
            first=Knock,
            decode=decode_punching,
        )
        self._certificate = make_link_certificate()
        self._listening = listener_context(self._certificate)
        self._dialling = dialer_context()

    def candidates(self) -> Sequence[Candidate]:
        """Return no candidates: an address of an attempt is good for that attempt only."""
        return ()

    async def dial(self, peer: PeerId, candidates: Sequence[Dialable] = ()) -> Link:
        """Punch to `peer`; its addresses come over signals, so `candidates` are not needed.

        At most two rounds, 25 s in all. Raises DialError, or Refused when the peer said why not. When both
        sides dial at once, one of the two links is made: on the side with the lower id `serve` hands it on,
        and this raises DialError.
        """
        if not self._worth(peer):
            what = "the two NATs do not let a TCP connection be opened from both sides"
            raise DialError(what, kind=LinkKind.TCP, failure=DialFailure.UNFIT)
        for last in [False] * (ROUNDS - 1) + [True]:
            try:
                return await self._round(peer)
            except DialError as error:
                if last or error.failure is not DialFailure.TIMEOUT:
                    raise
        raise AssertionError  # the last round returns or raises

    async def serve(self, accept: Accept) -> None:
        """Receive signals, answer attempts, pass every proven link to `accept`, until cancelled."""
        await self._talks.serve(lambda talk, _: self._answer(talk, accept))

    # --- the dialling side

    async def _round(self, peer: PeerId) -> Link:
        """Make one attempt of ours. Raises DialError, Refused."""
        try:
            with self._talks.ours(peer) as talk:
                pipe, proven, path = await self._punch(talk)
        except Yielded:
            raise await self._talks.given_way(peer) from None
        except (MeshdError, OSError) as error:
            raise dial_error(error, kind=LinkKind.TCP, place=peer.short) from error
        return _link(pipe, proven, path=path, dialled=True)

    async def _punch(self, talk: Talk[Punching]) -> Punched:
        loop = asyncio.get_running_loop()
        knocked_at = loop.time()
        await talk.send(Knock(attempt=talk.id))
        async with self._ground() as mine:  # learns our addresses while the other side learns its own
            ready, came_at = await talk.next(PunchReady, seconds=_READY_SECONDS)
            half_round_trip = (came_at - knocked_at - ready.waited_ms / 1000) / 2
            await talk.send(PunchGo(attempt=talk.id, candidates=mine.candidates))
            await asyncio.sleep(min(max(half_round_trip, 0.0), MOST_HEAD_START))
            handshake = self._handshake()

            async def prove(pipe: TcpPipe) -> Proven:
                return await prove_dialled(
                    pipe, handshake=handshake, expect=talk.peer, binding=pipe.binding()
                )

            race = PunchRace(Side(context=self._dialling, server=False, prove=prove), talk.peer.short)
            places = self._may_dial(talk.peer, ready.candidates, Source.SIGNAL)
            pipe, proven = await race.run(mine, places)
            return pipe, proven, _path(pipe, mine.candidates, ready.candidates)

    # --- the answering side

    async def _answer(self, talk: Talk[Punching], accept: Accept) -> None:
        """Answer one attempt of the other side, and run the whole life of the link that results."""
        try:
            pipe, proven, path = await self._meet(talk)
        except (MeshdError, OSError, Yielded) as error:
            _log.debug("punch_failed", peer=talk.peer.short, why=str(error) or "timed out")
            self._talks.refuse(talk, str(error))
            return
        finally:
            self._talks.over(talk)
        try:
            await accept(_link(pipe, proven, path=path, dialled=False))
        except MeshdError as error:
            _log.debug("link_ended", remote=pipe.remote, why=str(error))
        finally:
            await pipe.aclose()

    async def _meet(self, talk: Talk[Punching]) -> Punched:
        loop = asyncio.get_running_loop()
        knocked_at = loop.time()
        handshake = self._handshake()
        if handshake.credentials.chain is None:
            raise Broken("this node is not in a mesh")
        async with self._ground() as mine:
            waited = min(round((loop.time() - knocked_at) * 1000), MAX_WAITED_MS)
            await talk.send(PunchReady(attempt=talk.id, candidates=mine.candidates, waited_ms=waited))
            go, _ = await talk.next(PunchGo, seconds=_READY_SECONDS)

            async def prove(pipe: TcpPipe) -> Proven:
                binding = self._certificate.sha256
                proven = await prove_accepted(pipe, handshake=handshake, binding=binding)
                if member_of(proven).peer != talk.peer:
                    raise RemoteProtocolError("a different node connected", code="target")
                return proven

            race = PunchRace(Side(context=self._listening, server=True, prove=prove), talk.peer.short)
            places = self._may_dial(talk.peer, go.candidates, Source.SIGNAL)
            pipe, proven = await race.run(mine, places)
            return pipe, proven, _path(pipe, mine.candidates, go.candidates)

    @contextlib.asynccontextmanager
    async def _ground(self) -> AsyncIterator[PunchGround]:
        servers = await resolve(self._servers())
        async with ground(servers, hosts=self._hosts) as mine:
            yield mine


def _path(pipe: TcpPipe, mine: Sequence[Candidate], others: Sequence[Candidate]) -> str:
    """Return `punched` if a NAT lies between, as far as the addresses tell."""
    between = local_addresses.path_between(pipe.local_host, pipe.remote_host)
    nat_here = any(
        candidate.kind == "srflx" and candidate.is_v6 == (":" in pipe.remote_host) for candidate in mine
    )
    seen_there = any(candidate.kind == "host" and candidate.place == pipe.remote for candidate in others)
    return "punched" if between == "public" and (nat_here or not seen_there) else between


def _link(pipe: TcpPipe, proven: Proven, *, path: str, dialled: bool) -> Link:
    return proven_link(
        pipe, proven, kind=LinkKind.TCP, local=pipe.local, remote=pipe.remote, path=path, dialled=dialled
    )
