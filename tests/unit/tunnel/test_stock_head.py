"""The tunnel of a stock llama-server: the file's tensors are asked for by content, the rest is sent."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext

import pytest
from meshd.base.errors import Broken, MeshdError
from meshd.base.tasks import Owner
from meshd.model.weights_index import TensorEntry
from meshd.peer.interface import Stream
from meshd.rpc import protocol as rpc
from meshd.rpc.stock_head_skip import ANNOUNCED
from meshd.tunnel import stock_head as module
from meshd.tunnel.forward import Forward
from meshd.tunnel.interface import SavedWeights
from meshd.tunnel.pump import Unwatched

from tests.conformance.run import run
from tests.unit.rpc import talk
from tests.unit.rpc.talk import Tensor
from tests.unit.tunnel.far import PEER, FarMesh

SIZE = 1000
HELLO = 9 + rpc.CAPS_BYTES
Placed = tuple[str, int, str]


class File:
    """NamedWeights of two tensors, each SIZE bytes, that lie one behind the other."""

    def __init__(self) -> None:
        self.content = bytes(number % 251 for number in range(2 * SIZE))
        self.tensors = {
            name: TensorEntry(0, talk.F32, at, SIZE, name.encode() * 32, name)
            for name, at in (("a", 0), ("b", SIZE))
        }
        self.same = True
        self.fails = False
        self.most = 0  # bytes that were asked for at once

    async def read(self, tensor: TensorEntry, offset: int, size: int) -> bytes:
        await asyncio.sleep(0)
        self.most = max(self.most, size)
        if self.fails:
            raise OSError(5, "Input/output error")
        begin = tensor.offset + offset
        return self.content[begin : min(begin + size, tensor.offset + SIZE)]

    def unchanged(self) -> bool:
        return self.same

    def of(self, name: str) -> bytes:
        at = self.tensors[name].offset
        return self.content[at : at + SIZE]


class Witness(Unwatched):
    """Keeps what crosses, both ways."""

    def __init__(self) -> None:
        self.requests, self.answers = bytearray(), bytearray()

    def to_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        self.requests += data
        return data

    def from_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        self.answers += data
        return data


class Scene:
    """llama-server's socket, the worker's end of the stream, and the file."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, far: Stream) -> None:
        self.reader, self.writer, self.far = reader, writer, far
        self.file = File()
        self.placed: list[Placed] = []
        self.broken: list[MeshdError] = []
        self.witness = Witness()
        self._received = bytearray()

    async def at_worker(self, size: int) -> bytes:
        """The next bytes that crossed."""
        while len(self._received) < size:
            data = await self.far.read()
            self._received += data
            self.far.consumed(len(data))
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    async def load(self, *names: str) -> None:
        """What the worker is asked for now, and nothing before it, are these tensors."""
        entries = [self.file.tensors[name].digest for name in names]
        request = await self.at_worker(9 + rpc.LOAD_HEAD_BYTES + len(names) * rpc.LOAD_ENTRY_BYTES)
        assert request[0] == rpc.SET_TENSOR_GGUF
        body = request[9 + rpc.LOAD_HEAD_BYTES :]
        at = range(0, len(body), rpc.LOAD_ENTRY_BYTES)
        assert [body[begin:][rpc.LOAD_HASH] for begin in at] == entries

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()


def weight(name: str, data: bytes) -> bytes:
    tensor = Tensor(ne=(SIZE // 4, 1, 1, 1), nb=(4, SIZE, SIZE, SIZE))
    sent = talk.set_tensor(tensor, b"").replace(b"name".ljust(64, b"\0"), name.encode().ljust(64, b"\0"))
    return talk.request(rpc.SET_TENSOR, sent[9:] + data)


@asynccontextmanager
async def scene(features: int = ANNOUNCED & rpc.FEATURE_LOAD) -> AsyncIterator[Scene]:
    fars: asyncio.Queue[Stream] = asyncio.Queue(maxsize=1)
    made: list[Scene] = []
    file, placed, broken = File(), list[Placed](), list[MeshdError]()
    witness = Witness()
    forward = Forward(
        mesh=FarMesh(fars.put_nowait),
        peer=PEER,
        service="rpc",
        metadata={},
        saved=SavedWeights(file, lambda _endpoint, name, size, why: placed.append((name, size, why))),
        on_broken=broken.append,
        watch=lambda: nullcontext(witness),
    )
    async with Owner() as owner:
        owner.start(forward.serve(), name="forward")
        reader, writer = await asyncio.open_connection("127.0.0.1", forward.port)
        made.append(it := Scene(reader, writer, await fars.get()))
        it.file, it.placed, it.broken, it.witness = file, placed, broken, witness
        await it.say(talk.hello(bytes(24)))
        assert await it.at_worker(HELLO) == talk.hello(talk.caps(ANNOUNCED))
        await it.far.write(talk.hello_answer(talk.caps(features) if features else bytes(24)))
        assert await reader.readexactly(36) == talk.hello_answer(bytes(24))
        try:
            yield it
        finally:
            writer.transport.abort()
            owner.cancel()


READ = talk.get_tensor(Tensor())


def test_who_watches_sees_what_crosses_and_not_what_is_said_here() -> None:
    async def main() -> None:
        async with scene() as it:
            await it.say(weight("a", it.file.of("a")) + READ)
            await it.load("a")
            await it.far.write(talk.answer(b"\0"))
            assert await it.at_worker(len(READ)) == READ
            asked = HELLO + 9 + rpc.LOAD_HEAD_BYTES + rpc.LOAD_ENTRY_BYTES + len(READ)
            assert len(it.witness.requests) == asked
            assert it.witness.requests.endswith(READ)
            assert it.witness.answers.endswith(talk.answer(b"\0"))

    run(main())


def test_weights_of_the_file_are_asked_for_before_what_follows() -> None:
    async def main() -> None:
        async with scene() as it:
            await it.say(weight("a", it.file.of("a")) + weight("b", it.file.of("b")) + READ)
            await it.load("a", "b")
            await it.far.write(talk.answer(b"\0\0"))
            assert await it.at_worker(len(READ)) == READ
            await it.far.write(talk.answer(bytes(16)))
            assert await it.reader.readexactly(24) == talk.answer(bytes(16))
            assert it.placed == [("a", SIZE, ""), ("b", SIZE, "")]

    run(main())


def test_what_the_worker_misses_is_sent_from_the_file_before_what_follows() -> None:
    async def main() -> None:
        async with scene() as it:
            missed = weight("b", it.file.of("b"))
            await it.say(weight("a", it.file.of("a")) + missed + READ)
            await it.load("a", "b")
            await it.far.write(talk.answer(bytes((0, rpc.NO_SUCH_HASH))))
            assert await it.at_worker(len(missed) + len(READ)) == missed + READ
            assert it.placed == [("a", SIZE, ""), ("b", SIZE, "no-such-hash")]

    run(main())


@pytest.mark.parametrize("at", [0, 1, 299, 300, 301, SIZE - 1])
def test_other_data_than_the_file_has_arrives_as_it_was_sent(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 300)

    async def main() -> None:
        async with scene() as it:
            data = bytearray(it.file.of("b"))
            data[at] ^= 1
            other = weight("b", bytes(data))
            await it.say(weight("a", it.file.of("a")) + other + READ)
            await it.load("a")
            await it.far.write(talk.answer(b"\0"))
            assert await it.at_worker(len(other) + len(READ)) == other + READ
            assert it.placed == [("b", SIZE, "head-data-differs"), ("a", SIZE, "")]
            assert it.file.most == 300

    run(main())


@pytest.mark.parametrize("features", [0, rpc.FEATURE_ALLOC])
def test_a_worker_that_fills_nothing_gets_everything_as_it_was_sent(features: int) -> None:
    async def main() -> None:
        async with scene(features) as it:
            sent = weight("a", it.file.of("a")) + weight("b", it.file.of("b")) + READ
            await it.say(sent)
            assert await it.at_worker(len(sent)) == sent
            assert [why for _, _, why in it.placed] == [
                "worker-has-no-files" if features else "stock-worker"
            ] * 2

    run(main())


def test_many_weights_are_asked_for_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOAD_TENSORS", 2)

    async def main() -> None:
        async with scene() as it:
            a, b = (weight(name, it.file.of(name)) for name in "ab")
            await it.say(a + b + a + b)
            await it.load("a", "b")
            await it.load("a", "b")
            await it.far.write(talk.answer(bytes((rpc.UNREADABLE, 0))) + talk.answer(b"\0\0"))
            await it.say(a + READ)
            await it.load("a")
            assert await it.at_worker(len(a)) == a, "the first, which the worker could not read"
            await it.far.write(talk.answer(b"\0"))
            assert await it.at_worker(len(READ)) == READ
            assert [why for _, _, why in it.placed] == ["unreadable", "", "", "", ""]

    run(main())


def _changed(file: File) -> None:
    file.same = False


def _fails(file: File) -> None:
    file.fails = True


async def _until_broken(it: Scene) -> str:
    with pytest.raises(Broken):
        await it.at_worker(1 << 20)
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await it.reader.readexactly(1)
    [error] = it.broken
    return error.what


def test_a_file_that_was_changed_ends_it() -> None:
    async def main() -> None:
        async with scene() as it:
            _changed(it.file)
            await it.say(weight("a", it.file.of("a")) + READ)
            assert "was changed while it was loaded" in await _until_broken(it)

    run(main())


@pytest.mark.parametrize(("harm", "what"), [(_changed, "was changed"), (_fails, "can no longer be read")])
def test_a_file_that_cannot_be_sent_any_more_ends_it(harm: Callable[[File], None], what: str) -> None:
    async def main() -> None:
        async with scene() as it:
            await it.say(weight("a", it.file.of("a")) + READ)
            await it.load("a")
            harm(it.file)
            await it.far.write(talk.answer(bytes((rpc.NO_SUCH_HASH,))))
            assert what in await _until_broken(it)

    run(main())


def test_a_file_that_cannot_be_read_costs_nothing_but_the_way() -> None:
    async def main() -> None:
        async with scene() as it:
            _fails(it.file)
            sent = weight("a", it.file.of("a")) + READ
            await it.say(sent)
            assert await it.at_worker(len(sent)) == sent
            assert it.placed == [("a", SIZE, "head-data-differs")]

    run(main())


def test_a_worker_that_leaves_while_it_is_asked_ends_it() -> None:
    async def main() -> None:
        async with scene() as it:
            await it.say(weight("a", it.file.of("a")) + READ)
            await it.load("a")
            it.far.write_eof()
            assert "ended the connection" in await _until_broken(it)

    run(main())
