"""Ask members which models they have, and decide which of these a name means.

Members are also asked for the hashes of a model's pieces or tensors.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from meshd.base.errors import MeshdError, Refused, RemoteProtocolError, UserError
from meshd.base.peer_limits import MEMBERS_ASKED, MODELS_TOLD
from meshd.base.tasks import Owner, first_error
from meshd.base.units import in_bytes
from meshd.identity.keys import PeerId
from meshd.model.gguf_names import GGUF_SUFFIX, SHARD, GgufFile, GgufModel, choose, is_model
from meshd.model.model_name import (
    DEMO,
    DEMO_STEM,
    HUB,
    LEAST_FINGERPRINT_DIGITS,
    OLLAMA,
    BareName,
    HubName,
    MeshName,
    ModelName,
    is_file_name,
    parse_model_name,
    stem_of_ollama,
)
from meshd.model.short_names import SHORT_NAMES, stem_of
from meshd.model.weights_index import HASH_BYTES, PieceIndex, count_pieces
from meshd.mux.events import Code
from meshd.peer.interface import Mesh, PeerState, PeerStatus
from meshd.peer.messages import MessageStream
from meshd.tunnel.joined import open_on_demand
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

_LISTED = 8  # models listed in an error
LIST_SECONDS = 15.0  # for the whole list of one member
_WORDLESS_SECONDS = 30.0
_READ_SECONDS = 4 * 3600.0  # with progress messages: a terabyte on a slow disk


@dataclass(frozen=True, slots=True)
class MemberOffer:
    """A `model` of `peer`, which people call `node`."""

    peer: PeerId
    node: str
    model: ToldModel

    @property
    def stem(self) -> str:
        """The name for the files here; empty if the model's name is not valid for a model's file."""
        name = self.model.names[0]
        file = name + GGUF_SUFFIX
        return name if is_file_name(name) and is_model(file) and not SHARD.fullmatch(file) else ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names that find the model: `stem`, then those with a scheme.

        Any other name would let a member be found under one name, and leave its file here under another.
        """
        return (self.stem, *filter(self._is_own, self.model.names[1:]))

    def _is_own(self, name: str) -> bool:
        return name.startswith(HUB) or (name.startswith(OLLAMA) and stem_of_ollama(name) == self.stem)


def fitting_offers(
    name: ModelName, offers: Iterable[MemberOffer], *, by_content: bool = True
) -> list[MemberOffer]:
    """Return the offers that `name` means, of one or several members; empty if no member has it.

    All are of one model, as far as the members report. Digits are never a name; everything that begins with
    these digits is one model, whatever else is reported about it, until the received bytes show which members
    lie. `by_content`: the digits may be of a content id as well as of a fingerprint. Raises UserError for a
    name that means several models.
    """
    usable = [offer for offer in offers if offer.stem]
    if isinstance(name, MeshName) and (digits := name.fingerprint):
        return [offer for offer in usable if _has_digits(offer.model, digits, by_content=by_content)]
    if isinstance(name, HubName):
        return _one_of(str(name), _of_hub(name, usable))
    words = _words_for(name)
    return _one_of(str(name), [offer for offer in usable if words & {word.lower() for word in offer.names}])


def digits_of(model: ToldModel) -> str:
    """Return the digits that identify the model; empty if its owner has not read it yet."""
    return (model.fingerprint or model.content).hex()


def _has_digits(model: ToldModel, digits: str, *, by_content: bool) -> bool:
    ids = (model.fingerprint, model.content) if by_content else (model.fingerprint,)
    return any(known.hex().startswith(digits) for known in ids)


def _words_for(name: ModelName) -> set[str]:
    text = (name.text if isinstance(name, MeshName) else str(name)).lower().removesuffix(GGUF_SUFFIX)
    if not isinstance(name, BareName):
        return {text}
    if text == DEMO:
        return {DEMO_STEM.lower()}
    if (known := SHORT_NAMES.get(text)) is not None:
        return {str(known).lower(), stem_of(known).lower()}
    return {text, f"ollama:{text}"}


def _of_hub(name: HubName, offers: Sequence[MemberOffer]) -> list[MemberOffer]:
    """Choose among offers of the same repository as among its files: a quantisation, a file, or the usual."""
    stems: dict[str, list[MemberOffer]] = {}
    models: dict[str, GgufModel] = {}
    for offer in offers:
        for word in offer.names[1:]:
            parsed = _parsed(word)
            if isinstance(parsed, HubName) and parsed.repository.lower() == name.repository.lower():
                low = offer.stem.lower()
                stems.setdefault(low, []).append(offer)
                named = parsed.choice.lower().endswith(GGUF_SUFFIX)
                file = parsed.choice if named else offer.stem + GGUF_SUFFIX
                files = (GgufFile(file, offer.model.size),)
                models.setdefault(low, GgufModel(offer.stem, offer.model.quant.upper(), files))
    chosen = choose(list(models.values()), name.choice)
    return [offer for model in chosen for offer in stems[model.name.lower()]]


def _parsed(word: str) -> ModelName | None:
    try:
        return parse_model_name(word)
    except ValueError:
        return None


def _one_of(text: str, found: list[MemberOffer]) -> list[MemberOffer]:
    """Return the offers. Raises UserError if some are certainly not the same file."""
    several = len({offer.model.size for offer in found}) > 1
    if several or len({offer.model.fingerprint for offer in found} - {b""}) > 1:
        kinds = {(offer.model.size, offer.model.fingerprint): offer for offer in found}
        raise ambiguous(text, list(kinds.values()))
    return found


def ambiguous(text: str, offers: Sequence[MemberOffer]) -> UserError:
    """Return the error for a name that means several models."""
    listed = ", ".join(
        f"`{offer.stem}` of {offer.node} ({in_bytes(offer.model.size)}"
        + (f", {digits[:LEAST_FINGERPRINT_DIGITS]})" if (digits := digits_of(offer.model)) else ")")
        for offer in offers[:_LISTED]
    )
    more = f" and {len(offers) - _LISTED} more" if len(offers) > _LISTED else ""
    return UserError(
        f"`{text}` means different models of members: {listed}{more}",
        hint="name one by its fingerprint: `meshd model pull mesh:FINGERPRINT` (`meshd model ls --json` "
        "shows them; `meshd model verify NAME` on that node computes one)",
    )


@dataclass(frozen=True, slots=True)
class MemberModels:
    """One member's models, or why it did not answer."""

    node: str
    offers: tuple[MemberOffer, ...] = ()
    why_not: str = ""
    disk: ToldDisk | None = None


async def ask_members(mesh: Mesh, *, seconds: float = LIST_SECONDS) -> list[MemberModels]:
    """Ask all present members at once, the connected ones first. Absent members are left out.

    `seconds`: for the whole list of one member.
    """
    asked = askable(mesh)
    found: dict[PeerId, MemberModels] = {}

    async def ask(peer: PeerStatus) -> None:
        name = peer.name or peer.peer.short
        try:
            async with asyncio.timeout(seconds):
                reply = await ask_models(mesh, peer.peer)
            offers = tuple(MemberOffer(peer.peer, name, model) for model in reply.models)
            found[peer.peer] = MemberModels(name, offers, disk=reply.disk)
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
    found: list[ToldModel] = []
    async with _asking(mesh, peer, AskModels().encode()) as messages:
        while True:
            answer = await _next(messages)
            if not isinstance(answer, ModelsTold):
                raise RemoteProtocolError("models: expected `models`", code="models")
            found += answer.models
            if len(found) > MAX_MODELS_TOLD or not (answer.models or answer.last):
                raise RemoteProtocolError("models: more of them than may be told", code="models")
            if answer.last:
                return ModelsTold(tuple(found), disk=answer.disk)


async def ask_pieces(mesh: Mesh, offer: MemberOffer, on_progress: Callable[[str], None]) -> PieceIndex:
    """Return the pieces of a member's offer; wait while the member reads the file.

    Raises as `ask_models`, and TimeoutError.
    """
    async with (
        _asking(mesh, offer.peer, AskPieces(offer.model.key).encode()) as messages,
        asyncio.timeout(_READ_SECONDS),
    ):
        answer = await _once_read(messages, on_progress)
        if not isinstance(answer, PiecesTold):
            raise RemoteProtocolError("models: expected `files`", code="models")
        if sum(answer.sizes) != offer.model.size or len(answer.sizes) != offer.model.files:
            raise RemoteProtocolError("models: other files than were told of", code="models")
        hashes = await _hashes(messages, await _next(messages), PieceHashes, count_pieces(answer.sizes))
        index = PieceIndex(answer.sizes, hashes)
        if offer.model.content not in (b"", index.content):
            raise RemoteProtocolError("models: other pieces than were told of", code="models")
        return index


async def ask_tensors(
    mesh: Mesh, offer: MemberOffer, count: int, on_progress: Callable[[str], None]
) -> tuple[bytes, ...]:
    """Return the hashes of the `count` tensors of a member's offer; wait while it reads the file.

    Raises as `ask_pieces`. The caller has to find out whether the hashes are right.
    """
    async with (
        _asking(mesh, offer.peer, AskTensors(offer.model.key).encode()) as messages,
        asyncio.timeout(_READ_SECONDS),
    ):
        found = await _hashes(messages, await _once_read(messages, on_progress), TensorHashes, count)
        return tuple(found[at : at + HASH_BYTES] for at in range(0, len(found), HASH_BYTES))


async def _once_read(messages: MessageStream, on_progress: Callable[[str], None]) -> ModelsMessage:
    """Return the first answer that is no progress message. Raises Refused."""
    while isinstance(answer := await _next(messages), ReadingModel):
        on_progress(answer.text)
    if isinstance(answer, NoPieces):
        raise Refused(answer.why, code="models")
    return answer


@asynccontextmanager
async def _asking(mesh: Mesh, peer: PeerId, question: bytes) -> AsyncIterator[MessageStream]:
    """Send a question; the stream for its answer is open for the time of the block."""
    stream = await open_on_demand(mesh, peer, MODELS_SERVICE, metadata={})
    try:
        messages = MessageStream(stream, MODELS_TOLD)
        await messages.send(question)
        yield messages
    finally:
        stream.reset(Code.CANCELLED, "that was the answer")


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
