"""Tells members which models this node has, and the hashes of their pieces or tensors.

A model whose hashes are not known yet is read once, for the first member that asks; others that ask for the
same meanwhile wait for it. Such readings take turns, and how many a member may cause is limited.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from meshd.base import log
from meshd.base.errors import Broken, EndOfStream, MeshdError, RemoteProtocolError
from meshd.base.peer_limits import (
    MODELS_ASKED,
    MODELS_ASKED_OF_ISSUER,
    MODELS_ASKED_OF_PEER,
    MODELS_MESSAGES,
    MODELS_READ,
)
from meshd.base.rate_by_key import Rates
from meshd.base.tasks import Owner, first_error, in_thread
from meshd.base.work_slots import Release, Slots
from meshd.identity.membership import Member, Role
from meshd.library.members.offered_models import OfferedModel, OfferedModels, OpenModel
from meshd.model.piece_index import HASH_BYTES, PieceIndex
from meshd.peer.interface import Mesh, MetadataValue, Stream
from meshd.peer.messages import MessageStream
from meshd.role.capacity.tell_capacity import NOT_FOR_YOU
from meshd.store.hash_cache import HashCache
from meshd.store.interface import HashProgress
from meshd.store.model_file import ModelFile
from meshd.store.piece_cache import PieceCache
from meshd.wire.limits import MAX_MODEL_ROWS, MAX_PIECE_HASHES
from meshd.wire.models import (
    MODELS_SERVICE,
    AskModels,
    AskPieces,
    AskTensors,
    ModelsTold,
    NoPieces,
    PieceHashes,
    PiecesTold,
    ReadingModel,
    TensorHashes,
    ToldDisk,
    decode,
)

T = TypeVar("T")
_ASKED_SECONDS = 30.0  # for the question, once the stream is open
_TOLD_SECONDS = 2.0  # how often it is said how far a reading is
LOG = log.get("library")


class ModelsTeller:
    """Answers on streams of service `models`."""

    def __init__(
        self,
        mesh: Mesh,
        offered: OfferedModels,
        pieces: PieceCache,
        hashes: HashCache,
        *,
        disk: Callable[[], ToldDisk | None],
    ) -> None:
        """`disk`: of this node now; None where that cannot be found out."""
        self._offered = offered
        self._disk = disk
        self._pieces = pieces
        self._hashes = hashes
        self._places = Slots(MODELS_ASKED, MODELS_ASKED_OF_PEER, MODELS_ASKED_OF_ISSUER)
        self._read = Rates(MODELS_READ)
        self._turn = asyncio.Lock()  # who waits for it may find the pieces known
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
            return  # nobody wants to know any more
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
            offered = await in_thread(functools.partial(self._offered.by_key, asked.key))
            if offered is None:
                await messages.send(NoPieces("it does not have this model any more").encode())
            elif isinstance(asked, AskPieces):
                await self._tell_pieces(messages, offered)
            else:
                await self._tell_tensors(messages, offered)
        else:
            raise RemoteProtocolError("models: expected `list`, `pieces` or `tensors`", code="models")

    async def _tell(self, messages: MessageStream) -> None:
        told = [one.told for one in await in_thread(self._offered.listed)]
        for at in range(0, max(1, len(told)), MAX_MODEL_ROWS):
            rows, last = tuple(told[at : at + MAX_MODEL_ROWS]), at + MAX_MODEL_ROWS >= len(told)
            await messages.send(ModelsTold(rows, last, self._disk() if last else None).encode())

    async def _tell_pieces(self, messages: MessageStream, offered: OfferedModel) -> None:
        index = await in_thread(functools.partial(self._offered.index_of, offered))
        if index is None:
            index = await self._read_for(messages, functools.partial(self._read_pieces, offered))
        if index is None:
            return
        await messages.send(PiecesTold(index.sizes).encode())
        for some in _in_messages(index.hashes):
            await messages.send(PieceHashes(some).encode())

    async def _tell_tensors(self, messages: MessageStream, offered: OfferedModel) -> None:
        hashes = await in_thread(functools.partial(self._offered.tensors_of, offered))
        if hashes is None:
            hashes = await self._read_for(messages, functools.partial(self._read_tensors, offered))
        for some in _in_messages(hashes or b""):
            await messages.send(TensorHashes(some).encode())

    async def _read_for(self, messages: MessageStream, read_model: Callable[[], Awaitable[T]]) -> T | None:
        """Read the model, saying how far that is; None when this member may not cause it."""
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
        """Until it is read; never cancelled inside a message."""
        while not read.is_set():
            await messages.send(ReadingModel(self._progress or "waiting for its turn").encode())
            with suppress(TimeoutError):
                async with asyncio.timeout(_TOLD_SECONDS):
                    await read.wait()

    async def _read_pieces(self, offered: OfferedModel) -> PieceIndex:
        async with self._turn:
            index = await in_thread(functools.partial(self._offered.index_of, offered))
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
    """The same, of at most as many as one message has."""
    step = MAX_PIECE_HASHES * HASH_BYTES
    return [hashes[at : at + step] for at in range(0, len(hashes), step)]
