"""A tunnel to a stock rpc-server: what the head asks for by content is written from the node's own files."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from meshd.base.errors import Broken, MeshdError
from meshd.base.tasks import Owner
from meshd.model.weights_index import TensorEntry
from meshd.rpc import protocol as rpc
from meshd.rpc.firewall import Firewall
from meshd.tunnel.expose import connect_through
from meshd.tunnel.pump import Counter
from meshd.tunnel.stock_worker import PIECE_BYTES

from tests.conformance.run import run
from tests.unit.rpc import talk
from tests.unit.rpc.talk import BASE, HANDLE
from tests.unit.tunnel.far import streams

LARGE = (PIECE_BYTES // 1000 + 1) * 1000
ROOM = 2 * LARGE


class Files:
    """LocalWeights of two tensors: zeros to three is `1`, a large one is `2`."""

    def __init__(self) -> None:
        self.content = {b"1" * 32: bytes(range(16)), b"2" * 32: bytes(range(250)) * (LARGE // 250)}
        self.same = True
        self.cut = 0
        self.fails = False

    def find(self, digest: bytes) -> TensorEntry | None:
        data = self.content.get(digest)
        return None if data is None else TensorEntry(0, talk.F32, 0, len(data), digest, "t")

    async def read(self, tensor: TensorEntry, offset: int, size: int) -> bytes:
        await asyncio.sleep(0)
        if self.fails:
            raise OSError(5, "Input/output error")
        return self.content[tensor.digest][offset : offset + size - self.cut]

    def unchanged(self) -> bool:
        return self.same


class Server:
    """Upstream's rpc-server, as much of it as is asked here: one buffer, SET_TENSOR and GET_TENSOR."""

    def __init__(self) -> None:
        self.memory = bytearray(ROOM)
        self.commands: list[int] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                command, size = rpc.REQUEST.unpack(await reader.readexactly(rpc.REQUEST.size))
                writer.write(self._answer(command, await reader.readexactly(size)))
        except (asyncio.IncompleteReadError, ConnectionResetError):
            writer.transport.abort()

    def _answer(self, command: int, body: bytes) -> bytes:
        self.commands.append(command)
        match command:
            case rpc.HELLO:
                return talk.hello_answer(bytes(24))
            case rpc.ALLOC_BUFFER:
                return talk.answer(struct.pack("<QQ", HANDLE, ROOM))
            case rpc.BUFFER_GET_BASE:
                return talk.answer(struct.pack("<Q", BASE))
        (data,) = struct.unpack_from("<Q", body, 220)
        if command == rpc.GET_TENSOR:
            offset, size = struct.unpack_from("<QQ", body, rpc.TENSOR_BYTES)
            at = data - BASE + offset
            return talk.answer(bytes(self.memory[at : at + size]))
        assert command == rpc.SET_TENSOR
        (offset,) = struct.unpack_from("<Q", body, rpc.TENSOR_BYTES + 1)
        at = data - BASE + offset
        self.memory[at : at + len(body) - rpc.SET_TENSOR_HEAD_BYTES] = body[rpc.SET_TENSOR_HEAD_BYTES :]
        return b""


class Scene:
    """A head that has a buffer on the server behind the tunnel."""

    def __init__(self) -> None:
        self.near, self.far, _, _ = streams()
        self.files, self.server = Files(), Server()
        self.broken: list[MeshdError] = []
        self._received = bytearray()

    async def ask(self, request: bytes, size: int) -> bytes:
        await self.far.write(request)
        return await self.receive(size)

    async def receive(self, size: int) -> bytes:
        while len(self._received) < size:
            data = await self.far.read()
            self._received += data
            self.far.consumed(len(data))
        answer = bytes(self._received[:size])
        del self._received[:size]
        return answer


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    it = Scene()
    listening = await asyncio.start_server(it.server.serve, "127.0.0.1", 0, limit=1 << 26)
    port = listening.sockets[0].getsockname()[1]
    try:
        async with Owner() as owner:
            owner.start(
                connect_through(
                    it.near,
                    ("127.0.0.1", port),
                    counter=Counter(),
                    inspector=Firewall(memory=ROOM),
                    weights=it.files,
                    on_broken=it.broken.append,
                ),
                name="tunnel",
            )
            assert await it.ask(talk.hello(), 36) == talk.hello_answer(talk.caps(rpc.FEATURE_LOAD))
            await it.ask(talk.alloc(ROOM), 24)
            await it.ask(talk.on_buffer(rpc.BUFFER_GET_BASE), 16)
            yield it
            owner.cancel()
    finally:
        listening.close()
        await listening.wait_closed()


def entry(digest: bytes, size: int, *, at: int = 0, kind: int = talk.F32) -> bytes:
    ne = (size // 4, 1, 1, 1)
    return talk.load_entry(data=BASE + at, size=size, kind=kind, ne=ne)[:44] + digest + bytes(64)


ONE, TWO = b"1" * 32, b"2" * 32


def test_tensors_come_from_the_files_and_the_head_is_told() -> None:
    async def main() -> None:
        async with scene() as it:
            entries = [entry(TWO, LARGE), entry(b"3" * 32, 16, at=LARGE), entry(ONE, 16, at=LARGE)]
            assert await it.ask(talk.load(*entries), 11) == talk.answer(bytes((0, rpc.NO_SUCH_HASH, 0)))
            read = talk.get_tensor(talk.Tensor(data=BASE + LARGE))
            assert await it.ask(read, 24) == talk.answer(bytes(range(16)))
            assert it.server.memory[:LARGE] == it.files.content[TWO]
            assert rpc.SET_TENSOR_GGUF not in it.server.commands

    run(main())


def test_answers_of_before_go_first_and_requests_of_after_wait() -> None:
    async def main() -> None:
        async with scene() as it:
            read = talk.get_tensor(talk.Tensor())
            await it.far.write(read + talk.load(entry(ONE, 16)) + read + talk.load(entry(ONE, 16)))
            expected = talk.answer(bytes(16)) + talk.answer(b"\0") + talk.answer(bytes(range(16)))
            assert await it.receive(24 + 9 + 24 + 9) == expected + talk.answer(b"\0")

    run(main())


def _changed(files: Files) -> None:
    files.same = False


def _cut(files: Files) -> None:
    files.cut = 1


def _fails(files: Files) -> None:
    files.fails = True


@pytest.mark.parametrize(
    ("harm", "state"), [(_changed, rpc.FILE_CHANGED), (_cut, rpc.UNREADABLE), (_fails, rpc.UNREADABLE)]
)
def test_a_file_that_cannot_be_trusted_is_a_miss(harm: Callable[[Files], None], state: int) -> None:
    async def main() -> None:
        async with scene() as it:
            harm(it.files)
            load = talk.load(entry(ONE, 16), entry(b"3" * 32, 16))
            assert await it.ask(load, 10) == talk.answer(bytes((state, rpc.NO_SUCH_HASH)))

    run(main())


def test_the_same_content_of_another_kind_or_size_is_a_miss() -> None:
    async def main() -> None:
        async with scene() as it:
            load = talk.load(entry(ONE, 12), entry(ONE, 16, kind=talk.I32))
            assert await it.ask(load, 10) == talk.answer(bytes((rpc.TYPE_OR_SIZE,) * 2))

    run(main())


def test_more_memory_than_was_lent_ends_it() -> None:
    async def main() -> None:
        async with scene() as it:
            await it.far.write(talk.alloc(1))
            with pytest.raises(Broken, match="ALLOC_BUFFER: 1 bytes more"):
                await it.far.read()
            assert len(it.broken) == 1
            assert it.server.commands.count(rpc.ALLOC_BUFFER) == 1

    run(main())
