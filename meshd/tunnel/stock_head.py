"""The tunnel of a stock llama-server: weights that the worker has are compared here, and not sent.

Slower than the pump (no short cut), but a weight crosses a local socket only. What flows past is compared
with the head's own file: so nothing is held but a piece of it, and the hash of the index is the data's own.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from meshd.base.errors import Broken, EndOfStream, MeshdError
from meshd.peer.interface import Stream
from meshd.rpc import protocol as rpc
from meshd.rpc.answers import KnownAnswers
from meshd.rpc.stock_head_skip import Begin, ImmediateReply, LoadStates, Part, Saving, Settle, TensorData
from meshd.tunnel.interface import SavedWeights, Watched
from meshd.tunnel.local import LocalSocket
from meshd.tunnel.pump import Counter, run_both
from meshd.tunnel.stock_worker import PIECE_BYTES

LOAD_TENSORS = 256  # are asked for in one request, so that the worker reads while the next are compared
LOAD_BYTES = 64 << 20
_REASONS: Final = ("", "no-such-hash", "type-or-size-differs", "unreadable", "file-changed", "bad-tensor")


class Saver:
    """All connections of one llama-server to one worker."""

    def __init__(self, saved: SavedWeights) -> None:
        self._saved = saved
        self._answers = KnownAnswers(plain_sizes=saved.plain_sizes)

    async def carry(
        self,
        endpoint: str,
        local: LocalSocket,
        stream: Stream,
        counter: Counter,
        watched: Watched,
        on_broken: Callable[[MeshdError], None],
    ) -> None:
        """One connection, both ways, as `pump` does."""
        copy = SavedCopy(endpoint, local, stream, counter, watched, self._saved, self._answers)
        await run_both(local, stream, copy.keep_sending(), copy.keep_receiving(), on_broken)


class SavedCopy:
    """Both directions, for `run_both`."""

    def __init__(
        self,
        endpoint: str,
        local: LocalSocket,
        stream: Stream,
        counter: Counter,
        watched: Watched,
        saved: SavedWeights,
        answers: KnownAnswers,
    ) -> None:
        self._endpoint = endpoint
        self._local = local
        self._stream = stream
        self._counter = counter
        self._watched = watched
        self._weights = saved.weights
        self._placed = saved.placed
        self._saving = Saving(saved.weights.tensors, answers)
        self._weight: Begin | None = None  # what is compared now,
        self._at = 0  # up to here,
        self._own = b""  # with this piece of the file,
        self._own_at = 0  # which begins there
        self._differs = False
        self._equal: list[Begin] = []  # not asked for yet
        self._asked: deque[list[Begin]] = deque()
        self._states: deque[bytes] = deque()
        self._answered = asyncio.Event()
        self._ended = False

    # From llama-server to the worker.

    async def keep_sending(self) -> None:
        """Requests."""
        while True:
            try:
                data = await self._local.read()
            except EndOfStream:
                self._stream.write_eof()
                return
            for part in self._saving.requests(data):
                await self._do(part)

    async def _do(self, part: Part) -> None:
        match part:
            case Begin():
                if part.missed:
                    self._place(part, part.missed)
                else:
                    self._weight, self._at, self._differs = part, 0, False
                    self._own, self._own_at = b"", 0
            case TensorData():
                await self._compare(memoryview(part.data))
            case ImmediateReply():  # the other task has nothing to write: the client waits for this alone
                await self._local.write(part.data)
            case Settle():
                await self._settle()
            case _:
                await self._send(part)

    async def _send(self, data: bytes | memoryview) -> None:
        self._counter.sent += len(data)
        self._watched.to_peer(data)
        self._watched.peer_waits(True)
        await self._stream.write(data)
        self._watched.peer_waits(False)

    async def _compare(self, data: memoryview) -> None:
        weight = self._weight
        assert weight is not None
        while len(data):
            if self._differs:
                await self._send(data)
                self._at += len(data)
                break
            if self._at == self._own_at + len(self._own):
                await self._read_own(weight)
            begin = self._at - self._own_at
            size = min(len(data), len(self._own) - begin)
            if not size or not self._own.startswith(data[:size], begin):
                await self._send_instead(weight)
                continue
            self._at += size
            data = data[size:]
        if self._at == weight.tensor.size:
            self._weight, self._own = None, b""
            if not self._differs:
                await self._is_equal(weight)

    async def _read_own(self, weight: Begin) -> None:
        """The piece of the file that comes next; nothing where it cannot be read."""
        self._own_at = self._at
        try:
            self._own = await self._weights.read(
                weight.tensor, self._at, min(PIECE_BYTES, weight.tensor.size - self._at)
            )
        except OSError:
            self._own = b""

    async def _send_instead(self, weight: Begin) -> None:
        """llama-server has other data than the file: it goes to the worker as it is."""
        self._differs = True
        self._place(weight, "head-data-differs")
        await self._settle()
        await self._send(weight.request)
        await self._send_own(weight, self._at)

    async def _send_own(self, weight: Begin, size: int) -> None:
        """The first bytes of a weight, from the file: they were those of llama-server."""
        for at in range(0, size, PIECE_BYTES):
            wanted = min(PIECE_BYTES, size - at)
            try:
                data = await self._weights.read(weight.tensor, at, wanted)
            except OSError as error:
                raise Broken(f"the model file can no longer be read: {error.strerror}") from None
            if len(data) != wanted:
                raise Broken("the model file was truncated while it was loaded")
            await self._send(data)
        self._check_file()

    def _check_file(self) -> None:
        if not self._weights.unchanged():
            raise Broken("the model file was changed while it was loaded")

    # Asking the worker.

    async def _is_equal(self, weight: Begin) -> None:
        self._equal.append(weight)
        size = sum(one.tensor.size for one in self._equal)
        if len(self._equal) >= LOAD_TENSORS or size >= LOAD_BYTES:
            await self._ask()
            await self._send_missed()

    async def _ask(self) -> None:
        self._check_file()  # the hash of the index is that of the file that was compared
        asked, self._equal = self._equal, []
        self._asked.append(asked)
        await self._send(self._saving.load([weight.entry for weight in asked]))

    async def _settle(self) -> None:
        """Every weight before this is on the worker, or on its way there."""
        if self._equal:
            await self._ask()
        while self._asked:
            await self._send_missed()
            if self._asked:
                if self._ended:
                    raise Broken("the worker ended the connection while weights were loaded")
                self._answered.clear()
                await self._answered.wait()

    async def _send_missed(self) -> None:
        """What the worker said by now that it does not have."""
        while self._states:
            states, asked = self._states.popleft(), self._asked.popleft()
            for state, weight in zip(states, asked, strict=True):
                if state == rpc.LOADED:
                    self._place(weight, "")
                    continue
                self._place(weight, _REASONS[state] if state < len(_REASONS) else "refused")
                await self._send(weight.request)
                await self._send_own(weight, weight.tensor.size)

    def _place(self, weight: Begin, why: str) -> None:
        self._placed(self._endpoint, weight.tensor.name, weight.tensor.size, why)

    # From the worker to llama-server.

    async def keep_receiving(self) -> None:
        """Answers."""
        try:
            while True:
                data = await self._stream.read()
                self._counter.received += len(data)
                self._watched.from_peer(data)
                parts = self._saving.answers(data)
                self._watched.target_waits(True)
                await self._hand_back(parts)
                self._watched.target_waits(False)
                self._stream.consumed(len(data))
        except EndOfStream:
            self._ended = True
            self._answered.set()
            self._local.write_eof()

    async def _hand_back(self, parts: Sequence[bytes | memoryview | LoadStates]) -> None:
        for part in parts:
            if isinstance(part, LoadStates):
                self._states.append(part.states)
                self._answered.set()
            else:
                await self._local.write(part)
