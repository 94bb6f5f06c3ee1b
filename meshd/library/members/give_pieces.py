"""Gives pieces of this node's models to members, as fast as they take them.

Streams are of priority bulk, so answers go first on each link; while this node computes for a model itself,
all streams together are bounded (GIVEN_WHILE_SERVING). A file is given only in the state in which its pieces
were hashed.
"""

import asyncio
import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from meshd.base import log
from meshd.base.errors import Broken, EndOfStream
from meshd.base.peer_limits import (
    GIVEN_WHILE_SERVING,
    PIECES_GIVEN,
    PIECES_GIVEN_OF_ISSUER,
    PIECES_GIVEN_OF_PEER,
)
from meshd.base.tasks import in_thread
from meshd.base.work_slots import Release, Slots
from meshd.identity.membership import Member, Role
from meshd.library.members.offered_models import OfferedModel, OfferedModels, OpenModel
from meshd.model.piece_index import HASH_BYTES, Piece, PieceIndex
from meshd.peer.interface import Mesh, MetadataValue, Stream
from meshd.role.capacity.tell_capacity import NOT_FOR_YOU
from meshd.wire.pieces import GONE, HERE, PIECES_SERVICE, PieceRequests

CONTENT_FIELD = "content"  # of a stream's metadata
NO_MODEL = "this node does not have that model"
_CHUNK_BYTES = 512 << 10  # of a piece in memory, for each stream
_REQUEST_SECONDS = 600.0  # for the next request: a puller may keep to a low rate
_WRITE_SECONDS = 300.0  # for a chunk: a session without a link lives for the grace
LOG = log.get("library")


@dataclass(slots=True)
class _Giving:
    """One stream at work."""

    stream: Stream
    model: OpenModel
    offered: OfferedModel
    index: PieceIndex


class PieceGiver:
    """Serves streams of service `pieces`. `is_serving`: this node computes for a model."""

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
        offered = await in_thread(functools.partial(self._offered.by_content, content))
        index = (
            None if offered is None else await in_thread(functools.partial(self._offered.index_of, offered))
        )
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
        """False when the file is not what it was, before any byte of the piece."""
        for at in range(0, piece.length, _CHUNK_BYTES):
            length = min(_CHUNK_BYTES, piece.length - at)
            data = await in_thread(
                functools.partial(os.pread, giving.model.descriptors[piece.file], length, piece.offset + at)
            )
            if at == 0 and giving.model.states != giving.offered.states:
                return False
            if len(data) != length:
                raise Broken("the file has become shorter")
            if self._is_serving():
                await asyncio.sleep(self._pace.take(length, asyncio.get_running_loop().time()))
            async with asyncio.timeout(_WRITE_SECONDS):
                await giving.stream.write(HERE + data if at == 0 else data)
        return True
