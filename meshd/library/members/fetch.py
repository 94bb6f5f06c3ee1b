"""Fetch the pieces of one content from every member that has it: the engine of pulls and of loads.

Three callers use it: a pull of a model, a pull of a header, and a worker that lacks weights. They name the
members that may have the content, choose the pieces, and store them. Everything between happens here: members
are asked, share the work, and prove each piece, and members that lie, stall or leave are dropped.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping
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
from meshd.model.weights_index import PIECE_BYTES, Piece, PieceIndex
from meshd.mux.events import Code
from meshd.peer.interface import Mesh, Stream
from meshd.tunnel.joined import open_on_demand
from meshd.wire.models import CONTENT_FIELD, PIECES_SERVICE, PieceInbox, piece_request

OTHER_FILE = "it has another file of that name"
_ASKED_AHEAD = 2  # pieces requested ahead from one holder, so that no round trip is lost
_SILENT_SECONDS = 60.0
LEAST_PIECE_RATE = (
    16_000  # bytes per second after the allowed silence: otherwise a byte per minute would be enough
)
_IDLE_SECONDS = 1.0  # until a holder with nothing to do is checked again
_COPIES = 2  # holders that may owe the same piece at first
COPY_SECONDS = 20.0  # after which one more may: a piece takes that long at 200 kB/s
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


class PiecePlan:
    """Decide which piece of one content is fetched from which holder; holders are any hashable ids.

    Pieces are handed out in order, each to one holder, so that several holders share the work at their own
    speeds. When none is left, an idle holder gets a piece that another one still owes: the first to arrive
    counts, so a stalled holder delays nobody. At first two may owe the same piece, so that duplicates cost
    little, and one more each time that nobody has given it for a while: so stalled holders delay a pull, but
    cannot end it. A holder that gives a wrong piece is not asked again, and its owed pieces go to the others.
    """

    def __init__(
        self, index: PieceIndex, present: Iterable[int] = (), *, wanted: Collection[int] | None = None
    ) -> None:
        """Start with the pieces that are there. `wanted`: only these are fetched and counted; None: all."""
        self._index = index
        self._present = set(present)
        done = self._present if wanted is None else self._present.intersection(wanted)
        self.done_bytes = sum(index.piece(number).length for number in done)
        numbers = range(index.count) if wanted is None else wanted
        self.wanted_bytes = sum(index.piece(number).length for number in numbers)
        if wanted is not None:
            self._present |= set(range(index.count)).difference(wanted)
        self._missing = deque(number for number in range(index.count) if number not in self._present)
        # In the order of requests: the time of each request, infinity before it.
        self._owed: dict[int, dict[Hashable, float]] = {}
        self._liars: set[Hashable] = set()

    @property
    def is_done(self) -> bool:
        return len(self._present) == self._index.count

    def next(self, holder: Hashable, now: float) -> Piece | None:
        """Return the piece to request from this holder, followed by `asked`; None: nothing for now."""
        if holder in self._liars:
            return None
        if self._missing:
            number = self._missing.popleft()
        else:
            late = (
                number
                for number, holders in self._owed.items()
                if holder not in holders
                and (len(holders) < _COPIES or now - max(holders.values()) >= COPY_SECONDS)
            )
            if (number := next(late, -1)) < 0:
                return None
        self._owed.setdefault(number, {})[holder] = math.inf
        return self._index.piece(number)

    def asked(self, holder: Hashable, number: int, now: float) -> None:
        """Note that the holder is asked now, which may be after a pause for the user's rate limit."""
        if holder in (holders := self._owed.get(number, {})):
            holders[holder] = now

    def arrived(self, holder: Hashable, number: int, data: bytes) -> bool:
        """Say whether the holder gave what it owed; if not, it is never asked again. See `wants`."""
        if self._index.holds(number, data):
            return True
        self._liars.add(holder)
        self.lost(holder)
        return False

    def wants(self, number: int) -> bool:
        """Say whether a received piece must still be written: another holder may have been faster."""
        return number not in self._present and number in self._owed

    def written(self, number: int) -> None:
        """Note that the piece is on the disk."""
        self._owed.pop(number, None)
        if number not in self._present:
            self._present.add(number)
            self.done_bytes += self._index.piece(number).length

    def lost(self, holder: Hashable) -> None:
        """Hand out a lost holder's pieces again, before all others."""
        for number in [number for number, holders in self._owed.items() if holder in holders]:
            del self._owed[number][holder]
            if not self._owed[number]:
                del self._owed[number]
                self._missing.appendleft(number)


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
                self.indexes[peer] = next((known for known in self.indexes.values() if known == index), index)
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
