"""Relayed links through another member: for two nodes that nothing connects but a third that has both.

The third passes on the bytes of one stream to one of another. Inside, the two speak TLS with each other and
run the same proof as on every link, so it can read nothing and impersonate neither. Only members with a
direct link pass on, and only to nodes they have a direct link to: nothing is relayed twice.
"""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from ssl import SSLContext
from typing import Protocol

from meshd.base import log
from meshd.base.admission import Release, Slots
from meshd.base.backoff import Asked
from meshd.base.errors import Broken, Closed, EndOfStream, MeshdError, Refused
from meshd.base.peer_limits import (
    PASSED_ON,
    PASSED_ON_OF_ISSUER,
    PASSED_ON_OF_PEER,
    WELCOMED,
    WELCOMED_BY_PEER,
)
from meshd.base.tasks import Owner, first_error, first_success
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member
from meshd.identity.proof import Proven, Purpose
from meshd.identity.tls_certificate import make_link_certificate
from meshd.link.buffered_pipe import BufferedPipe
from meshd.link.interface import Accept, DialError, DialFailure, Link, LinkKind, Transport
from meshd.link.secure.handshake import (
    HandshakeContext,
    ProvenLink,
    dial_error,
    prove_accepted,
    prove_dialled,
    proven_link,
)
from meshd.link.secure.tls import TlsEngine, dialer_context, listener_context
from meshd.wire.address import Candidate
from meshd.wire.dialable import Dialable

_HIGH_BYTES = 64 << 10  # in each direction, in our own buffers
_SPACE_BYTES = 64 << 10
_ENDED = 1  # code of a reset
SERVICE = "onward"
TO, FROM = "to", "from"  # metadata: node ids; `to` asks to pass on, `from` says whose bytes these are
_ATTEMPT_SECONDS = 8.0
_STAGGER_SECONDS = 0.25  # between members that are asked
SLOW_SECONDS = 2.0  # without a link: one that is given up then has not helped
MAX_ASKED = 3  # members
CODE_ENDED = 1
LOG = log.get("link")


class Bytes(Protocol):
    """A stream of a session (peer/interface.py), as far as it is needed here."""

    @property
    def peer(self) -> PeerId: ...
    @property
    def metadata(self) -> Mapping[str, str | int | bytes]: ...
    async def read(self) -> bytes | memoryview: ...
    def consumed(self, count: int) -> None: ...
    async def write(self, data: bytes | memoryview) -> None: ...
    def write_eof(self) -> None: ...
    def reset(self, code: int, reason: str) -> None: ...


class StreamPipe(BufferedPipe):
    """A RawPipe (secure/handshake.py). Works only while `run` runs."""

    def __init__(self, stream: Bytes, context: SSLContext, *, server_side: bool) -> None:
        super().__init__()
        self._stream = stream
        self._engine = TlsEngine(context, server_side=server_side)
        self._space = memoryview(bytearray(_SPACE_BYTES))
        self._out: deque[bytes] = deque()
        self._out_bytes = 0
        self._chunks: deque[bytes] = deque()
        self._closing = False
        self._why_unsecured: MeshdError | None = None  # as the stream or TLS said it
        self._wake = asyncio.Event()  # something to send
        self._taken = asyncio.Event()  # less than the high-water mark is unread
        self._taken.set()
        self._settled = asyncio.Event()

    # Life.

    async def run(self) -> None:
        """Move the bytes until both directions have ended."""
        try:
            async with Owner() as owner:
                owner.start(self._write_out(), name="pipe out")
                owner.start(self._read_in(), name="pipe in")
        finally:
            self._finish(Broken, "the path through the member is lost")
            self._settled.set()

    async def secure(self) -> None:
        """Begin the handshake and wait for its end. Raises Refused, too."""
        self._shake()
        await super().secure()

    def binding(self) -> bytes:
        """Return the SHA-256 of the listener's certificate; for the dialler, after `secure`."""
        return self._engine.binding()

    async def aclose(self) -> None:
        """Close the pipe as Link.aclose: what was sent before still goes out."""
        if not self._closing:
            await super().aclose()

    def abort(self) -> None:
        """Drop it at once, without a goodbye."""
        self._closing = True
        self._finish(Closed, "this link was closed")
        self._stream.reset(_ENDED, "the link was closed")
        self._wake.set()
        self._taken.set()

    def divert(self, take: Callable[[bytes], bool]) -> None:
        """Do nothing: every chunk of this kind goes through `receive`."""

    # Inside.

    async def _say_goodbye(self, *, ended: bool) -> None:
        self._closing = True
        self._chunks.clear()
        self._engine.finish()
        self._send_out(self._engine.outgoing())
        await self._settled.wait()

    async def _write_out(self) -> None:
        try:
            while True:
                while self._out:
                    data = self._out.popleft()
                    await self._stream.write(data)
                    self._out_bytes -= len(data)
                    if self._out_bytes < _HIGH_BYTES:
                        self._writable.set()
                if self._closing:
                    self._stream.write_eof()
                    return
                self._wake.clear()
                await self._wake.wait()
        except MeshdError as error:
            self._lost(error)

    async def _read_in(self) -> None:
        try:
            while True:
                await self._taken.wait()
                data = await self._stream.read()
                if self._closing:
                    self._stream.consumed(len(data))
                    continue  # only the end is waited for
                self._engine.feed(data)
                if not self._secured:
                    self._shake()
                if self._secured:
                    self._pull()
                self._stream.consumed(len(data))
        except EndOfStream:
            self._finish(Broken, "the path through the member ended without a goodbye")
        except MeshdError as error:
            self._lost(error)

    def _shake(self) -> None:
        if self._secured:
            return
        try:
            self._secured = self._engine.advance()
        finally:
            self._send_out(self._engine.outgoing())
        self._readable.set()

    def _pull(self) -> None:
        try:
            while count := self._engine.unseal(self._space):
                self._chunks.append(bytes(self._space[:count]))
                self._unread += count
        except EndOfStream:
            self._finish(EndOfStream, "the other side ended the link")
        self._send_out(self._engine.outgoing())
        if self._unread >= _HIGH_BYTES and not self._closing:
            self._taken.clear()
        self._readable.set()

    def _put(self, data: Sequence[bytes | memoryview], size: int) -> None:
        self._send_out(self._engine.seal(data))

    def _fetch(self) -> bytes:
        chunk = self._chunks.popleft()
        self._unread -= len(chunk)
        if self._unread < _HIGH_BYTES:
            self._taken.set()
        return chunk

    def _send_out(self, data: bytes) -> None:
        if data:
            self._out.append(data)
            self._out_bytes += len(data)
            if self._out_bytes >= _HIGH_BYTES and self._end is None:
                self._writable.clear()
        self._wake.set()

    def _lost(self, error: MeshdError) -> None:
        """End the pipe: the stream, or TLS on it, is broken."""
        if self._secured:
            self._finish(Broken, error.what)
        elif self._end is None:
            self._why_unsecured = error.afresh()
            self._finish(type(error), error.what)
        self._stream.reset(_ENDED, "the link is broken")
        self._closing = True
        self._wake.set()

    def _finish(self, kind: type[MeshdError], what: str) -> None:
        super()._finish(kind, what)
        self._taken.set()

    def _check(self) -> None:
        if self._why_unsecured is not None:
            raise self._why_unsecured.afresh()
        super()._check()


class Sessions(Protocol):
    """The part of the mesh that this needs."""

    def direct(self) -> Sequence[PeerId]:
        """Return peers with a link now that is not relayed."""
        ...

    def open_stream(
        self, peer: PeerId, service: str, *, metadata: Mapping[str, str | int | bytes], bulk: bool = False
    ) -> Bytes: ...

    def handle(
        self,
        service: str,
        handler: Callable[[Bytes], Awaitable[None]],
        *,
        allow: Callable[[Member, Mapping[str, str | int | bytes]], str | Release | None],
        quiet: bool = False,
    ) -> None: ...


class MemberRelayLinks:
    """Dialer and Listener of such links, and the one who passes on. `attach` makes it work.

    `passes_on`: this node lets others meet through it.
    """

    transport = Transport.MEMBER_RELAY
    kind = LinkKind.RELAY

    def __init__(
        self,
        handshake: Callable[[], HandshakeContext],
        *,
        passes_on: bool = True,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self._handshake = handshake
        self._passes_on = passes_on
        self._sessions: Sessions | None = None
        self._certificate = make_link_certificate()
        self._listening = listener_context(self._certificate)
        self._dialling = dialer_context()
        self._accept: Accept | None = None
        self._owner: Owner | None = None
        self._asked: Asked[PeerId, PeerId] = Asked(rng)
        self._passed_on = Slots(PASSED_ON, PASSED_ON_OF_PEER, PASSED_ON_OF_ISSUER)
        self._welcomed = Slots(WELCOMED, WELCOMED_BY_PEER)

    def candidates(self) -> Sequence[Candidate]:
        """Return no candidates: a member that knows both is found by asking."""
        return ()

    def attach(self, sessions: Sessions) -> None:
        """Let members carry links from here on."""
        self._sessions = sessions
        # a member asks again and again for one that is away
        sessions.handle(SERVICE, self._take, allow=self._allow, quiet=True)

    async def serve(self, accept: Accept) -> None:
        """Own the links of this kind, and pass incoming ones to `accept`, until cancelled."""
        try:
            async with Owner() as owner:
                self._accept, self._owner = accept, owner
                await asyncio.Event().wait()
        finally:
            self._accept = self._owner = None

    # Dialling.

    async def dial(self, peer: PeerId, candidates: Sequence[Dialable]) -> Link:
        """Dial through the members that this node has a direct link to. Raises DialError, Refused."""
        sessions = self._sessions if self._owner is not None else None
        members = [known for known in sessions.direct() if known != peer] if sessions is not None else []
        if sessions is None or not members:
            raise DialError(
                "no member is known that could forward it", kind=self.kind, failure=DialFailure.UNREACHABLE
            )
        order = self._asked.order(members, peer, asyncio.get_running_loop().time())
        starts = [
            (at * _STAGGER_SECONDS, partial(self._ask, sessions, member, peer))
            for at, member in enumerate(order[:MAX_ASKED])
        ]
        try:
            return await first_success(starts, discard=lambda link: link.aclose())
        except ExceptionGroup as failures:
            raise first_error(failures) from None

    async def _ask(self, sessions: Sessions, member: PeerId, peer: PeerId) -> Link:
        began = asyncio.get_running_loop().time()
        try:
            link = await self._attempt(sessions, member, peer)
        except BaseException as error:
            now = asyncio.get_running_loop().time()
            if not isinstance(error, asyncio.CancelledError) or now - began >= SLOW_SECONDS:
                self._asked.failed(member, peer, now)  # or silent while another one was not
            raise
        self._asked.helped(member, peer)
        return link

    async def _attempt(self, sessions: Sessions, member: PeerId, peer: PeerId) -> Link:
        place = f"member {member.short}"
        pipe: StreamPipe | None = None
        try:
            async with asyncio.timeout(_ATTEMPT_SECONDS):
                stream = sessions.open_stream(member, SERVICE, metadata={TO: peer.raw})
                pipe = self._pipe(stream, self._dialling, server_side=False)
                await pipe.secure()
                proven = await prove_dialled(
                    pipe,
                    handshake=self._handshake(),
                    expect=peer,
                    binding=pipe.binding(),
                )
            return self._link(pipe, proven, member, dialled=True)
        except BaseException as error:
            if pipe is not None:
                await pipe.aclose()
            if isinstance(error, Refused) and pipe is not None and error.code == "refused":
                raise DialError(  # the member's word, not the peer's
                    f"{place}: {error.what}", kind=self.kind, failure=DialFailure.UNREACHABLE
                ) from None
            if isinstance(error, MeshdError | TimeoutError):
                raise dial_error(error, kind=self.kind, place=place) from error
            raise

    def _pipe(self, stream: Bytes, context: SSLContext, *, server_side: bool) -> StreamPipe:
        if self._owner is None:
            raise Broken("this node is stopping")
        pipe = StreamPipe(stream, context, server_side=server_side)
        task = self._owner.start_for(
            f"peer {stream.peer.short}", pipe.run(), name=f"through {stream.peer.short}"
        )
        task.add_done_callback(lambda _: pipe.abort())  # it may be cancelled before its first step
        return pipe

    def _link(self, pipe: StreamPipe, proven: Proven, member: PeerId, *, dialled: bool) -> ProvenLink:
        return proven_link(
            pipe,
            proven,
            kind=self.kind,
            local="",
            remote=f"member {member.short}",
            path="relayed",
            dialled=dialled,
        )

    # Being called, and passing on.

    def _allow(self, member: Member, metadata: Mapping[str, str | int | bytes]) -> str | Release | None:
        sessions, to = self._sessions, metadata.get(TO)
        if to is None:
            if not isinstance(metadata.get(FROM), bytes):
                return "the sender is not named"
            return self._welcomed.take(member.peer) or "too many at once"
        if not self._passes_on:
            return "this node does not forward traffic"
        if sessions is None or all(known.raw != to for known in sessions.direct()):
            return "not connected to that node"
        return self._passed_on.take(member.peer, member.chain.admitter) or "it already forwards too much"

    async def _take(self, stream: Bytes) -> None:
        to = stream.metadata.get(TO)
        if to is None:
            await self._welcome(stream)
        elif isinstance(to, bytes):
            await self._pass_on(stream, PeerId(to))

    async def _pass_on(self, stream: Bytes, to: PeerId) -> None:
        assert self._sessions is not None
        onward = self._sessions.open_stream(to, SERVICE, metadata={FROM: stream.peer.raw})
        LOG.info("passing_on", peer=stream.peer.short, node=to.short)
        try:
            async with Owner() as owner:
                owner.start(_copy(stream, onward), name="onward")
                owner.start(_copy(onward, stream), name="onward back")
        except ExceptionGroup as group:
            error = first_error(group)
            if not isinstance(error, MeshdError):
                raise
            raise Broken(error.what) from None
        finally:
            onward.reset(CODE_ENDED, "the other side has disconnected")
            stream.reset(CODE_ENDED, "the other side has disconnected")

    async def _welcome(self, stream: Bytes) -> None:
        pipe = self._pipe(stream, self._listening, server_side=True)
        try:
            async with asyncio.timeout(_ATTEMPT_SECONDS):
                await pipe.secure()
                proven = await prove_accepted(
                    pipe, handshake=self._handshake(), binding=self._certificate.sha256
                )
            if self._accept is not None and proven.purpose is Purpose.MEMBER:
                await self._accept(self._link(pipe, proven, stream.peer, dialled=False))
        except (MeshdError, TimeoutError) as error:
            LOG.debug("link_ended", remote=f"member {stream.peer.short}", why=str(error) or "timed out")
        finally:
            await pipe.aclose()


async def _copy(source: Bytes, to: Bytes) -> None:
    with contextlib.suppress(EndOfStream):
        while True:
            data = await source.read()
            await to.write(data)
            source.consumed(len(data))
    to.write_eof()
