"""A member that says of its model what a test wants, and models to say it of."""

import asyncio
from dataclasses import dataclass
from functools import cache

from meshd.library.members.pull import HeaderPull
from meshd.model.gguf_names import file_names
from meshd.model.model_name import parse_model_name
from meshd.model.weights_index import PIECE_BYTES, PieceIndex, fingerprint
from meshd.peer.interface import Stream
from meshd.peer.messages import MessageStream
from meshd.wire.models import (
    HERE,
    MODELS_SERVICE,
    PIECES_SERVICE,
    AskPieces,
    AskTensors,
    ModelsTold,
    NoPieces,
    PieceHashes,
    PiecesTold,
    ReadingModel,
    TensorHashes,
    ToldModel,
    decode,
)

from tests.gguf_bytes import gguf, language_model, parse
from tests.unit.head.fake_mesh import FakeMesh
from tests.unit.library.members.exchange_scene import NAME, Scene
from tests.unit.library.members.test_hostile_members import lies_about
from tests.unit.store.header_files import hashes_of


@cache
def large() -> bytes:
    """Layers of four pieces, behind an embedding of some kB."""
    return gguf(*language_model(width=1024, vocabulary=32, layers=16))


@cache
def large_shards(count: int, stem: str = "large-Q4_K_M") -> dict[str, bytes]:
    """The same layers in so many files, by name; the output is in the last."""
    metadata, tensors = language_model(width=1024, vocabulary=32, layers=16)
    step = -(-len(tensors) // count)
    names = file_names(stem, count)
    keys = {"split.count": count, "split.tensors.count": len(tensors)}
    return {
        name: gguf({**({} if at else metadata), **keys, "split.no": at}, tensors[at * step : (at + 1) * step])
        for at, name in enumerate(names)
    }


def pull_of(it: Scene, name: str = NAME) -> HeaderPull:
    return HeaderPull(it.taker, parse_model_name(name), it.place())


def fingerprint_of(data: bytes) -> str:
    return fingerprint([parse(data)], [hashes_of(data)])


def lying(data: bytes, *, about: str) -> tuple[bytes, ...]:
    """The hashes of all tensors, and wrong ones of those whose names begin so."""
    tensors = parse(data).tensors
    right = hashes_of(data)
    return tuple(
        b"x" * 32 if one.name.startswith(about) else digest
        for one, digest in zip(tensors, right, strict=True)
    )


@dataclass
class Member:
    """One that has `data`, and says of it what a test wants."""

    data: bytes
    hashes: tuple[bytes, ...]
    fingerprint: bytes = b""
    content: bytes = b""
    names: tuple[str, ...] = (NAME,)
    index: PieceIndex | None = None  # if it tells another one than that of `data`
    gives: bool = True
    stalls: bool = False  # with its pieces, and with hashes that it says it reads
    why_no_pieces: str = ""
    why_not: str = ""  # no hashes of tensors
    slow: int = 0  # so many times it is asked in vain for hashes, since it still reads
    asked: int = 0

    def speaks_for(self, mesh: FakeMesh) -> None:
        mesh.handle(MODELS_SERVICE, self._answer, allow=lambda _member, _metadata: None)
        mesh.handle(PIECES_SERVICE, self._give, allow=lambda _member, _metadata: None)

    async def _answer(self, stream: Stream) -> None:
        messages = MessageStream(stream)
        match decode(await messages.receive()):
            case AskPieces() if self.why_no_pieces:
                await messages.send(NoPieces(self.why_no_pieces).encode())
            case AskPieces():
                index = self.index or index_of(self.data)
                await messages.send(PiecesTold(index.sizes).encode())
                await messages.send(PieceHashes(index.hashes).encode())
            case AskTensors():
                self.asked += 1
                if self.stalls or self.asked <= self.slow:
                    await messages.send(ReadingModel("0 %").encode())
                    await asyncio.Event().wait()
                if self.why_not:
                    await messages.send(NoPieces(self.why_not).encode())
                for digest in self.hashes:
                    await messages.send(TensorHashes(digest).encode())
            case _:
                sizes = self.index.sizes if self.index is not None else (len(self.data),)
                told = ToldModel(
                    bytes(16),
                    self.names,
                    sum(sizes),
                    len(sizes),
                    fingerprint=self.fingerprint,
                    content=self.content,
                )
                await messages.send(ModelsTold((told,)).encode())
        stream.write_eof()

    async def _give(self, stream: Stream) -> None:
        if self.stalls:
            await asyncio.Event().wait()
        while self.gives:
            request = bytes(await stream.read())
            stream.consumed(len(request))
            for at in range(0, len(request), 4):
                begin = int.from_bytes(request[at : at + 4], "big") * PIECE_BYTES
                await stream.write(HERE + self.data[begin : begin + PIECE_BYTES])
        stream.reset(0, "no")


@cache
def index_of(data: bytes) -> PieceIndex:
    return lies_about(data)[1]
