"""Weights for the load of a worker, from all members that have the head's file: the pieces in which they lie.

Who has the file is found by its content id, which proves the hashes of its pieces; each piece is checked
before a tensor gets a byte of it, and each tensor by its own hash before it is kept (store/pack.py). What a
head asks for is bounded by the memory that it has reserved: pieces with little that is wanted are left out.
"""

import asyncio
import functools
from collections.abc import Callable

from meshd.base import log
from meshd.base.byte_format import in_bytes
from meshd.base.errors import MeshdError, UserError
from meshd.base.peer_limits import MODEL_HOLDERS
from meshd.base.tasks import Owner, first_error, in_thread
from meshd.base.token_bucket import TokenBucket
from meshd.identity.keys import PeerId
from meshd.library.members.ask_models import LIST_SECONDS, ask_models, ask_pieces, askable
from meshd.library.members.fetch_pieces import PieceFetcher
from meshd.library.members.offers import MemberOffer
from meshd.library.members.piece_plan import PiecePlan
from meshd.model.piece_index import PIECE_BYTES, PieceIndex
from meshd.peer.interface import Mesh, PeerStatus
from meshd.role.interface import FromMembers
from meshd.rpc.mesh_keeping import Missed
from meshd.store.hash_cache import FileState
from meshd.store.interface import HashProgress, LeaseCache, WeightsFile
from meshd.store.piece_cache import PieceCache
from meshd.wire.models import ToldModel
from meshd.wire.needs import NeededTensor, Needs

_SHARED_SECONDS = 3.0  # for members to say what they have: a load waits for it
_SPARE_PIECES = 16  # beside the wanted bytes: tensors begin and end within pieces
LOG = log.get("library")


class MemberWeights:
    """Implements role.interface.WeightsFromMembers."""

    def __init__(
        self,
        mesh: Mesh,
        pieces: PieceCache,
        *,
        rate: int | None = None,
        gives: Callable[[], bool] = lambda: False,
    ) -> None:
        """`rate` in bytes a second, for each load. `gives`: this node gives pieces of its own file now."""
        self._mesh = mesh
        self._pieces = pieces
        self._rate = rate
        self._gives = gives

    async def given_content(
        self, file: WeightsFile, on_progress: Callable[[str], None], *, by_us: bool
    ) -> bytes:
        """See WeightsFromMembers. Reads the file once, if anybody may give it."""
        if by_us and self._gives():
            return await self.content_of(file, on_progress)
        states = [FileState.of(descriptor) for descriptor in file.descriptors]
        size = sum(state.size for state in states)
        told = await self._told(size, len(states))
        if not told:
            return b""
        content = await self.content_of(file, on_progress)
        return content if any(_may_have(one, content) for one in told) else b""

    async def content_of(self, file: WeightsFile, on_progress: Callable[[str], None]) -> bytes:
        """See WeightsFromMembers."""
        states = [FileState.of(descriptor) for descriptor in file.descriptors]
        index = await in_thread(functools.partial(self._pieces.load, states))
        if index is None:

            def on_read(progress: HashProgress) -> None:
                on_progress(f"reading `{file.name}` to compare it: {100 * progress.done // progress.total} %")

            labels = [path.name for path in file.paths]
            index = await self._pieces.read(file.descriptors, labels, on_read)
        return index.content

    async def _told(self, size: int, files: int) -> list[ToldModel]:
        """Models of that size that others have, as far as they answer soon."""
        found: list[ToldModel] = []

        async def ask(peer: PeerStatus) -> None:
            try:
                async with asyncio.timeout(_SHARED_SECONDS):
                    told = (await ask_models(self._mesh, peer.peer)).models
            except (MeshdError, TimeoutError):
                return
            found.extend(one for one in told if (one.size, one.files) == (size, files))

        try:
            async with Owner() as owner:
                for peer in askable(self._mesh):
                    owner.start_for(peer.peer.short, ask(peer), name="models")
        except ExceptionGroup as group:
            raise first_error(group) from None
        return found

    async def fetch(self, needs: Needs, keep: LeaseCache, on_progress: Callable[[str], None]) -> FromMembers:
        """See WeightsFromMembers."""
        return await _Fetch(self._mesh, needs, keep, on_progress, self._rate).run()


class _Fetch:
    """One of them."""

    def __init__(
        self,
        mesh: Mesh,
        needs: Needs,
        keep: LeaseCache,
        on_progress: Callable[[str], None],
        rate: int | None,
    ) -> None:
        self._mesh = mesh
        self._needs = needs
        self._keep = keep
        self._on_progress = on_progress
        self._rate = rate
        self._places = asyncio.Semaphore(MODEL_HOLDERS.most)
        self._index: PieceIndex | None = None
        self._wanted: dict[int, list[NeededTensor]] = {}  # by number of the piece
        self._fetcher: PieceFetcher | None = None
        self._plan: PiecePlan | None = None
        self._missed = {one.digest: Missed(one.digest, one.kind, one.size) for one in needs.tensors}
        self._come = dict.fromkeys(self._missed, 0)  # bytes of each tensor
        self._done = self._total = 0
        self._names: dict[PeerId, str] = {}
        self._given: dict[str, int] = {}
        self._problems: dict[str, str] = {}
        self._ended = asyncio.Event()  # nothing more is wanted

    async def run(self) -> FromMembers:
        """Until all is there, or nobody gives more."""
        try:
            async with Owner() as owner:
                ended = owner.start(self._ended.wait(), name="weights fetched")
                holders = [
                    owner.start_for(peer.peer.short, self._hold(peer), name="weights holder")
                    for peer in askable(self._mesh)
                ]
                left = set(holders)
                while left and not ended.done():
                    done, _ = await asyncio.wait({*left, ended}, return_when=asyncio.FIRST_COMPLETED)
                    left -= done
                owner.cancel()
        except ExceptionGroup as group:
            raise first_error(group) from None
        return FromMembers(self._given, self._why())

    def _why(self) -> str:
        if self._plan is not None and self._plan.is_done:
            return ""
        return "; ".join(f"{node}: {why}" for node, why in self._problems.items()) or "no member gives more"

    async def _hold(self, peer: PeerStatus) -> None:
        """One member, as long as it gives."""
        name = peer.name or peer.peer.short
        try:
            async with asyncio.timeout(LIST_SECONDS):
                told = (await ask_models(self._mesh, peer.peer)).models
            needs = self._needs
            fitting = [one for one in told if (one.size, one.files) == (needs.size, needs.files)]
            for model in sorted(fitting, key=lambda one: one.content != needs.content):
                if not _may_have(model, needs.content):
                    continue
                async with self._places:
                    if await self._is_index_of(MemberOffer(peer.peer, name, model)):
                        await self._give(peer, name)
                        return
        except TimeoutError:
            self._problems[name] = "it does not answer"
        except MeshdError as error:
            self._problems[name] = error.what
            LOG.warning("holder_lost", peer=peer.peer.short, why=error.what)

    async def _is_index_of(self, offer: MemberOffer) -> bool:
        """Whether the member has these files; the first index that is theirs is used for all."""
        if self._index is not None and offer.model.content == self._needs.content:
            return True
        index = await ask_pieces(self._mesh, offer, lambda _text: None)
        if index.content != self._needs.content:
            return False
        if self._index is None:
            self._begin(index)
        return True

    def _begin(self, index: PieceIndex) -> None:
        self._index = index
        most = sum(one.size for one in self._needs.tensors) + _SPARE_PIECES * PIECE_BYTES
        for one in sorted(self._needs.tensors, key=lambda one: (one.file, one.offset)):
            numbers = index.numbers(one.file, one.offset, one.size)
            new = sum(number not in self._wanted for number in numbers)
            if numbers and (len(self._wanted) + new) * PIECE_BYTES <= most:
                for number in numbers:
                    self._wanted.setdefault(number, []).append(one)
        self._total = sum(index.piece(number).length for number in self._wanted)
        self._plan = PiecePlan(index, set(range(index.count)) - self._wanted.keys())
        now = asyncio.get_running_loop().time()
        pace = TokenBucket(rate=self._rate, burst=PIECE_BYTES, now=now) if self._rate else None
        self._fetcher = PieceFetcher(
            self._mesh, index, self._plan, self._write, pace=pace, on_bytes=self._count
        )

    async def _give(self, peer: PeerStatus, name: str) -> None:
        assert self._fetcher is not None
        self._names[peer.peer] = name
        await self._fetcher.fetch(peer.peer)
        self._ended.set()

    def _count(self, peer: PeerId, count: int) -> None:
        name = self._names[peer]
        self._given[name] = self._given.get(name, 0) + count
        self._done += count
        names = ", ".join(sorted(self._given))
        self._on_progress(f"fetches {in_bytes(self._done)} of {in_bytes(self._total)} from {names}")

    async def _write(self, number: int, data: bytes) -> None:
        """A right piece: what is wanted of it."""
        assert self._index is not None
        piece = self._index.piece(number)
        for one in self._wanted[number]:
            begin = max(one.offset, piece.offset)
            end = min(one.offset + one.size, piece.offset + piece.length)
            self._come[one.digest] += end - begin
            last = self._come[one.digest] == one.size
            wanted = data[begin - piece.offset : end - piece.offset]
            try:
                await self._keep.fetched(self._missed[one.digest], begin - one.offset, wanted, last=last)
            except UserError as error:  # of our own disk
                self._problems["this node"] = error.what
                self._ended.set()
                raise


def _may_have(model: ToldModel, content: bytes) -> bool:
    """A member that has not read its file yet does not know its content."""
    return model.content in (b"", content)
