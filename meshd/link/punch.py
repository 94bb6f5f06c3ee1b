"""TCP links through NATs, by simultaneous open: a second way for links of the kind tcp.

Both sides learn by STUN over TCP how the port they will use looks from outside, tell each other over signals,
and connect at the same moment (punch_port.py). What comes of it is a TCP connection like any other: TLS 1.3
over it, the dialler being its client, and the proof inside (punch_race.py). The messages: wire/punching.py.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from meshd.base.errors import Broken, MeshdError, RemoteProtocolError
from meshd.base.log import get
from meshd.base.tasks import Owner
from meshd.identity.certificate import make_link_certificate
from meshd.identity.keys import PeerId
from meshd.identity.proof import Proven, Purpose
from meshd.link import interfaces
from meshd.link.interface import DialError, DialFailure, Link, LinkInfo, LinkKind, Signals
from meshd.link.proving import ProvenLink, Standing, dial_error, member_of, prove_accepted, prove_dialled
from meshd.link.punch_attempts import Attempt, Attempts
from meshd.link.punch_port import PunchGround, ground
from meshd.link.punch_race import PunchRace, Side
from meshd.link.stun import resolve
from meshd.link.tcp_pipe import TcpPipe
from meshd.link.tls import dialer_context, listener_context
from meshd.wire.address import Candidate
from meshd.wire.punching import ATTEMPT_BYTES, MAX_WAITED_MS, Go, Knock, No, Punching, Ready, decode, encode

READY_SECONDS = 4.0  # for the other side's word: its own STUN takes 1.5 at most, the rest is the way
YIELD_SECONDS = 8.0  # for the other side's attempt, when ours yields to it
ROUNDS = 2  # with ports of their own: what a router remembers of the first may be in the way
MOST_HEAD_START = 0.5  # seconds; more than half a round trip of any path worth having
_INBOX = 4  # messages of one attempt that wait; there are three in all

_log = get("link")

Accept = Callable[[Link], Awaitable[None]]
Punched = tuple[TcpPipe, Proven, str]  # with the path, as in LinkInfo
Word = TypeVar("Word", Ready, Go)


class PunchLinks:
    """Dialer and Listener in one: `serve` must run for either, it hears the signals of both.

    `servers` gives STUN servers that answer over TCP as `host:port` (the relay, public members). `hosts` and
    `loopback` are for tests on one machine: addresses to offer, and whether loopback may be connected to.
    """

    def __init__(
        self,
        standing: Callable[[], Standing],
        signals: Signals,
        *,
        servers: Callable[[], Sequence[str]],
        hosts: Sequence[str] | None = None,
        loopback: bool = False,
    ) -> None:
        self._standing = standing
        self._signals = signals
        self._servers = servers
        self._hosts = hosts
        self._loopback = loopback
        self._attempts = Attempts(standing().credentials.key.peer)
        self._certificate = make_link_certificate()
        self._listening = listener_context(self._certificate)
        self._dialling = dialer_context()
        self._yielded: dict[PeerId, set[asyncio.Event]] = {}  # dials that wait for that peer's own attempt
        self._owner: Owner | None = None  # while `serve` runs

    @property
    def kind(self) -> LinkKind:
        """TCP."""
        return LinkKind.TCP

    def candidates(self) -> Sequence[Candidate]:
        """None: an address of an attempt is good for that attempt only."""
        return ()

    async def dial(self, peer: PeerId, candidates: Sequence[Candidate] = ()) -> Link:
        """Punch to `peer`; its addresses come over signals, so `candidates` are not needed.

        At most two rounds, 25 s in all. Raises DialError, or Refused when the peer said why not. When both
        sides dial at once, one of the two links is made: on the side with the lower id `serve` hands it on,
        and this raises DialError.
        """
        for last in [False] * (ROUNDS - 1) + [True]:
            try:
                return await self._round(peer)
            except DialError as error:
                if last or error.failure is not DialFailure.TIMEOUT:
                    raise
        raise AssertionError  # the last round returns or raises

    async def serve(self, accept: Accept) -> None:
        """Hear signals, answer attempts, hand every proven link to `accept`, until cancelled."""
        try:
            async with Owner() as owner:
                self._owner = owner
                while True:
                    peer, payload = await self._signals.receive()
                    try:
                        message = decode(payload)
                    except RemoteProtocolError as error:
                        _log.debug("signal_refused", peer=peer.short, why=error.what)
                        continue
                    if isinstance(message, Knock):
                        self._knocked(peer, message.attempt, accept, owner)
                    else:
                        self._attempts.heard(peer, message)
        finally:
            self._owner = None

    def _say(self, peer: PeerId, message: No) -> None:
        """Send it beside everything else; if it is lost, the other side's time runs out."""

        async def say() -> None:
            with contextlib.suppress(Broken):
                await self._signals.send(peer, encode(message))

        if self._owner is not None:
            with contextlib.suppress(RuntimeError):  # shutting down
                self._owner.start(say(), name="punch-no")

    # --- the dialling side

    async def _round(self, peer: PeerId) -> Link:
        """One attempt of ours. Raises DialError, Refused."""
        inbox = _Inbox()
        attempt_id = secrets.token_bytes(ATTEMPT_BYTES)
        attempt = self._attempts.begin(attempt_id, peer, inbox.put)
        try:
            pipe, proven, path = await self._punch(peer, attempt_id, inbox)
        except _Glare:
            attempt.yielded = True
            raise await self._other_attempt(peer) from None
        except (MeshdError, OSError) as error:
            raise dial_error(error, kind=LinkKind.TCP, place=peer.short) from error
        except asyncio.CancelledError:
            self._say(peer, No(attempt=attempt_id, code="ended"))
            raise
        finally:
            self._attempts.end(attempt_id)
        return ProvenLink(pipe, proven.leftover, _info(pipe, proven, path=path, dialled=True))

    async def _punch(self, peer: PeerId, attempt_id: bytes, inbox: "_Inbox") -> Punched:
        loop = asyncio.get_running_loop()
        knocked_at = loop.time()
        await self._signals.send(peer, encode(Knock(attempt=attempt_id)))
        async with self._ground() as mine:  # learns our addresses while the other side learns its own
            ready, came_at = await inbox.next(Ready)
            one_way = (came_at - knocked_at - ready.waited_ms / 1000) / 2
            await self._signals.send(peer, encode(Go(attempt=attempt_id, candidates=mine.candidates)))
            await asyncio.sleep(min(max(one_way, 0.0), MOST_HEAD_START))
            standing = self._standing()

            async def prove(pipe: TcpPipe) -> Proven:
                proven = await prove_dialled(
                    pipe, standing=standing, expect=peer, purpose=Purpose.MEMBER, binding=pipe.binding()
                )
                member_of(proven)
                return proven

            race = PunchRace(Side(context=self._dialling, server=False, prove=prove), peer.short)
            pipe, proven = await race.run(mine, ready.candidates, loopback=self._loopback)
            return pipe, proven, _path(pipe, mine.candidates, ready.candidates)

    async def _other_attempt(self, peer: PeerId) -> DialError:
        """Wait for the end of the attempt that ours yields to; what our dial raises then."""
        over = asyncio.Event()
        waiting = self._yielded.setdefault(peer, set())
        waiting.add(over)
        try:
            async with asyncio.timeout(YIELD_SECONDS):
                await over.wait()
        except TimeoutError:
            pass
        finally:
            waiting.discard(over)
            if not waiting:
                self._yielded.pop(peer, None)
        what = f"`{peer.short}` punched at the same time, so its attempt was the one that went on"
        return DialError(what, kind=LinkKind.TCP, failure=DialFailure.REFUSED)

    # --- the answering side

    def _knocked(self, peer: PeerId, attempt_id: bytes, accept: Accept, owner: Owner) -> None:
        inbox = _Inbox()
        task: asyncio.Task[None] | None = None

        def heard(message: Punching) -> None:
            if isinstance(message, No) and task is not None:
                task.cancel()  # wherever it is; once it has a link no message reaches it any more
            else:
                inbox.put(message)

        answer = self._attempts.answer(attempt_id, peer, heard)
        if isinstance(answer, No):
            self._say(peer, answer)
        elif isinstance(answer, Attempt):
            task = owner.start(self._answer(peer, attempt_id, inbox, accept), name=f"punch-{peer.short}")
            # a task that is cancelled before its first step never comes to its own clean-up
            task.add_done_callback(lambda _: self._attempts.end(attempt_id))

    async def _answer(self, peer: PeerId, attempt_id: bytes, inbox: "_Inbox", accept: Accept) -> None:
        """One attempt of the other side, and the whole life of the link that comes of it."""
        try:
            pipe, proven, path = await self._meet(peer, attempt_id, inbox)
        except (MeshdError, OSError, _Glare) as error:
            _log.debug("punch_failed", peer=peer.short, why=str(error) or "timed out")
            return
        finally:
            self._attempts.end(attempt_id)
            for over in self._yielded.get(peer, ()):
                over.set()
        try:
            await accept(ProvenLink(pipe, proven.leftover, _info(pipe, proven, path=path, dialled=False)))
        except MeshdError as error:
            _log.debug("link_ended", remote=pipe.remote, why=str(error))
        finally:
            await pipe.aclose()

    async def _meet(self, peer: PeerId, attempt_id: bytes, inbox: "_Inbox") -> Punched:
        loop = asyncio.get_running_loop()
        knocked_at = loop.time()
        standing = self._standing()
        if standing.credentials.chain is None:
            raise Broken("this node is in no mesh")
        async with self._ground() as mine:
            waited = min(round((loop.time() - knocked_at) * 1000), MAX_WAITED_MS)
            ready = Ready(attempt=attempt_id, candidates=mine.candidates, waited_ms=waited)
            await self._signals.send(peer, encode(ready))
            go, _ = await inbox.next(Go)

            async def prove(pipe: TcpPipe) -> Proven:
                binding = self._certificate.sha256
                proven = await prove_accepted(pipe, standing=standing, binding=binding)
                if member_of(proven).peer != peer:
                    raise RemoteProtocolError("another node came through", code="target")
                return proven

            race = PunchRace(Side(context=self._listening, server=True, prove=prove), peer.short)
            pipe, proven = await race.run(mine, go.candidates, loopback=self._loopback)
            return pipe, proven, _path(pipe, mine.candidates, go.candidates)

    @contextlib.asynccontextmanager
    async def _ground(self) -> AsyncIterator[PunchGround]:
        servers = await resolve(self._servers())
        async with ground(servers, hosts=self._hosts) as mine:
            yield mine


class _Glare(Exception):
    """The other side's attempt goes on instead of ours."""


class _Inbox:
    """What the other side says about one attempt, with the time at which it came."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[Punching, float]] = asyncio.Queue(_INBOX)

    def put(self, message: Punching) -> None:
        """Keep it; dropped when there are more than there are words for."""
        with contextlib.suppress(asyncio.QueueFull):
            self._queue.put_nowait((message, asyncio.get_running_loop().time()))

    async def next(self, word: type[Word]) -> tuple[Word, float]:
        """The next message of that kind. Raises _Glare, Broken (the other side ends it), TimeoutError."""
        async with asyncio.timeout(READY_SECONDS):
            while True:
                message, at = await self._queue.get()
                if isinstance(message, word):
                    return message, at
                if isinstance(message, No) and message.code == "glare":
                    raise _Glare
                if isinstance(message, No):
                    raise Broken(message.text or "the other side ended the attempt")


def _path(pipe: TcpPipe, mine: Sequence[Candidate], others: Sequence[Candidate]) -> str:
    """`punched` if a NAT lies between, as far as the addresses tell."""
    between = interfaces.path_between(pipe.local_host, pipe.remote_host)
    nat_here = any(one.kind == "srflx" and one.is_v6 == (":" in pipe.remote_host) for one in mine)
    seen_there = any(one.kind == "host" and one.place == pipe.remote for one in others)
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
