"""Fetch the pieces of one content from every member that has it: the engine of pulls and of loads.

Three callers use it: a pull of a model, a pull of a header, and a worker that lacks weights. They name the
members that may have the content, choose the pieces, and store them. Everything between happens here: members
are asked, share the work, and prove each piece, and members that lie, stall or leave are dropped.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from meshd.base import log
from meshd.base.admission import TokenBucket
from meshd.base.errors import Broken, MeshdError, RemoteProtocolError, UserError
from meshd.base.peer_limits import MODEL_HOLDERS
from meshd.base.tasks import Owner, cancel_and_wait, first_error
from meshd.base.units import in_bytes
from meshd.identity.keys import PeerId
from meshd.library.members.piece_plan import PiecePlan
from meshd.model.weights_index import PIECE_BYTES, PieceIndex
from meshd.mux.events import Code
from meshd.peer.interface import Mesh, Stream
from meshd.tunnel.on_demand import open_on_demand
from meshd.wire.models import CONTENT_FIELD, PIECES_SERVICE, PieceInbox, piece_request

OTHER_FILE = "it has another file of that name"
_ASKED_AHEAD = 2  # pieces requested ahead from one holder, so that no round trip is lost
_SILENT_SECONDS = 60.0
LEAST_PIECE_RATE = (
    16_000  # bytes per second after the allowed silence: otherwise a byte per minute would be enough
)
_IDLE_SECONDS = 1.0  # until a holder with nothing to do is checked again
LOG = log.get("library")
WritePiece = Callable[[int, bytes], Awaitable[None]]
"""Write a piece, by its number and its proven bytes. Called for one piece at a time."""


class WrongPiece(RemoteProtocolError):
    """Raised if a holder's bytes are not those of the piece."""


class TooSlow(Broken):
    """Raised if a holder sends a piece too slowly to be of use."""


@dataclass(slots=True)
class Holder:
    """A member that may have the content. `bytes`: bytes that it gave; `problem`: why it gives no more."""

    node: str
    bytes: int = 0
    problem: str = ""


class Fetch:
    """The fetch of one content, from the first question until nothing more is wanted.

    An async context manager: inside it, every member is asked for its pieces, and members with the chosen
    content give what `take` wants as soon as they have answered.
    """

    def __init__(
        self,
        mesh: Mesh,
        holders: Mapping[PeerId, Holder],
        ask: Callable[[PeerId], Awaitable[PieceIndex | None]],
        *,
        rate: float | None = None,
    ) -> None:
        """Start with these members, whose state is kept up to date.

        `ask` returns the pieces of a member's file, None if it has nothing of use, and raises MeshdError or
        TimeoutError. `rate`: limit in bytes per second for all members together.
        """
        self._mesh = mesh
        self._ask = ask
        self._rate = rate
        self._owner = Owner()
        self._changed = asyncio.Event()
        self.holders = holders
        self.unanswered = set(holders)
        self.indexes: dict[PeerId, PieceIndex] = {}
        self.chosen: PieceIndex | None = None
        self._own_fault: UserError | None = None

    async def __aenter__(self) -> Self:
        await self._owner.__aenter__()
        for peer in self.holders:
            self._owner.start_for(peer.short, self._question(peer), name="model holder")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._owner.cancel()
        try:
            await self._owner.__aexit__(kind, error, trace)
        except ExceptionGroup as group:
            raise first_error(group) from None

    async def _question(self, peer: PeerId) -> None:
        try:
            if (index := await self._ask(peer)) is not None:
                # Equal indexes are kept in memory once.
                self.indexes[peer] = next((one for one in self.indexes.values() if one == index), index)
                self._mark_others()
        except (MeshdError, TimeoutError) as error:
            self.lose(peer, error)
        finally:
            self.unanswered.discard(peer)
            self._changed.set()

    async def news(self) -> None:
        """Wait for a change: a member has answered, or gives no more."""
        self._changed.clear()
        await self._changed.wait()

    def choose(self, index: PieceIndex) -> None:
        """Choose the content to fetch; members with another one are of no use from now on."""
        self.chosen = index
        self._mark_others()

    def _mark_others(self) -> None:
        for peer, index in self.indexes.items():
            if self.chosen not in (None, index) and not self.holders[peer].problem:
                self.holders[peer].problem = OTHER_FILE

    def lose(self, peer: PeerId, error: MeshdError | TimeoutError) -> None:
        """Drop this member. A fault of this machine ends the fetch with that error."""
        why = error.what if isinstance(error, MeshdError) else "it does not answer"
        self.holders[peer].problem = why
        LOG.warning("holder_lost", peer=peer.short, why=why)
        if isinstance(error, UserError):
            self._own_fault = error

    @property
    def group(self) -> set[PeerId]:
        """The members that reported the chosen content."""
        return {peer for peer, index in self.indexes.items() if index == self.chosen}

    @property
    def giving(self) -> list[PeerId]:
        """The members of the group that are still of use, in the given order."""
        return [peer for peer in self.holders if peer in self.group and not self.holders[peer].problem]

    async def take(self, plan: PiecePlan, write: WritePiece, on_bytes: Callable[[], None]) -> None:
        """Fetch the pieces that `plan` lacks; it is done afterwards, unless no member gives more.

        `on_bytes` is called after each piece. Raises UserError for a fault of this machine, such as a full
        disk.
        """
        assert self.chosen is not None
        now = asyncio.get_running_loop().time()
        pace = None if self._rate is None else TokenBucket(rate=self._rate, burst=PIECE_BYTES, now=now)

        def count(peer: PeerId, length: int) -> None:
            self.holders[peer].bytes += length
            on_bytes()

        pieces = PieceFetcher(self._mesh, self.chosen, plan, write, pace=pace, on_bytes=count)
        tasks: dict[PeerId, asyncio.Task[None]] = {}
        try:
            # Start holders up to the limit, until the plan is done or nobody is left.
            while not plan.is_done and self._own_fault is None:
                left = sum(not task.done() for task in tasks.values())
                waiting = [peer for peer in self.giving if peer not in tasks]
                for peer in waiting[: MODEL_HOLDERS.most - left]:
                    tasks[peer] = self._owner.start_for(
                        peer.short, self._give(peer, pieces), name="piece holder"
                    )
                    left += 1
                if not left and not self.unanswered:
                    break
                await self.news()
        finally:
            await cancel_and_wait(*tasks.values())  # they write to files of the caller
        if self._own_fault is not None:
            raise self._own_fault

    async def _give(self, peer: PeerId, pieces: "PieceFetcher") -> None:
        try:
            await pieces.fetch(peer)
        except (MeshdError, TimeoutError) as error:
            self.lose(peer, error)
        finally:
            self._changed.set()


class PieceFetcher:
    """Distribute one plan's pieces among holders, and write the received ones."""

    def __init__(
        self,
        mesh: Mesh,
        index: PieceIndex,
        plan: PiecePlan,
        write: WritePiece,
        *,
        pace: TokenBucket | None = None,
        on_bytes: Callable[[PeerId, int], None],
    ) -> None:
        """Keep what holders share; `on_bytes` gets the holder and the length of each written piece."""
        self._mesh = mesh
        self._index = index
        self._plan = plan
        self._write = write
        self._pace = pace
        self._on_bytes = on_bytes
        self._disk = asyncio.Lock()
        self._written = asyncio.Event()

    async def fetch(self, peer: PeerId) -> None:
        """Fetch from this holder until the plan is done.

        Raises MeshdError or TimeoutError when the holder gives no more.
        """
        metadata = {CONTENT_FIELD: self._index.content}
        try:
            stream = await open_on_demand(self._mesh, peer, PIECES_SERVICE, metadata=metadata, bulk=True)
            try:
                await self._fetch(peer, stream, PieceInbox())
            finally:
                stream.reset(Code.CANCELLED, "no more pieces are asked for")
        finally:
            self._plan.lost(peer)

    async def _fetch(self, peer: PeerId, stream: Stream, inbox: PieceInbox) -> None:
        waited = 0.0  # for the first piece that the holder owes; without our own pauses
        while not self._plan.is_done:
            await self._ask(peer, stream, inbox)
            if not inbox.expected:
                await self._idle()
                continue
            began = asyncio.get_running_loop().time()
            data = await _read(stream, inbox, waited)
            waited += asyncio.get_running_loop().time() - began
            for number, piece in inbox.feed(data):
                waited = 0.0
                await self._take(peer, number, piece)
            stream.consumed(len(data))
            if inbox.is_gone:
                raise Broken("its file has changed")

    async def _ask(self, peer: PeerId, stream: Stream, inbox: PieceInbox) -> None:
        now = asyncio.get_running_loop().time
        while inbox.expected < _ASKED_AHEAD and (piece := self._plan.next(peer, now())) is not None:
            if self._pace is not None:
                await asyncio.sleep(self._pace.take(piece.length, now()))
            self._plan.asked(peer, piece.number, now())
            inbox.expect(piece.number, piece.length)
            await stream.write(piece_request(piece.number))

    async def _idle(self) -> None:
        """Wait a little: other holders still owe pieces, which may be reassigned to this one."""
        self._written.clear()
        try:
            async with asyncio.timeout(_IDLE_SECONDS):
                await self._written.wait()
        except TimeoutError:
            pass

    async def _take(self, peer: PeerId, number: int, data: bytes) -> None:
        if not self._plan.arrived(peer, number, data):
            raise WrongPiece(f"piece {number} from it is wrong", code="pieces")
        async with self._disk:
            if not self._plan.wants(number):
                return
            await self._write(number, data)
            self._plan.written(number)
        self._on_bytes(peer, len(data))
        self._written.set()


async def _read(stream: Stream, inbox: PieceInbox, waited: float) -> bytes | memoryview:
    """Read the next bytes. Raises TooSlow, TimeoutError, and the errors of the stream."""
    left = _SILENT_SECONDS + inbox.first_length / LEAST_PIECE_RATE - waited
    try:
        async with asyncio.timeout(min(left, _SILENT_SECONDS)):
            return await stream.read()
    except TimeoutError:
        if left >= _SILENT_SECONDS:
            raise
        raise TooSlow(f"less than {in_bytes(LEAST_PIECE_RATE)}/s come from it") from None
