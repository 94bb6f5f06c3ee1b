"""Fetch weights for the load of a worker from all members that have the head's file, by its pieces.

Members with the file are found by its content id, which proves the hashes of its pieces. Each piece is
checked before a tensor gets any of its bytes, and each tensor by its own hash before it is kept
(store/pack.py). The memory that a head has reserved limits its requests: pieces with few wanted bytes are
left out.
"""

import asyncio
from collections.abc import Callable

from meshd.base.errors import UserError
from meshd.base.peer_limits import MODEL_HOLDERS
from meshd.base.tasks import in_thread
from meshd.base.units import in_bytes
from meshd.devices.interface import FromMembers
from meshd.identity.keys import PeerId
from meshd.library.members.fetch import Fetch, Holder, PiecePlan
from meshd.library.members.offers import (
    LIST_SECONDS,
    MemberOffer,
    ask_members,
    ask_models,
    ask_pieces,
    askable,
)
from meshd.model.weights_index import PIECE_BYTES, PieceIndex
from meshd.peer.interface import Mesh
from meshd.rpc.mesh_keeping import Missed
from meshd.store.hash_cache import FileState, PieceCache
from meshd.store.interface import HashProgress, LeaseCache, WeightsFile
from meshd.wire.lease import NeededTensor, Needs
from meshd.wire.models import ToldModel

_SHARED_SECONDS = 3.0  # for members to list their models: a load waits for it
_SPARE_PIECES = 16  # beyond the wanted bytes: tensors begin and end within pieces


class MemberWeights:
    """The weights that members have (implements devices.interface.WeightsFromMembers)."""

    def __init__(
        self,
        mesh: Mesh,
        pieces: PieceCache,
        *,
        gives: Callable[[], bool] = lambda: False,
    ) -> None:
        """Use `gives` to find out whether this node now gives pieces of its own file."""
        self._mesh = mesh
        self._pieces = pieces
        self._gives = gives

    async def given_content(
        self, file: WeightsFile, on_progress: Callable[[str], None], *, by_us: bool
    ) -> bytes:
        """Return the content id if a member, or with `by_us` this node, gives the file; else b"".

        Reads the file once, if anybody may give it. Raises MeshdError.
        """
        if by_us and self._gives():
            return await self.content_of(file, on_progress)
        size = sum(FileState.of(descriptor).size for descriptor in file.descriptors)
        offered = [
            offer.model
            for member in await ask_members(self._mesh, seconds=_SHARED_SECONDS)
            for offer in member.offers
            if (offer.model.size, offer.model.files) == (size, len(file.descriptors))
        ]
        if not offered:
            return b""
        content = await self.content_of(file, on_progress)
        return content if any(_may_have(model, content) for model in offered) else b""

    async def content_of(self, file: WeightsFile, on_progress: Callable[[str], None]) -> bytes:
        """Return the content id of our file, reading the file once. Raises MeshdError."""
        states = [FileState.of(descriptor) for descriptor in file.descriptors]
        index = await in_thread(self._pieces.load, states)
        if index is None:

            def on_read(progress: HashProgress) -> None:
                on_progress(f"reading `{file.name}` to compare it: {100 * progress.done // progress.total} %")

            labels = [path.name for path in file.paths]
            index = await self._pieces.read(file.descriptors, labels, on_read)
        return index.content

    async def fetch(self, needs: Needs, keep: LeaseCache, on_progress: Callable[[str], None]) -> FromMembers:
        """Fetch the needed tensors from all members that have the file."""
        return await _WeightsFetch(self._mesh, needs, keep, on_progress).run()


class _WeightsFetch:
    """The fetch of the weights of one load."""

    def __init__(
        self,
        mesh: Mesh,
        needs: Needs,
        keep: LeaseCache,
        on_progress: Callable[[str], None],
    ) -> None:
        self._mesh = mesh
        self._needs = needs
        self._keep = keep
        self._on_progress = on_progress
        self._asked = asyncio.Semaphore(MODEL_HOLDERS.most)
        self._index: PieceIndex | None = None
        self._wanted: dict[int, list[NeededTensor]] = {}  # by the number of the piece
        self._missed = {
            tensor.digest: Missed(tensor.digest, tensor.kind, tensor.size) for tensor in needs.tensors
        }
        self._come = dict.fromkeys(self._missed, 0)  # received bytes of each tensor
        self._holders = {peer.peer: Holder(peer.name or peer.peer.short) for peer in askable(mesh)}

    async def run(self) -> FromMembers:
        """Fetch until all is there, or no member gives more."""
        why = ""
        try:
            async with Fetch(self._mesh, self._holders, self._ask) as fetch:
                while fetch.unanswered and not fetch.indexes:
                    await fetch.news()
                why = await self._take(fetch)
        except UserError as error:  # of this machine's disk
            why = f"this node: {error.what}"
        return FromMembers(self._given, why)

    async def _ask(self, peer: PeerId) -> PieceIndex | None:
        """Return the pieces of the head's file, if this member has it. The first answer counts for all."""
        async with asyncio.timeout(LIST_SECONDS):
            models = (await ask_models(self._mesh, peer)).models
        needs, node = self._needs, self._holders[peer].node
        fitting = [model for model in models if (model.size, model.files) == (needs.size, needs.files)]
        for model in sorted(fitting, key=lambda told_model: told_model.content != needs.content):
            if not _may_have(model, needs.content):
                continue
            if self._index is not None and model.content == needs.content:
                return self._index
            async with self._asked:
                index = await ask_pieces(self._mesh, MemberOffer(peer, node, model), lambda _text: None)
            if index.content == needs.content:
                self._index = index
                return index
        return None

    async def _take(self, fetch: Fetch) -> str:
        """Fetch the chosen pieces. Return why some are missing; empty if none are."""
        if self._index is not None:
            fetch.choose(self._index)
            plan = self._plan(self._index)
            total = plan.wanted_bytes

            def on_bytes() -> None:
                names = ", ".join(sorted(self._given))
                self._on_progress(f"fetches {in_bytes(plan.done_bytes)} of {in_bytes(total)} from {names}")

            await fetch.take(plan, self._write, on_bytes)
            if plan.is_done:
                return ""
        problems = [f"{holder.node}: {holder.problem}" for holder in self._holders.values() if holder.problem]
        return "; ".join(problems) or "no member gives more"

    @property
    def _given(self) -> dict[str, int]:
        """The received bytes, by member name."""
        given: dict[str, int] = {}
        for holder in self._holders.values():
            if holder.bytes:
                given[holder.node] = given.get(holder.node, 0) + holder.bytes
        return given

    def _plan(self, index: PieceIndex) -> PiecePlan:
        """Choose the pieces that contain needed tensors, as far as they bring little else."""
        most = sum(tensor.size for tensor in self._needs.tensors) + _SPARE_PIECES * PIECE_BYTES
        for tensor in sorted(self._needs.tensors, key=lambda needed: (needed.file, needed.offset)):
            numbers = index.numbers(tensor.file, tensor.offset, tensor.size)
            new = sum(number not in self._wanted for number in numbers)
            if numbers and (len(self._wanted) + new) * PIECE_BYTES <= most:
                for number in numbers:
                    self._wanted.setdefault(number, []).append(tensor)
        return PiecePlan(index, wanted=self._wanted)

    async def _write(self, number: int, data: bytes) -> None:
        """Keep the wanted bytes of a piece. Raises UserError if this machine cannot."""
        assert self._index is not None
        piece = self._index.piece(number)
        for tensor in self._wanted[number]:
            begin = max(tensor.offset, piece.offset)
            end = min(tensor.offset + tensor.size, piece.offset + piece.length)
            self._come[tensor.digest] += end - begin
            last = self._come[tensor.digest] == tensor.size
            wanted = data[begin - piece.offset : end - piece.offset]
            await self._keep.fetched(self._missed[tensor.digest], begin - tensor.offset, wanted, last=last)


def _may_have(model: ToldModel, content: bytes) -> bool:
    """Say whether the model may have that content: a member that has not read its file does not know."""
    return model.content in (b"", content)
