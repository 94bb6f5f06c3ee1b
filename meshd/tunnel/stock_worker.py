"""A tunnel to a stock rpc-server, which gets weights from this node's files where the head asks by content.

Slower than the pump (no short cut, and each tensor crosses a local socket), but no weight crosses the mesh.
"""

import asyncio

from meshd.base.errors import EndOfStream
from meshd.model.weights_index import TensorEntry
from meshd.peer.interface import Stream
from meshd.rpc import protocol as rpc
from meshd.rpc.stock_worker_fill import Filling, Load, Wanted, loaded
from meshd.tunnel.interface import Flow, Inspector, LocalWeights
from meshd.tunnel.local import LocalSocket
from meshd.tunnel.pump import Counter, Unwatched

PIECE_BYTES = 4 << 20  # of a tensor: what is read, and held by each that has it, at once


class FilledCopy:
    """Both directions, for `run_both`."""

    def __init__(
        self,
        local: LocalSocket,
        stream: Stream,
        *,
        counter: Counter,
        inspector: Inspector,
        weights: LocalWeights,
        flow: Flow | None = None,
    ) -> None:
        self._local = local
        self._stream = stream
        self._counter = counter
        self._inspector = inspector
        self._weights = weights
        self._flow = flow or Unwatched()
        self._filling = Filling()
        self._sending = False
        self._sent = asyncio.Event()

    async def keep_receiving(self) -> None:
        """Requests, from the head to the server."""
        while True:
            try:
                data = await self._stream.read()
            except EndOfStream:
                self._local.write_eof()
                return
            self._counter.received += len(data)
            for part in self._filling.requests(self._inspector.from_peer(data)):
                if isinstance(part, Load):
                    await self._load(part)
                elif len(part):
                    await self._write(part)
            self._stream.consumed(len(data))

    async def keep_sending(self) -> None:
        """Answers, from the server to the head."""
        while True:
            try:
                data = await self._local.read()
            except EndOfStream:
                self._stream.write_eof()
                return
            self._sending = True
            await self._send(self._filling.answers(data))
            self._sending = False
            self._sent.set()

    async def _send(self, data: bytes | memoryview) -> None:
        passed = self._inspector.to_peer(data)
        self._counter.sent += len(passed)
        self._flow.peer_waits(True)
        await self._stream.write(passed)
        self._flow.peer_waits(False)

    async def _write(self, data: bytes | memoryview) -> None:
        self._flow.target_waits(True)
        await self._local.write(data)
        self._flow.target_waits(False)

    async def _read(self, tensor: TensorEntry, offset: int, size: int) -> bytes:
        self._flow.peer_waits(True)  # the server has nothing to do until this is read
        try:
            return await self._weights.read(tensor, offset, size)
        finally:
            self._flow.peer_waits(False)

    async def _load(self, load: Load) -> None:
        while self._sending or not self._filling.has_answered(load.answers_before):
            self._sent.clear()
            await self._sent.wait()
        states = bytearray()
        for wanted in load.wanted:
            states.append(await self._fill(wanted))
        if not self._weights.unchanged():  # somebody wrote while we read: the head sends what it has itself
            states = bytearray(rpc.FILE_CHANGED if state == rpc.LOADED else state for state in states)
        await self._send(loaded(bytes(states)))

    async def _fill(self, wanted: Wanted) -> int:
        tensor = self._weights.find(wanted.digest)
        if tensor is None:
            return rpc.NO_SUCH_HASH
        if (tensor.kind, tensor.size) != (wanted.kind, wanted.size):
            return rpc.TYPE_OR_SIZE
        for offset in range(0, wanted.size, PIECE_BYTES):
            size = min(PIECE_BYTES, wanted.size - offset)
            try:
                data = await self._read(tensor, offset, size)
            except OSError:
                return rpc.UNREADABLE
            if len(data) != size:
                return rpc.UNREADABLE
            await self._write(wanted.piece(offset, data))
        return rpc.LOADED
