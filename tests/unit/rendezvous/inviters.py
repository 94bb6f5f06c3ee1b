"""An inviter that a test makes up: by which transport it answers, and when; and what was tried."""

import asyncio
from collections.abc import Mapping, Sequence

from meshd.base.errors import MeshdError
from meshd.identity.invite import Invite, RelayHint
from meshd.link.interface import DialError, DialFailure, LinkKind
from meshd.wire.address import Candidate
from meshd.wire.dialable import Dialable, trusted
from meshd.wire.hello import JoinMessage, Welcome
from meshd.wire.message import framed

from tests.unit.identity.cast import GUEST_CHAIN, INVITER, MESH

NOW = 1_000_000
OUTER = Candidate("20.1.0.2", 17430, "udp", "srflx")
HOST = Candidate("192.168.1.5", 17430)
NEAR = Candidate("192.168.1.77", 17430)
RELAY = RelayHint("relay.example:443", INVITER.peer)
OWN_RELAY = RelayHint("own.example:443", INVITER.peer)


def invite(
    *candidates: Candidate, relays: Sequence[RelayHint] = (RELAY,), expires_at: int = NOW + 100
) -> Invite:
    return Invite(
        mesh=MESH,
        inviter=INVITER.peer,
        secret=b"a secret of 16 b",
        expires_at=expires_at,
        candidates=candidates,
        relays=tuple(relays),
    )


def failed(what: str, failure: DialFailure = DialFailure.TIMEOUT, *, hint: str = "") -> DialError:
    return DialError(what, kind=LinkKind.TCP, failure=failure, hint=hint)


class InvitersPipe:
    """Says `answer` to whatever is asked."""

    def __init__(self, transport: str, answer: JoinMessage | MeshdError) -> None:
        self.transport = transport
        self.closed = 0
        self._answer = answer

    async def send(self, data: Sequence[bytes | memoryview]) -> None:
        if isinstance(self._answer, MeshdError):
            raise self._answer

    async def receive(self) -> bytes:
        assert not isinstance(self._answer, MeshdError)
        return framed(self._answer.encode())

    async def aclose(self) -> None:
        self.closed += 1


class FakeReplyPort:
    """Servers answer after so many seconds, None: never."""

    def __init__(self, *candidates: Candidate, after: float | None = 0.1) -> None:
        self.seen = asyncio.Event()
        self.same_everywhere: bool | None = None
        self.asking = False
        self._candidates = candidates
        self._after = after

    def candidates(self) -> Sequence[Candidate]:
        return self._candidates

    async def ask_servers(self) -> None:
        self.asking = True
        try:
            if self._after is not None:
                await asyncio.sleep(self._after)
                self.seen.set()
            await asyncio.Event().wait()
        finally:
            self.asking = False


class FakeInviter:
    """Implements JoinTransports. `answers`: after how many seconds each transport leads to it, or why not."""

    def __init__(
        self,
        answers: Mapping[str, float | MeshdError],
        *,
        nearby: Sequence[Candidate] = (),
        answer: JoinMessage | MeshdError | None = None,
        port: FakeReplyPort | None = None,
    ) -> None:
        self.tried: list[tuple[str, float, tuple[object, ...]]] = []
        self.pipes: list[InvitersPipe] = []
        self.port = port or FakeReplyPort(OUTER)
        self._answers = dict(answers)
        self._nearby = nearby
        self._answer = answer or Welcome(GUEST_CHAIN.encode(), (), ())
        self._began = asyncio.get_running_loop().time()

    async def tcp(self, places: Sequence[Dialable]) -> InvitersPipe:
        return await self._dial("nearby" if list(places) == list(trusted([NEAR])) else "tcp", places)

    async def quic(self, places: Sequence[Dialable]) -> InvitersPipe:
        return await self._dial("code" if self.port.asking else "quic", places)

    async def relay(self, relays: Sequence[RelayHint]) -> InvitersPipe:
        return await self._dial("relay", relays)

    async def find_nearby(self) -> Sequence[Dialable]:
        return trusted(self._nearby)

    def reply_port(self) -> FakeReplyPort:
        return self.port

    async def _dial(self, transport: str, places: Sequence[object]) -> InvitersPipe:
        now = asyncio.get_running_loop().time()
        self.tried.append((transport, round(now - self._began, 3), tuple(places)))
        answer = self._answers.get(transport, 1e6)
        if isinstance(answer, MeshdError):
            raise answer
        try:
            await asyncio.sleep(answer)
        except asyncio.CancelledError:
            if self._answers.get(f"{transport} anyway"):
                return self._reached(transport)
            raise
        return self._reached(transport)

    def _reached(self, transport: str) -> InvitersPipe:
        self.pipes.append(InvitersPipe(transport, self._answer))
        return self.pipes[-1]
