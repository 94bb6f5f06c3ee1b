"""Runs the proof (identity/proof.py) over a raw pipe, for links of every kind.

A kind of link brings a `RawPipe` and a binding (the hash of what its own encryption showed of the
listener); `prove_dialled` and `prove_accepted` then say who is there. Nothing else passes before, nor more
than 4 KiB, nor longer than 5 s. The side that refuses says why, which becomes `Refused` on the other.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from meshd.base import log
from meshd.base.errors import Broken, EndOfStream, MeshdError, Refused, RemoteProtocolError
from meshd.identity.invite import JoinKeys
from meshd.identity.keys import MeshId, PeerId
from meshd.identity.membership import Chain, Member
from meshd.identity.proof import (
    NONCE_BYTES,
    Credentials,
    DialProof,
    ListenProof,
    ProofFailed,
    Proven,
    Purpose,
    never_banned,
)
from meshd.link.interface import DialError, DialFailure, LinkInfo, LinkKind
from meshd.link.secure.caller_rates import OFTEN, Callers
from meshd.wire.limits import MAX_UNPROVEN_BYTES
from meshd.wire.versions import VERSION_CODE

LOG = log.get("link")
PROOF_SECONDS = 5.0  # two round trips and three signatures: a slow path needs one second
_ELSEWHERE = "target"  # the refusal that means "somebody else lives here": no answer of the one sought
_IMPOSTOR = "signature"  # the node there lacks the key of the one sought


class RawPipe(Protocol):
    """A reliable, ordered, encrypted byte pipe whose other end has proven nothing yet."""

    async def send(self, data: Sequence[bytes | memoryview]) -> None:
        """Send as `Link.send`. Raises Closed, Broken."""
        ...

    def try_send(self, data: Sequence[bytes | memoryview]) -> bool:
        """Send as `Link.try_send`. Raises Closed, Broken."""
        ...

    def divert(self, take: Callable[[bytes | memoryview], bool]) -> None:
        """Divert as `Link.divert`."""
        ...

    async def receive(self) -> bytes:
        """Receive as `Link.receive`. Raises EndOfStream, Broken, Closed."""
        ...

    async def aclose(self) -> None:
        """Close within 1 s; what was sent before still goes out. Idempotent."""
        ...


def _no_invites(invite_id: bytes) -> JoinKeys | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandshakeContext:
    """The credentials that this node shows in a handshake, and its checks of the other side, as of now."""

    credentials: Credentials
    mesh: MeshId
    why_banned: Callable[[Chain], str | None] = never_banned
    why_node_banned: Callable[[PeerId], str | None] | None = None
    invites: Callable[[bytes], JoinKeys | None] = _no_invites
    callers: Callers | None = None  # None: anybody may call as often as it likes


class ProvenPipe:
    """A pipe behind the proof: first what came along with the proof, then the rest."""

    def __init__(self, pipe: RawPipe, leftover: bytes) -> None:
        self._pipe = pipe
        self._leftover = leftover
        self.send = pipe.send
        self.try_send = pipe.try_send
        self.aclose = pipe.aclose

    def divert(self, take: Callable[[bytes | memoryview], bool]) -> None:
        """Divert as `Link.divert`; what came along with the proof goes first."""
        first, self._leftover = self._leftover, b""
        if first and not take(first):
            self._leftover = first
            self._pipe.divert(lambda data: not self._leftover and take(data))
        else:
            self._pipe.divert(take)

    async def receive(self) -> bytes:
        """Return the next chunk. Raises EndOfStream, Broken, Closed."""
        if self._leftover:
            first, self._leftover = self._leftover, b""
            return first
        return await self._pipe.receive()


class ProvenLink(ProvenPipe):
    """A Link (interface.py) over a pipe of any kind."""

    def __init__(self, pipe: RawPipe, leftover: bytes, info: LinkInfo) -> None:
        super().__init__(pipe, leftover)
        self._info = info

    @property
    def info(self) -> LinkInfo:
        """The facts about the other end and the path."""
        return self._info


def proven_link(
    pipe: RawPipe, proven: Proven, *, kind: LinkKind, local: str, remote: str, path: str, dialled: bool
) -> ProvenLink:
    """Return the link over a pipe that has just been proven. Raises RemoteProtocolError for a joiner's."""
    info = LinkInfo(
        kind=kind,
        peer=proven.peer,
        member=member_of(proven),
        local=local,
        remote=remote,
        path=path,
        dialled=dialled,
        established_at=asyncio.get_running_loop().time(),
    )
    return ProvenLink(pipe, proven.leftover, info)


async def prove_dialled(
    pipe: RawPipe,
    *,
    handshake: HandshakeContext,
    expect: PeerId,
    binding: bytes,
    purpose: Purpose = Purpose.MEMBER,
    join: JoinKeys | None = None,
    seconds: float = PROOF_SECONDS,
) -> Proven:
    """Prove ourselves to the listener and have it prove that it is `expect`.

    Raises Refused (the listener said why not), RemoteProtocolError (it is not who it should be, or does not
    speak our protocol), Broken, TimeoutError. The pipe stays the caller's to close.
    """
    proof = DialProof(
        credentials=handshake.credentials,
        mesh=handshake.mesh,
        expect=expect,
        purpose=purpose,
        binding=binding,
        nonce=secrets.token_bytes(NONCE_BYTES),
        join=join,
        why_banned=handshake.why_banned,
    )
    async with asyncio.timeout(seconds):
        await pipe.send([proof.start()])
        proven = await _exchange(pipe, proof)
    if purpose is Purpose.MEMBER:
        member_of(proven)
    return proven


async def prove_accepted(
    pipe: RawPipe, *, handshake: HandshakeContext, binding: bytes, seconds: float = PROOF_SECONDS
) -> Proven:
    """Let the dialler prove who it is, and prove ourselves to it. Raises as `prove_dialled`."""
    callers, now = handshake.callers, asyncio.get_running_loop().time
    proof = ListenProof(
        credentials=handshake.credentials,
        mesh=handshake.mesh,
        binding=binding,
        nonce=secrets.token_bytes(NONCE_BYTES),
        invites=handshake.invites,
        why_banned=handshake.why_banned,
        why_node_banned=handshake.why_node_banned,
        refusal_reason=None if callers is None else lambda peer: callers.refusal_reason(peer, now()),
    )
    proven = await run_proof(pipe, proof, seconds=seconds)
    if callers is not None and proven.purpose is Purpose.MEMBER and not callers.came(proven.peer, now()):
        raise RemoteProtocolError(OFTEN, code="often")  # others of its links were quicker
    return proven


@contextlib.contextmanager
def present(handshake: HandshakeContext, proven: Proven, host: str, port: int = 0) -> Iterator[None]:
    """Keep a proven caller's place known: if a member, for an hour after the block."""
    callers, now = handshake.callers, asyncio.get_running_loop().time
    if callers is None or proven.purpose is not Purpose.MEMBER:
        yield
        return
    callers.proven_at(proven.peer, host, now(), port)
    try:
        yield
    finally:
        callers.proven_at(proven.peer, host, now(), port)


async def run_proof(
    pipe: RawPipe, proof: DialProof | ListenProof, *, seconds: float = PROOF_SECONDS
) -> Proven:
    """Run a proof made by the caller; a dialler's `start` was sent before. Raises as `prove_dialled`."""
    async with asyncio.timeout(seconds):
        return await _exchange(pipe, proof)


async def _exchange(pipe: RawPipe, proof: DialProof | ListenProof) -> Proven:
    heard = 0
    while (result := proof.result) is None:
        try:
            chunk = await pipe.receive()
        except EndOfStream:
            raise Broken("the other side disconnected before it proved its identity") from None
        heard += len(chunk)
        try:
            answer = proof.receive(chunk)
            if heard > MAX_UNPROVEN_BYTES and proof.result is None:
                raise ProofFailed(f"more than {MAX_UNPROVEN_BYTES} bytes without a proof", code="size")
        except ProofFailed as failure:
            if failure.code == VERSION_CODE:
                LOG.warning("version_refused", why=failure.what, hint=failure.hint)
            if failure.farewell:
                await pipe.send([failure.farewell])
            raise
        if answer:
            await pipe.send([answer])
    return result


def member_of(proven: Proven) -> Member:
    """Return the member at the other end. Raises RemoteProtocolError when only a joiner could be there."""
    if proven.member is None:
        raise RemoteProtocolError("the other side is not a member", code="purpose")
    return proven.member


def dial_error(error: Exception, *, kind: LinkKind, place: str) -> DialError | Refused:
    """Return the error at `place` as `Dialer.dial` raises it. Programming errors are raised as they are."""
    if isinstance(error, DialError):
        return error
    if isinstance(error, Refused) and error.code != _ELSEWHERE:
        return error
    made = partial(DialError, kind=kind, place=place)
    if isinstance(error, Refused):
        why = f"`{place}` is another node: {error.what}"
        return made(why, failure=DialFailure.WRONG_PEER, hint=error.hint)
    if isinstance(error, RemoteProtocolError):
        wrong = error.code == _IMPOSTOR
        failure = DialFailure.WRONG_PEER if wrong else DialFailure.HANDSHAKE
        return made(f"`{place}`: {error.what}", failure=failure, hint=error.hint)
    if isinstance(error, TimeoutError):
        return made(f"`{place}` does not answer", failure=DialFailure.TIMEOUT)
    if isinstance(error, ConnectionRefusedError):
        return made(f"`{place}` refused the connection", failure=DialFailure.REFUSED)
    if isinstance(error, OSError):
        reason = (error.strerror or str(error)).lower()
        return made(f"`{place}`: {reason}", failure=DialFailure.UNREACHABLE)
    if isinstance(error, MeshdError):
        return made(f"`{place}`: {error.what}", failure=DialFailure.HANDSHAKE, hint=error.hint)
    raise error
