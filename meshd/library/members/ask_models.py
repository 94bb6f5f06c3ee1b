"""Ask members which models they have, and for the hashes of a model's pieces or tensors."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from meshd.base.errors import MeshdError, Refused, RemoteProtocolError
from meshd.base.peer_limits import MEMBERS_ASKED, MODELS_TOLD
from meshd.base.tasks import Owner, first_error
from meshd.identity.keys import PeerId
from meshd.library.members.offers import MemberOffer
from meshd.model.weights_index import HASH_BYTES, PieceIndex, count_pieces
from meshd.mux.events import Code
from meshd.peer.interface import Mesh, PeerState, PeerStatus
from meshd.peer.messages import MessageStream
from meshd.tunnel.on_demand import open_on_demand
from meshd.wire.limits import MAX_MODELS_TOLD
from meshd.wire.models import (
    MODELS_SERVICE,
    AskModels,
    AskPieces,
    AskTensors,
    ModelsMessage,
    ModelsTold,
    NoPieces,
    PieceHashes,
    PiecesTold,
    ReadingModel,
    TensorHashes,
    ToldDisk,
    ToldModel,
    decode,
)

LIST_SECONDS = 15.0  # for the whole list of one member
_WORDLESS_SECONDS = 30.0
_READ_SECONDS = 4 * 3600.0  # with progress messages: a terabyte on a slow disk


@dataclass(frozen=True, slots=True)
class MemberModels:
    """One member's models, or why it did not answer."""

    node: str
    offers: tuple[MemberOffer, ...] = ()
    why_not: str = ""
    disk: ToldDisk | None = None


async def ask_members(mesh: Mesh) -> list[MemberModels]:
    """Ask all present members at once, the connected ones first. Absent members are left out."""
    asked = askable(mesh)
    found: dict[PeerId, MemberModels] = {}

    async def ask(peer: PeerStatus) -> None:
        name = peer.name or peer.peer.short
        try:
            async with asyncio.timeout(LIST_SECONDS):
                told = await ask_models(mesh, peer.peer)
            offers = tuple(MemberOffer(peer.peer, name, one) for one in told.models)
            found[peer.peer] = MemberModels(name, offers, disk=told.disk)
        except TimeoutError:
            found[peer.peer] = MemberModels(name, why_not="it does not answer")
        except MeshdError as error:
            found[peer.peer] = MemberModels(name, why_not=error.what)

    try:
        async with Owner() as owner:
            for peer in asked:
                owner.start_for(peer.peer.short, ask(peer), name="models")
    except ExceptionGroup as group:
        raise first_error(group) from None
    return [found[peer.peer] for peer in asked if peer.peer in found]


def askable(mesh: Mesh) -> list[PeerStatus]:
    """Return the present members, the connected ones first, up to the limit of members to ask."""
    there = [peer for peer in mesh.peers() if peer.present or peer.state is PeerState.CONNECTED]
    return sorted(there, key=lambda peer: peer.state is not PeerState.CONNECTED)[: MEMBERS_ASKED.most]


async def ask_models(mesh: Mesh, peer: PeerId) -> ModelsTold:
    """Return the complete answer of one member. Raises Broken, EndOfStream, Refused, RemoteProtocolError."""
    messages = await _asking(mesh, peer, AskModels().encode())
    try:
        found: list[ToldModel] = []
        while True:
            answer = await _next(messages)
            if not isinstance(answer, ModelsTold):
                raise RemoteProtocolError("models: expected `models`", code="models")
            found += answer.models
            if len(found) > MAX_MODELS_TOLD or not (answer.models or answer.last):
                raise RemoteProtocolError("models: more of them than may be told", code="models")
            if answer.last:
                return ModelsTold(tuple(found), disk=answer.disk)
    finally:
        messages.stream.reset(Code.CANCELLED, "that was the answer")


async def ask_pieces(mesh: Mesh, offer: MemberOffer, on_progress: Callable[[str], None]) -> PieceIndex:
    """Return the pieces of a member's offer; wait while the member reads the file.

    Raises as `ask_models`, and TimeoutError.
    """
    messages = await _asking(mesh, offer.peer, AskPieces(offer.model.key).encode())
    try:
        async with asyncio.timeout(_READ_SECONDS):
            answer = await _once_read(messages, on_progress)
            if not isinstance(answer, PiecesTold):
                raise RemoteProtocolError("models: expected `files`", code="models")
            if sum(answer.sizes) != offer.model.size or len(answer.sizes) != offer.model.files:
                raise RemoteProtocolError("models: other files than were told of", code="models")
            first = await _next(messages)
            hashes = await _hashes(messages, first, PieceHashes, count_pieces(answer.sizes))
            index = PieceIndex(answer.sizes, hashes)
            if offer.model.content not in (b"", index.content):
                raise RemoteProtocolError("models: other pieces than were told of", code="models")
            return index
    finally:
        messages.stream.reset(Code.CANCELLED, "that was the answer")


async def ask_tensors(
    mesh: Mesh, offer: MemberOffer, count: int, on_progress: Callable[[str], None]
) -> tuple[bytes, ...]:
    """Return the hashes of the `count` tensors of a member's offer; wait while it reads the file.

    Raises as `ask_pieces`. The caller has to find out whether the hashes are right.
    """
    messages = await _asking(mesh, offer.peer, AskTensors(offer.model.key).encode())
    try:
        async with asyncio.timeout(_READ_SECONDS):
            first = await _once_read(messages, on_progress)
            found = await _hashes(messages, first, TensorHashes, count)
            return tuple(found[at : at + HASH_BYTES] for at in range(0, len(found), HASH_BYTES))
    finally:
        messages.stream.reset(Code.CANCELLED, "that was the answer")


async def _once_read(messages: MessageStream, on_progress: Callable[[str], None]) -> ModelsMessage:
    """Return the first answer that is no progress message. Raises Refused."""
    while isinstance(answer := await _next(messages), ReadingModel):
        on_progress(answer.text)
    if isinstance(answer, NoPieces):
        raise Refused(answer.why, code="models")
    return answer


async def _asking(mesh: Mesh, peer: PeerId, question: bytes) -> MessageStream:
    stream = await open_on_demand(mesh, peer, MODELS_SERVICE, metadata={})
    messages = MessageStream(stream, MODELS_TOLD)
    await messages.send(question)
    return messages


async def _next(messages: MessageStream) -> ModelsMessage:
    async with asyncio.timeout(_WORDLESS_SECONDS):
        return decode(await messages.receive())


async def _hashes(
    messages: MessageStream,
    answer: ModelsMessage,
    kind: type[PieceHashes] | type[TensorHashes],
    count: int,
) -> bytes:
    """Read exactly `count` hashes, from `answer` on. Raises RemoteProtocolError."""
    found = bytearray()
    while True:
        if not isinstance(answer, kind):
            raise RemoteProtocolError("models: expected `hashes`", code="models")
        found += answer.hashes
        if len(found) > count * HASH_BYTES:
            raise RemoteProtocolError("models: more hashes than there can be", code="models")
        if len(found) == count * HASH_BYTES:
            return bytes(found)
        answer = await _next(messages)
