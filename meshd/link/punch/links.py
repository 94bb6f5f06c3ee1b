"""TCP links through NATs, by simultaneous open: a second way for links of the kind tcp.

Both sides learn by STUN over TCP how the port they will use looks from outside, tell each other over signals,
and connect at the same moment (simultaneous_open.py). What comes of it is a TCP connection like any other:
TLS 1.3 over it, the dialler being its client, and the proof inside (race.py). The messages: wire/signal.py.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from meshd.base.errors import Broken, MeshdError, RemoteProtocolError
from meshd.base.log import get
from meshd.identity.keys import PeerId
from meshd.identity.proof import Proven, Purpose
from meshd.identity.tls_certificate import make_link_certificate
from meshd.link.attempts import Talk, Talks, Yielded
from meshd.link.interface import DialError, DialFailure, Link, LinkInfo, LinkKind, MayDial, Signals, Transport
from meshd.link.net import local_addresses
from meshd.link.net.stun import resolve
from meshd.link.punch.race import PunchRace, Side
from meshd.link.punch.simultaneous_open import PunchGround, ground
from meshd.link.secure.handshake import (
    HandshakeContext,
    ProvenLink,
    dial_error,
    member_of,
    prove_accepted,
    prove_dialled,
)
from meshd.link.secure.tls import dialer_context, listener_context
from meshd.link.tcp.pipe import TcpPipe
from meshd.wire.address import Candidate
from meshd.wire.dialable import Dialable, Source
from meshd.wire.signal import MAX_WAITED_MS, Knock, PunchGo, Punching, PunchReady, decode_punching

_READY_SECONDS = 4.0  # for the other side's word: its own STUN takes 1.5 at most, the rest is the way
ROUNDS = 2  # with ports of their own: what a router remembers of the first may be in the way
MOST_HEAD_START = 0.5  # seconds; more than half a round trip of any path worth having

_log = get("link")

Accept = Callable[[Link], Awaitable[None]]
Punched = tuple[TcpPipe, Proven, str]  # with the path, as in LinkInfo


class PunchLinks:
    """Dialer and Listener in one: `serve` must run for either, it hears the signals of both.

    `servers` gives STUN servers that answer over TCP as `host:port` (the relay, public members). `worth`
    says whether it is of any use to try a peer now (feasibility.py). `hosts`: addresses to offer, for a node
    that keeps to this machine. `may_dial` says what of the other side's addresses may be connected to.
    """

    transport = Transport.TCP_PUNCH

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

    @property
    def kind(self) -> LinkKind:
        """The kind TCP."""
        return LinkKind.TCP

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
        return ProvenLink(pipe, proven.leftover, _info(pipe, proven, path=path, dialled=True))

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
                proven = await prove_dialled(
                    pipe,
                    handshake=handshake,
                    expect=talk.peer,
                    purpose=Purpose.MEMBER,
                    binding=pipe.binding(),
                )
                member_of(proven)
                return proven

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
            await accept(ProvenLink(pipe, proven.leftover, _info(pipe, proven, path=path, dialled=False)))
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


def _info(pipe: TcpPipe, proven: Proven, *, path: str, dialled: bool) -> LinkInfo:
    return LinkInfo(
        kind=LinkKind.TCP,
        peer=proven.peer,
        member=member_of(proven),
        local=pipe.local,
        remote=pipe.remote,
        path=path,
        dialled=dialled,
        established_at=asyncio.get_running_loop().time(),
    )
