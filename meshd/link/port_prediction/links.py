"""QUIC links where one NAT gives each flow another port and the other one filters: a second way for quic.

Nothing simpler gets through there, and a relay carries the data meanwhile. What each side does is decided by
what netcheck found out about both networks (plan.py): one opens many ports, the other tries ports until it
hits one of them. Every datagram of the search is a STUN message sealed with the key of the attempt (RFC 8489
14.6), so nobody else can answer; anything else is left in the kernel for the link that gets the socket: it is
its first datagram. Over the path that was found goes QUIC, the dialler being its client, with the proof that
every link has.
"""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence

from meshd.base.errors import Broken, MeshdError, RemoteProtocolError
from meshd.base.log import get
from meshd.base.peer_limits import SEARCHES
from meshd.base.tasks import Owner, first_error
from meshd.identity.keys import PeerId
from meshd.link.attempts import Talk, Talks, Yielded
from meshd.link.interface import Accept, DialError, DialFailure, Link, LinkKind, MayDial, Signals, Transport
from meshd.link.net.stun import Question, ask_udp, bound_socket, of_family, resolve
from meshd.link.port_prediction.plan import (
    GRANT_AGAIN,
    MOST_PROBES,
    PROBES_A_SECOND,
    Part,
    Patience,
    due,
    part,
    ports_to_open,
    ports_to_try,
)
from meshd.link.quic.links import QuicDialer, QuicListener
from meshd.link.quic.sockets import DialPort
from meshd.link.secure.handshake import HandshakeContext, dial_error
from meshd.wire.address import Candidate
from meshd.wire.dialable import Dialable, Source
from meshd.wire.netfacts import NetFacts
from meshd.wire.signal import (
    PROBE_KEY_BYTES,
    Ask,
    OnePort,
    OpenedPorts,
    PortSearchMessage,
    decode_search,
    is_outer,
)
from meshd.wire.stun import (
    MAX_STUN_BYTES,
    TRANSACTION_BYTES,
    Endpoint,
    StunKind,
    StunMessage,
    encode,
    looks_like_stun,
)
from meshd.wire.stun import decode as decode_stun

LEAST_OPEN = 64  # sockets: with fewer a search ends too rarely; the usual limit is 1024 files
OPENED_AT_ONCE = 32  # datagrams, then a pause: a burst of 256 is more than some uplinks queue
_PAUSE_SECONDS = 0.02
REOPEN_SECONDS = 1.0  # until the openings are sent again: one may be lost before it has opened its port
LINGER_SECONDS = 1.0  # for answers that are under way when all ports have been tried
CHOSEN_TIMES = 4  # the word that ends the search is not answered, so it is said again
_OPENING, _PROBE, _CHOSEN = b"o", b"p", b"c"

FoundPath = tuple[socket.socket, Endpoint]
WORD_SECONDS = 4.0  # for the other side's word: its STUN takes 1.5 at most, the rest is the way
_SEARCH_SECONDS = MOST_PROBES / PROBES_A_SECOND + LINGER_SECONDS + WORD_SECONDS  # with ports held open
LINK_SECONDS = 8.0  # from the path to the proof
MAX_SEARCHES = SEARCHES.most
_log = get("link")


class Seal:
    """Makes and reads the datagrams of one attempt."""

    def __init__(self, attempt: bytes, key: bytes) -> None:
        self._attempt = attempt
        self._key = key

    def request(self, word: bytes) -> bytes:
        """Return a request with that word."""
        transaction = secrets.token_bytes(TRANSACTION_BYTES)
        user = word + self._attempt
        message = StunMessage(kind=StunKind.REQUEST, transaction=transaction, username=user)
        return encode(message, key=self._key)

    def answer(self, request: StunMessage, seen: Endpoint) -> bytes:
        """Return the reply to a probe."""
        message = StunMessage(kind=StunKind.SUCCESS, transaction=request.transaction, mapped=seen)
        return encode(message, key=self._key)

    def read(self, data: bytes) -> StunMessage | None:
        """Decode a message; None unless it is sealed with this attempt's key."""
        try:
            message = decode_stun(data, key=self._key)
        except RemoteProtocolError:
            return None
        ours = message.kind is StunKind.SUCCESS or message.username[1:] == self._attempt
        return message if ours else None


def _waiting(sock: socket.socket) -> Iterator[tuple[bytes, Endpoint] | Endpoint]:
    """Yield received STUN messages; ends with the sender of anything else, which stays in the socket."""
    while True:
        try:
            start, _ = sock.recvfrom(MAX_STUN_BYTES + 1, socket.MSG_PEEK)
            if not looks_like_stun(start):
                _, place = sock.recvfrom(1, socket.MSG_PEEK)
                yield Endpoint(str(place[0]), int(place[1]))
                return
            data, place = sock.recvfrom(MAX_STUN_BYTES + 1)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            continue  # an ICMP error of something sent before: it is read once
        yield data, Endpoint(str(place[0]), int(place[1]))


class OpenPorts:
    """Sockets that are open towards one place. Call `close` in the end, also if a link got one of them."""

    def __init__(self, *, host: str = "") -> None:
        self._host = host
        self._sockets: list[socket.socket] = []
        self._found: asyncio.Future[socket.socket] | None = None

    def close(self) -> None:
        """Close all that were not handed out."""
        while self._sockets:
            self._sockets.pop().close()

    async def learn(self, servers: Sequence[Endpoint]) -> Endpoint:
        """Return the outer port of a first socket, so the one before those that `search` opens. Raises
        Broken.
        """
        sock = self._another()
        answers = await ask_udp(sock, [Question(server=server) for server in servers], grace=0.0)
        seen = [answer.mapped for answer in answers if answer is not None]
        if not seen:
            raise Broken("no STUN server answers over UDP")
        return seen[-1]

    async def search(self, place: Dialable, count: int, seal: Seal, seconds: float) -> socket.socket:
        """Open `count` ports towards `place` and answer its probes until it has chosen one.

        The first datagrams are out when this waits first. Raises Broken (too few sockets), TimeoutError.
        """
        loop = asyncio.get_running_loop()
        target = Endpoint(place.host, place.port)
        first = len(self._sockets)
        with contextlib.suppress(OSError):  # too many open files: fewer have to do
            while len(self._sockets) < first + count:
                self._another()
        mine = self._sockets[first:]
        if len(mine) < min(count, LEAST_OPEN):
            raise Broken(f"only {len(mine)} sockets can be opened")
        self._found = loop.create_future()
        for sock in mine:
            loop.add_reader(sock, self._read, sock, target, seal)
        try:
            async with asyncio.timeout(seconds), Owner() as owner:
                owner.start(_keep_open(mine, place, seal.request(_OPENING)), name="port-search-open")
                chosen = await self._found
                owner.cancel()
        finally:
            for sock in mine:
                loop.remove_reader(sock)
        return chosen

    def keep(self, sock: socket.socket) -> socket.socket:
        """Hand one out: `close` leaves it open."""
        self._sockets.remove(sock)
        return sock

    def _another(self) -> socket.socket:
        sock = bound_socket(socket.AF_INET, socket.SOCK_DGRAM, host=self._host)
        self._sockets.append(sock)
        return sock

    def _read(self, sock: socket.socket, target: Endpoint, seal: Seal) -> None:
        for came in _waiting(sock):
            if isinstance(came, Endpoint):
                if came == target:
                    self._choose(sock)  # its first word: it has chosen, and that was lost
                else:
                    sock.recvfrom(1)  # noise
                continue
            data, source = came
            request = seal.read(data) if source == target else None
            if request is None or request.kind is not StunKind.REQUEST:
                continue
            with contextlib.suppress(OSError):
                sock.sendto(seal.answer(request, source), (source.host, source.port))
            if request.username[:1] == _CHOSEN:
                self._choose(sock)

    def _choose(self, sock: socket.socket) -> None:
        if self._found is not None and not self._found.done():
            self._found.set_result(sock)


async def _keep_open(sockets: Sequence[socket.socket], target: Dialable, opening: bytes) -> None:
    while True:
        for at, sock in enumerate(sockets):
            with contextlib.suppress(OSError):
                sock.sendto(opening, (target.host, target.port))
            if at % OPENED_AT_ONCE == OPENED_AT_ONCE - 1:
                await asyncio.sleep(_PAUSE_SECONDS)
        await asyncio.sleep(REOPEN_SECONDS)


async def probe(sock: socket.socket, at: Dialable, ports: Iterator[int], seal: Seal) -> Endpoint:
    """Try ports of the host of `at` from `sock` until one answers; it is told so. Raises Broken: none did."""
    loop = asyncio.get_running_loop()
    host = at.host
    found: list[Endpoint] = []
    over = asyncio.Event()

    def read() -> None:
        for came in _waiting(sock):
            if isinstance(came, Endpoint):
                sock.recvfrom(1)  # noise: nobody on the other side speaks first
                continue
            data, source = came
            if source.host == host and seal.read(data) is not None:
                found.append(source)
                over.set()

    # Try ports until one answers or none is left.
    loop.add_reader(sock, read)
    try:
        async with Owner() as owner:
            trying = owner.start(_try_all(sock, host, ports, seal.request(_PROBE)), name="port-search-probe")
            trying.add_done_callback(lambda _: over.set())
            await over.wait()
            owner.cancel()
    finally:
        loop.remove_reader(sock)
    # Tell the other side its port, several times in case datagrams are lost.
    if not found:
        raise Broken(f"{trying.result()} ports of `{host}` were tried; none answered")
    place = found[0]
    for _ in range(CHOSEN_TIMES):
        with contextlib.suppress(OSError):
            sock.sendto(seal.request(_CHOSEN), (place.host, place.port))
        await asyncio.sleep(_PAUSE_SECONDS)
    return place


async def _try_all(sock: socket.socket, host: str, ports: Iterator[int], request: bytes) -> int:
    """Send the request to each, as fast as may be; returns how many there were."""
    loop = asyncio.get_running_loop()
    began, sent = loop.time(), 0
    for port in ports:
        if sent >= due(loop.time() - began):
            await asyncio.sleep(_PAUSE_SECONDS)
        with contextlib.suppress(OSError):
            sock.sendto(request, (host, port))
        sent += 1
    await asyncio.sleep(LINGER_SECONDS)
    return sent


class PortPredictionLinks:
    """Links by port prediction. Dialer and Listener: `serve` must run for either, it hears both's signals.

    `facts` is what is known of our network now, `facts_of` what the peer's record says of its own; None or
    unknown facts: not tried. `servers` gives STUN servers as `host:port`. Only where `may_dial` allows it are
    ports opened or tried: at addresses that the peer's own record claims.
    """

    transport = Transport.QUIC_PORT_PREDICTION
    kind = LinkKind.QUIC

    def __init__(
        self,
        handshake: Callable[[], HandshakeContext],
        signals: Signals,
        *,
        servers: Callable[[], Sequence[str]],
        facts: Callable[[], NetFacts | None],
        facts_of: Callable[[PeerId], NetFacts | None],
        may_dial: MayDial,
    ) -> None:
        self._handshake = handshake
        self._servers = servers
        self._facts = facts
        self._facts_of = facts_of
        self._may_dial = may_dial
        self._patience = Patience()
        self._granted = Patience(GRANT_AGAIN)
        self._searches = 0
        self._talks: Talks[PortSearchMessage] = Talks(
            handshake().credentials.key.peer,
            signals,
            kind=LinkKind.QUIC,
            first=Ask,
            decode=decode_search,
        )

    def candidates(self) -> Sequence[Candidate]:
        """Return no candidates: what an attempt finds is good for that attempt only."""
        return ()

    def addresses_changed(self) -> None:
        """Forget failures: this machine is in another network, and what did not work may work now."""
        self._patience.forget()
        self._granted.forget()

    @property
    def searches(self) -> int:
        """The number of other nodes' searches that this one takes part in now."""
        return self._searches

    async def dial(self, peer: PeerId, candidates: Sequence[Dialable] = ()) -> Link:
        """Search a path to `peer`, if these two networks want one; its candidates are not needed.

        At most 20 s, and not again within a minute after a search that found nothing. Raises DialError, or
        Refused when the peer said why not.
        """
        mine, theirs = self._facts(), self._facts_of(peer)
        does = part(mine, theirs) if mine is not None and theirs is not None else None
        if mine is None or does is None:
            raise _not_now("a port search makes no sense between these two networks")
        now = asyncio.get_running_loop().time
        if wait := self._patience.wait(peer, now()):
            raise _not_now(f"a port search for `{peer.short}` failed; next try in {wait:.0f} s")
        try:
            with self._talks.ours(peer) as talk:
                sock, place = await self._search_ours(talk, mine, does)
        except Yielded:
            raise await self._talks.given_way(peer) from None
        except (MeshdError, OSError) as error:
            self._patience.failed(peer, now())
            raise dial_error(error, kind=LinkKind.QUIC, place=peer.short) from error
        try:
            return await self._over(sock, place, peer)
        except MeshdError:
            self._patience.failed(peer, now())
            raise

    async def serve(self, accept: Accept) -> None:
        """Receive signals, take part in searches, pass every proven link to `accept`, until cancelled."""
        await self._talks.serve(lambda talk, ask: self._answer(talk, ask, accept))

    # --- the dialling side

    def _allowed(self, peer: PeerId, place: Endpoint) -> Dialable:
        """Return the place as dialable. Raises Broken when nothing may be sent there for that peer."""
        found = self._may_dial(peer, [Candidate(place.host, place.port, "udp", "srflx")], Source.SEARCH)
        if not found:
            raise Broken(f"the record of `{peer.short}` does not contain `{place.host}`")
        return found[0]

    async def _search_ours(self, talk: Talk[PortSearchMessage], mine: NetFacts, does: Part) -> FoundPath:
        key = secrets.token_bytes(PROBE_KEY_BYTES)
        seal = Seal(talk.id, key)
        if does is Part.OPENS:
            await talk.send(Ask(attempt=talk.id, key=key, facts=mine))
            here, _ = await talk.next(OnePort, seconds=WORD_SECONDS)
            return await self._open(talk, mine, self._allowed(talk.peer, here.place), seal)
        sock, place = await self._one_port()
        return await self._try(talk, sock, seal, Ask(attempt=talk.id, key=key, facts=mine, here=place))

    async def _over(self, sock: socket.socket, place: Endpoint, peer: PeerId) -> Link:
        """Dial QUIC over the path that was found; the link owns the socket."""
        taken = False

        def port(candidate: Dialable) -> DialPort:
            nonlocal taken
            taken = True
            return DialPort(candidate, sock=sock)

        try:
            dialer = QuicDialer(self._handshake, ports=port, path="punched")
            return await dialer.dial(peer, [self._allowed(peer, place)])
        finally:
            if not taken:
                sock.close()

    # --- the answering side

    async def _answer(self, talk: Talk[PortSearchMessage], ask: PortSearchMessage, accept: Accept) -> None:
        """Run one search of the other side, and the whole life of the link that results."""
        try:
            assert isinstance(ask, Ask)
            sock, place = await self._search_theirs(talk, ask)
        except (MeshdError, OSError, Yielded) as error:
            _log.debug("search_failed", peer=talk.peer.short, why=str(error) or "timed out")
            self._talks.refuse(talk, str(error))
            return
        finally:
            self._talks.over(talk)
        self._patience.forget(talk.peer)
        await self._take_in(sock, place, talk.peer, accept)

    async def _search_theirs(self, talk: Talk[PortSearchMessage], ask: Ask) -> FoundPath:
        mine = self._facts()
        does = part(mine, ask.facts) if mine is not None else None
        if mine is None or does is None or self._handshake().credentials.chain is None:
            raise Broken("a port search makes no sense between these two networks")
        if self._searches >= MAX_SEARCHES:
            raise Broken("too many searches at once")
        self._searches += 1
        try:
            seal = Seal(talk.id, ask.key)
            if does is Part.OPENS and ask.here is not None:
                target = self._allowed(talk.peer, ask.here)
                with self._grant(talk.peer, target.host):
                    return await self._open(talk, mine, target, seal)
            sock, place = await self._one_port()
            return await self._try(talk, sock, seal, OnePort(attempt=talk.id, place=place), grant=True)
        finally:
            self._searches -= 1

    @contextlib.contextmanager
    def _grant(self, peer: PeerId, host: str) -> Iterator[None]:
        """Grant a search for `peer` through the ports of `host`; after a failure neither gets one again soon.

        Raises Broken.
        """
        now = asyncio.get_running_loop().time
        if wait := max(self._granted.wait(peer, now()), self._granted.wait(host, now())):
            raise Broken(f"a port search for this node failed; next try in {wait:.0f} s")
        self._granted.failed(peer, now())  # before anything is sent: several may be asked for at once
        self._granted.failed(host, now())
        yield
        self._granted.forget(peer)
        self._granted.forget(host)

    async def _take_in(self, sock: socket.socket, place: Endpoint, peer: PeerId, accept: Accept) -> None:
        """Let the dialler's QUIC in over the path that was found, once."""
        listener = QuicListener(self._handshake, path="punched")
        listener.adopt(sock)
        begun, over = asyncio.Event(), asyncio.Event()

        async def take(link: Link) -> None:
            if link.info.peer == peer and not begun.is_set():
                begun.set()
                try:
                    await accept(link)
                finally:
                    over.set()

        try:
            async with Owner() as owner:
                owner.start(listener.serve(take), name=f"port-search-{place}")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LINK_SECONDS):
                        await begun.wait()
                if begun.is_set():
                    await over.wait()
                owner.cancel()
        finally:
            listener.close()

    # --- both

    async def _open(
        self, talk: Talk[PortSearchMessage], mine: NetFacts, target: Dialable, seal: Seal
    ) -> FoundPath:
        """Hold ports open until the other side has hit one."""
        ports = OpenPorts()
        try:
            seen = await ports.learn(of_family(await resolve(self._servers()), socket.AF_INET))
            if not is_outer(seen):
                raise Broken(f"`{seen}` is not a NAT's public port")
            count, step = ports_to_open(mine)
            async with Owner() as owner:
                searching = owner.start(ports.search(target, count, seal, _SEARCH_SECONDS), name="search")
                await asyncio.sleep(0)  # the first ports are open before the other side hears of them
                await talk.send(OpenedPorts(attempt=talk.id, seen=seen, step=step, count=count))
            return ports.keep(searching.result()), Endpoint(target.host, target.port)
        except ExceptionGroup as group:
            raise first_error(group) from None
        finally:
            ports.close()

    async def _one_port(self) -> tuple[socket.socket, Endpoint]:
        """Return a socket, and its outer address. Raises Broken."""
        sock = bound_socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            servers = of_family(await resolve(self._servers()), socket.AF_INET)
            answers = await ask_udp(sock, [Question(server=server) for server in servers], grace=0.0)
            for answer in answers:
                if answer is not None and is_outer(answer.mapped):
                    return sock, answer.mapped
            raise Broken("no STUN server answers over UDP")
        except BaseException:
            sock.close()
            raise

    async def _try(
        self,
        talk: Talk[PortSearchMessage],
        sock: socket.socket,
        seal: Seal,
        word: PortSearchMessage,
        *,
        grant: bool = False,
    ) -> FoundPath:
        """Name our port by `word`, and try those that the other side then opens towards it. `grant`: the
        other side has asked for it."""
        try:
            await talk.send(word)
            opened, _ = await talk.next(OpenedPorts, seconds=WORD_SECONDS)
            place = self._allowed(talk.peer, opened.seen)
            ports = ports_to_try(opened, secrets.randbits(64))
            with self._grant(talk.peer, place.host) if grant else contextlib.nullcontext():
                return sock, await probe(sock, place, ports, seal)
        except BaseException:
            sock.close()
            raise


def _not_now(what: str) -> DialError:
    return DialError(what, kind=LinkKind.QUIC, failure=DialFailure.UNFIT)
