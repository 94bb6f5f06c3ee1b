"""Give members the models that this node offers: lists, hashes of pieces and tensors, and pieces.

Members learn names, sizes and hashes, never a path. Only models that the mesh has seen are offered: those
that this node was started with, and those in meshd's own folder. No other model of the machine is offered: a
cache may hold private models, and even the list reveals something about its user.

A model without known hashes is read once, for the first member that asks; other members that ask for it
meanwhile wait. Such readings take turns, and the number that a member may cause is limited. Pieces use
streams of priority bulk, so answers go first on each link; while this node computes for a model itself, the
rate of all streams together is limited (GIVEN_WHILE_SERVING). A file is given only in the state in which its
pieces were hashed.
"""

import asyncio
import functools
import os
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from blake3 import blake3

from meshd.base import log
from meshd.base.admission import Rates, Release, Slots
from meshd.base.errors import Broken, EndOfStream, MeshdError, RemoteProtocolError
from meshd.base.peer_limits import (
    GIVEN_WHILE_SERVING,
    MODELS_ASKED,
    MODELS_ASKED_OF_ISSUER,
    MODELS_ASKED_OF_PEER,
    MODELS_MESSAGES,
    MODELS_READ,
    PIECES_GIVEN,
    PIECES_GIVEN_OF_ISSUER,
    PIECES_GIVEN_OF_PEER,
)
from meshd.base.tasks import Owner, first_error, in_thread
from meshd.devices.capacity import NOT_FOR_YOU
from meshd.identity.membership import Member, Role
from meshd.library.disk import is_file
from meshd.library.facts import ModelFacts, facts_of
from meshd.library.interface import ModelSource, StoredModel
from meshd.library.stores import Stores, of_path
from meshd.model.model_name import HUB, OLLAMA, stem_of_ollama
from meshd.model.weights_index import HASH_BYTES, Piece, PieceIndex
from meshd.peer.interface import Mesh, MetadataValue, Stream
from meshd.peer.messages import MessageStream
from meshd.store.hash_cache import FileState, HashCache, PieceCache
from meshd.store.interface import HashProgress
from meshd.store.model_file import ModelFile, known_hashes, shards_of
from meshd.wire.limits import (
    MAX_GIVEN_BYTES,
    MAX_MODEL_FILES,
    MAX_MODEL_ROWS,
    MAX_MODELS_TOLD,
    MAX_PIECE_HASHES,
)
from meshd.wire.models import (
    CONTENT_FIELD,
    GONE,
    HERE,
    MODEL_KEY_BYTES,
    MODELS_SERVICE,
    PIECES_SERVICE,
    AskModels,
    AskPieces,
    AskTensors,
    ModelsTold,
    NoPieces,
    PieceHashes,
    PieceRequests,
    PiecesTold,
    ReadingModel,
    TensorHashes,
    ToldDisk,
    ToldModel,
    decode,
)

OWN_SOURCES = frozenset({ModelSource.MESHD, ModelSource.PATH})
_FRESH_SECONDS = 5.0  # a list is reused for so long
T = TypeVar("T")
_ASKED_SECONDS = 30.0  # for the question, once the stream is open
_TOLD_SECONDS = 2.0  # interval of progress messages during a reading
LOG = log.get("library")
NO_MODEL = "this node does not have that model"
_CHUNK_BYTES = 512 << 10  # of a piece in memory, per stream
_REQUEST_SECONDS = 600.0  # for the next request: a puller may limit its rate
_WRITE_SECONDS = 300.0  # for a chunk: a session without a link lives for the grace time


@dataclass(frozen=True, slots=True)
class OfferedModel:
    """A model to offer: `paths` stay on this machine; `entry` is what members see."""

    entry: ToldModel
    paths: tuple[Path, ...]
    states: tuple[FileState, ...]


class OpenModel:
    """The files of an offered model, open until `close`, in the state in which its pieces were hashed."""

    def __init__(self, offered: OfferedModel) -> None:
        self._paths = offered.paths
        self.labels = tuple(path.name for path in offered.paths)
        self.descriptors: list[int] = []

    def open(self) -> None:
        """Open the files, in a thread; a caller that was cancelled closes them, too. Raises OSError."""
        for path in self._paths:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
            self.descriptors.append(os.open(path, flags))

    @property
    def states(self) -> tuple[FileState, ...]:
        """The current states of the files. Raises OSError."""
        return tuple(map(FileState.of, self.descriptors))

    def close(self) -> None:
        """Close the files. Idempotent."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


class OfferedModels:
    """The models to offer. Methods block, so run them in threads; a model keeps its key."""

    def __init__(
        self,
        stores: Callable[[], Stores],
        hashes: Path,
        pieces: PieceCache,
        *,
        sources: Collection[ModelSource],
    ) -> None:
        """Offer the models of these `sources`. `hashes`: the folder of meshd's hashes of tensors."""
        self._stores = stores
        self._hashes = hashes
        self._pieces = pieces
        self._sources = sources
        self._own: list[Path] = []
        self._secret = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._read: dict[tuple[Path, ...], tuple[tuple[FileState, ...], ModelFacts]] = {}
        self._known: dict[bytes, OfferedModel] = {}
        self._listed_at = -_FRESH_SECONDS

    def add(self, paths: Sequence[Path]) -> None:
        """Offer models that this node was started with, wherever they are."""
        self._own += paths

    def listed(self) -> tuple[OfferedModel, ...]:
        """List all complete models, as they are now."""
        with self._lock:
            if time.monotonic() - self._listed_at < _FRESH_SECONDS:
                return tuple(self._known.values())
            found: dict[bytes, OfferedModel] = {}
            for stored in self._stored():
                if len(found) >= MAX_MODELS_TOLD:
                    break
                with suppress(OSError):
                    if (offered := self._offered(stored)) is not None:
                        found.setdefault(offered.entry.key, offered)
            self._read = {model.paths: self._read[model.paths] for model in found.values()}
            self._known, self._listed_at = found, time.monotonic()
            return tuple(found.values())

    def changed(self) -> None:
        """Discard the cached list, for example because a model's pieces have become known."""
        self._listed_at = -_FRESH_SECONDS

    def by_key(self, key: bytes) -> OfferedModel | None:
        """Return the listed model with this key, or None."""
        return next((model for model in self.listed() if model.entry.key == key), None)

    def by_content(self, content: bytes) -> OfferedModel | None:
        """Return the model with this content, even if its pieces became known only after the list."""
        listed = self.listed()
        found = next((model for model in listed if content and model.entry.content == content), None)
        unread = () if found is not None or not content else listed
        return next((model for model in unread if self._has_become(model, content)), found)

    def _has_become(self, offered: OfferedModel, content: bytes) -> bool:
        index = None if offered.entry.content else self.index_of(offered)
        return index is not None and index.content == content

    def index_of(self, offered: OfferedModel) -> PieceIndex | None:
        """Return the model's pieces, if they are known."""
        return self._pieces.load(offered.states)

    def tensors_of(self, offered: OfferedModel) -> bytes | None:
        """Return the hashes of the model's tensors, concatenated, if they are known. Raises UserError."""
        with shards_of(offered.paths[0]) as shards:
            known = known_hashes(shards, HashCache(self._hashes))
        return None if known is None else b"".join(digest for digests in known for digest in digests)

    def _stored(self) -> list[StoredModel]:
        if not self._sources:
            return []
        own = [of_path(path) for path in self._own if is_file(path)]
        started = {path.resolve() for model in own for path in model.paths}
        stored = [
            model
            for model in self._stores().all_models()
            if model.source in self._sources or not started.isdisjoint(path.resolve() for path in model.paths)
        ]
        return [*stored, *own]

    def _offered(self, stored: StoredModel) -> OfferedModel | None:
        if not stored.complete or not stored.paths or len(stored.paths) > MAX_MODEL_FILES:
            return None
        paths = tuple(path.resolve() for path in stored.paths)
        states = tuple(map(FileState.at, paths))
        before = self._read.get(paths)
        if before is not None and before[0] == states and before[1].fingerprint is not None:
            facts = before[1]
        else:
            facts = facts_of(stored, self._hashes)
        self._read[paths] = (states, facts)
        size = sum(state.size for state in states)
        if facts.problem or facts.shards != len(paths) or not 0 < size <= MAX_GIVEN_BYTES:
            return None
        index = self._pieces.load(states)
        entry = ToldModel(
            key=self._key(paths),
            names=names_of(stored),
            size=size,
            files=len(paths),
            quant=facts.quant or stored.quant,
            architecture=facts.architecture,
            fingerprint=bytes.fromhex(facts.fingerprint or ""),
            content=index.content if index is not None else b"",
        )
        return OfferedModel(entry, paths, states)

    def _key(self, paths: Sequence[Path]) -> bytes:
        """Return a key that reveals nothing about the paths, which members must not learn."""
        whole = blake3(key=self._secret)
        for path in paths:
            whole.update(os.fsencode(path) + b"\0")
        return whole.digest(MODEL_KEY_BYTES)


def names_of(stored: StoredModel) -> tuple[str, ...]:
    """Return the file's name, then a name with a scheme; Ollama's blobs get a name made from theirs."""
    stem = stored.stem
    if stored.source is ModelSource.OLLAMA:
        stem = stem_of_ollama(stored.name)
    with_scheme = (stored.name,) if stored.name.startswith((HUB, OLLAMA)) else ()
    return (stem, *with_scheme)


class ModelsTeller:
    """Answer questions on streams of service `models`."""

    def __init__(
        self,
        mesh: Mesh,
        offered: OfferedModels,
        pieces: PieceCache,
        hashes: HashCache,
        *,
        disk: Callable[[], ToldDisk | None],
    ) -> None:
        """Register the service. `disk` returns the state of this node's disk, None if unknown."""
        self._offered = offered
        self._disk = disk
        self._pieces = pieces
        self._hashes = hashes
        self._places = Slots(MODELS_ASKED, MODELS_ASKED_OF_PEER, MODELS_ASKED_OF_ISSUER)
        self._read = Rates(MODELS_READ)
        self._turn = asyncio.Lock()  # a waiter for it may find the pieces known
        self._progress = ""
        mesh.handle(MODELS_SERVICE, self._serve, allow=self._admit)

    def _admit(self, member: Member, _metadata: Mapping[str, MetadataValue]) -> str | Release:
        if Role.USE not in member.roles:
            return NOT_FOR_YOU
        return (
            self._places.take(member.peer, member.chain.admitter) or "too many questions about models at once"
        )

    async def _serve(self, stream: Stream) -> None:
        messages = MessageStream(stream, MODELS_MESSAGES)
        try:
            await self._answer(messages)
        except (Broken, EndOfStream, TimeoutError):
            return  # the asker has gone
        except RemoteProtocolError:
            raise
        except (MeshdError, OSError) as error:
            LOG.warning("models_not_told", peer=stream.peer.short, why=str(error))
            await messages.send(NoPieces("its files cannot be read there").encode())
        stream.write_eof()

    async def _answer(self, messages: MessageStream) -> None:
        async with asyncio.timeout(_ASKED_SECONDS):
            asked = decode(await messages.receive())
        if isinstance(asked, AskModels):
            await self._tell(messages)
        elif isinstance(asked, AskPieces | AskTensors):
            offered = await in_thread(self._offered.by_key, asked.key)
            if offered is None:
                await messages.send(NoPieces("it does not have this model any more").encode())
            elif isinstance(asked, AskPieces):
                await self._tell_pieces(messages, offered)
            else:
                await self._tell_tensors(messages, offered)
        else:
            raise RemoteProtocolError("models: expected `list`, `pieces` or `tensors`", code="models")

    async def _tell(self, messages: MessageStream) -> None:
        entries = [model.entry for model in await in_thread(self._offered.listed)]
        for at in range(0, max(1, len(entries)), MAX_MODEL_ROWS):
            rows, last = tuple(entries[at : at + MAX_MODEL_ROWS]), at + MAX_MODEL_ROWS >= len(entries)
            await messages.send(ModelsTold(rows, last, self._disk() if last else None).encode())

    async def _tell_pieces(self, messages: MessageStream, offered: OfferedModel) -> None:
        index = await in_thread(self._offered.index_of, offered)
        if index is None:
            index = await self._read_for(messages, functools.partial(self._read_pieces, offered))
        if index is None:
            return
        await messages.send(PiecesTold(index.sizes).encode())
        for some in _in_messages(index.hashes):
            await messages.send(PieceHashes(some).encode())

    async def _tell_tensors(self, messages: MessageStream, offered: OfferedModel) -> None:
        hashes = await in_thread(self._offered.tensors_of, offered)
        if hashes is None:
            hashes = await self._read_for(messages, functools.partial(self._read_tensors, offered))
        for some in _in_messages(hashes or b""):
            await messages.send(TensorHashes(some).encode())

    async def _read_for(self, messages: MessageStream, read_model: Callable[[], Awaitable[T]]) -> T | None:
        """Read the model and report progress; return None if this member may not cause a reading."""
        if not self._read.spend(messages.stream.peer, asyncio.get_running_loop().time()):
            await messages.send(NoPieces("it has read enough models for this node; ask again later").encode())
            return None
        read = asyncio.Event()
        try:
            async with Owner() as owner:
                owner.start(self._say_progress(messages, read), name="models progress")
                found = await read_model()
                read.set()
        except ExceptionGroup as group:
            raise first_error(group) from None
        return found

    async def _say_progress(self, messages: MessageStream, read: asyncio.Event) -> None:
        """Report progress until the model is read; never cancelled inside a message."""
        while not read.is_set():
            await messages.send(ReadingModel(self._progress or "waiting for its turn").encode())
            with suppress(TimeoutError):
                async with asyncio.timeout(_TOLD_SECONDS):
                    await read.wait()

    async def _read_pieces(self, offered: OfferedModel) -> PieceIndex:
        async with self._turn:
            index = await in_thread(self._offered.index_of, offered)
            if index is not None:
                return index
            model = OpenModel(offered)
            try:
                await in_thread(model.open)
                index = await self._pieces.read(model.descriptors, model.labels, self._on_progress)
            finally:
                self._progress = ""
                model.close()
            self._offered.changed()
            return index

    async def _read_tensors(self, offered: OfferedModel) -> bytes:
        async with self._turn:
            model = await ModelFile.open(offered.paths[0], cache=self._hashes)
            try:
                index = await model.index(self._on_progress)
            finally:
                self._progress = ""
                model.close()
            self._offered.changed()
            return b"".join(tensor.digest for tensor in index.tensors)

    def _on_progress(self, progress: HashProgress) -> None:
        self._progress = f"reading it once: {100 * progress.done // max(1, progress.total)} %"


def _in_messages(hashes: bytes) -> list[bytes]:
    """Split hashes into parts that fit into one message."""
    step = MAX_PIECE_HASHES * HASH_BYTES
    return [hashes[at : at + step] for at in range(0, len(hashes), step)]


@dataclass(slots=True)
class _Giving:
    """One stream at work."""

    stream: Stream
    model: OpenModel
    offered: OfferedModel
    index: PieceIndex


class PieceGiver:
    """Serve streams of service `pieces`. `is_serving`: this node computes for a model."""

    def __init__(self, mesh: Mesh, offered: OfferedModels, *, is_serving: Callable[[], bool]) -> None:
        self._offered = offered
        self._is_serving = is_serving
        self._places = Slots(PIECES_GIVEN, PIECES_GIVEN_OF_PEER, PIECES_GIVEN_OF_ISSUER)
        self._pace = GIVEN_WHILE_SERVING.bucket(asyncio.get_running_loop().time())
        mesh.handle(PIECES_SERVICE, self._serve, allow=self._admit)

    def _admit(self, member: Member, metadata: Mapping[str, MetadataValue]) -> str | Release:
        if Role.USE not in member.roles:
            return NOT_FOR_YOU
        content = metadata.get(CONTENT_FIELD)
        if not isinstance(content, bytes) or len(content) != HASH_BYTES:
            return NO_MODEL
        return self._places.take(member.peer, member.chain.admitter) or "too many streams of pieces at once"

    async def _serve(self, stream: Stream) -> None:
        content = stream.metadata[CONTENT_FIELD]
        assert isinstance(content, bytes)
        offered = await in_thread(self._offered.by_content, content)
        index = None if offered is None else await in_thread(self._offered.index_of, offered)
        if offered is None or index is None or index.content != content:
            await stream.write(GONE)
            return stream.write_eof()
        model = OpenModel(offered)
        try:
            await in_thread(model.open)
            await self._give(_Giving(stream, model, offered, index))
        except (Broken, EndOfStream, TimeoutError):
            stream.reset(0, "no more pieces are asked for")
        except OSError as error:
            LOG.warning("model_not_given", peer=stream.peer.short, why=str(error))
            stream.reset(0, "its file cannot be read")
        finally:
            model.close()
        return None

    async def _give(self, giving: _Giving) -> None:
        requests = PieceRequests(giving.index.count)
        stream = giving.stream
        while True:
            while (number := requests.next()) is None:
                async with asyncio.timeout(_REQUEST_SECONDS):
                    data = await stream.read()
                requests.feed(data)
                stream.consumed(len(data))
            if not await self._give_one(giving, giving.index.piece(number)):
                await stream.write(GONE)
                return stream.write_eof()

    async def _give_one(self, giving: _Giving, piece: Piece) -> bool:
        """Send a piece; return False, before any byte of it, if the file has changed."""
        for at in range(0, piece.length, _CHUNK_BYTES):
            length = min(_CHUNK_BYTES, piece.length - at)
            data = await in_thread(os.pread, giving.model.descriptors[piece.file], length, piece.offset + at)
            if at == 0 and giving.model.states != giving.offered.states:
                return False
            if len(data) != length:
                raise Broken("the file was truncated")
            if self._is_serving():
                await asyncio.sleep(self._pace.take(length, asyncio.get_running_loop().time()))
            async with asyncio.timeout(_WRITE_SECONDS):
                await giving.stream.write(HERE + data if at == 0 else data)
        return True
