"""Fetches the pieces of one content from one member, until nothing is left for it to give."""

import asyncio
from collections.abc import Awaitable, Callable

from meshd.base.byte_format import in_bytes
from meshd.base.errors import Broken, RemoteProtocolError
from meshd.base.token_bucket import TokenBucket
from meshd.identity.keys import PeerId
from meshd.library.members.give_pieces import CONTENT_FIELD
from meshd.library.members.piece_plan import PiecePlan
from meshd.model.piece_index import PieceIndex
from meshd.mux.events import Code
from meshd.peer.interface import Mesh, Stream
from meshd.tunnel.on_demand import open_on_demand
from meshd.wire.pieces import PIECES_SERVICE, PieceInbox, piece_request

_ASKED_AHEAD = 2  # pieces of one holder on their way, so that no round trip is lost
_SILENT_SECONDS = 60.0
LEAST_PIECE_RATE = (
    16_000  # bytes a second, beyond the silence that is allowed: or a byte a minute would be enough
)
_IDLE_SECONDS = 1.0  # before a holder with nothing to do is looked at again


class WrongPiece(RemoteProtocolError):
    """A holder gave other bytes than those of the piece."""


class TooSlow(Broken):
    """A holder lets a piece come so slowly that it may as well not give it."""


class PieceFetcher:
    """What all holders of one content share: the plan, where pieces go, and the rate of the user."""

    def __init__(
        self,
        mesh: Mesh,
        index: PieceIndex,
        plan: PiecePlan,
        write: Callable[[int, bytes], Awaitable[None]],
        *,
        pace: TokenBucket | None = None,
        on_bytes: Callable[[PeerId, int], None],
    ) -> None:
        """`write` gets the number of a piece and its bytes, one at a time; `on_bytes` is told of those that
        it has taken.
        """
        self._mesh = mesh
        self._index = index
        self._plan = plan
        self._write = write
        self._pace = pace
        self._on_bytes = on_bytes
        self._disk = asyncio.Lock()
        self._written = asyncio.Event()

    @property
    def content(self) -> bytes:
        """What is fetched."""
        return self._index.content

    async def fetch(self, peer: PeerId) -> None:
        """Until all pieces are there. Raises MeshdError or TimeoutError when this holder gives no more."""
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
        waited = 0.0  # for the first piece that it owes; without our own pauses
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
                raise Broken("its file is not what it was")

    async def _ask(self, peer: PeerId, stream: Stream, inbox: PieceInbox) -> None:
        now = asyncio.get_running_loop().time
        while inbox.expected < _ASKED_AHEAD and (piece := self._plan.next(peer, now())) is not None:
            if self._pace is not None:
                await asyncio.sleep(self._pace.take(piece.length, now()))
            self._plan.asked(peer, piece.number, now())
            inbox.expect(piece.number, piece.length)
            await stream.write(piece_request(piece.number))

    async def _idle(self) -> None:
        """Others still owe pieces, which may come back to this holder."""
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
    """The next bytes. Raises TooSlow, TimeoutError and as the stream."""
    left = _SILENT_SECONDS + inbox.first_length / LEAST_PIECE_RATE - waited
    try:
        async with asyncio.timeout(min(left, _SILENT_SECONDS)):
            return await stream.read()
    except TimeoutError:
        if left >= _SILENT_SECONDS:
            raise
        raise TooSlow(f"less than {in_bytes(LEAST_PIECE_RATE)}/s come from it") from None
