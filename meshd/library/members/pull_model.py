"""Takes one model from all members that have it: fetched piece by piece, checked, and put in its place."""

import asyncio
import functools
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

from meshd.base import log
from meshd.base.errors import MeshdError, UserError
from meshd.base.peer_limits import MODEL_HOLDERS
from meshd.base.tasks import Owner, cancel_and_wait, first_error, in_thread
from meshd.base.token_bucket import TokenBucket
from meshd.identity.keys import PeerId
from meshd.library.members.ask_models import ask_members, ask_pieces
from meshd.library.members.fetch_pieces import PieceFetcher
from meshd.library.members.offers import MemberOffer, ambiguous, fitting_offers
from meshd.library.members.part_files import PartFiles
from meshd.library.members.piece_plan import PiecePlan
from meshd.library.members.pull_state import (
    Holder,
    HoldersLost,
    PullPlace,
    PullState,
    PullStep,
    UnusableContent,
    nobody_has,
)
from meshd.library.members.same_model import may_be_elsewhere, same_model
from meshd.library.pulled_names import add_name, is_of_members, names_of, note_names
from meshd.model.gguf_names import file_names
from meshd.model.model_name import MeshName, ModelName
from meshd.model.piece_index import PIECE_BYTES, PieceIndex
from meshd.peer.interface import Mesh
from meshd.store.interface import HashProgress
from meshd.store.model_file import ModelFile

_LOOKED_AT = 64  # pieces in one step
_OTHER_FILE = "it has another file of that name"
_JOIN_SECONDS = 10.0  # how long members that must read their file first are waited for
HolderTasks = Sequence[asyncio.Task[None]]
LOG = log.get("library")


class ModelPull:
    """One pull of `name`; `run` it once. `rate` in bytes a second."""

    _by_content: ClassVar[bool] = True  # a content id proves what comes, as a fingerprint does

    def __init__(self, mesh: Mesh, name: ModelName, place: PullPlace, *, rate: float | None = None) -> None:
        self._mesh = mesh
        self._name = name
        self._digits = name.fingerprint if isinstance(name, MeshName) else ""
        self._place = place
        self._rate = rate
        self._excluded: set[PeerId] = set()
        self._offers: Sequence[MemberOffer] = ()
        self._indexes: dict[PeerId, PieceIndex] = {}
        self._answered: set[PeerId] = set()  # with an index, or why there is none
        self._index: PieceIndex | None = None  # the chosen one
        self._chosen: asyncio.Future[PieceFetcher] | None = None
        self._failure: UserError | None = None
        self.state = PullState()

    async def run(self) -> None:
        """Raises UserError and other MeshdErrors; what was fetched stays for the next time."""
        failed: UserError | None = None
        while True:
            offers = await self._find(failed)
            try:
                if await self._is_here(offers) or await self._pull(offers):
                    self.state.step = PullStep.DONE
                    return
            except ExceptionGroup as group:
                error = first_error(group)
                at_fault = self._at_fault(error)
                if not isinstance(error, UserError) or not at_fault:
                    raise error from None
                self._excluded |= at_fault
                if failed is None or isinstance(failed, HoldersLost | UnusableContent):
                    failed = error  # what is wrong here says more than what members lack

    def _at_fault(self, error: BaseException) -> set[PeerId]:
        """The members without which it may work, as others have the model, too; empty where it would not.

        Of a model that was named by digits, each of those that say they have it may lie. By any other name
        they all were thought to have the same.
        """
        holders = self.state.holders
        if isinstance(error, HoldersLost):
            lost = {peer for peer, one in holders.items() if one.problem not in ("", _OTHER_FILE)}
            return lost if self._digits and lost else set(holders)
        if self._index is None or not self._digits:
            return set()
        if isinstance(error, UnusableContent):
            return self._group(self._index)
        return {one.peer for one in self._offers if one.model.size >= self._index.size}  # no room, say

    def _group(self, index: PieceIndex) -> set[PeerId]:
        return {peer for peer, other in self._indexes.items() if other == index}

    async def _find(self, failed: UserError | None) -> list[MemberOffer]:
        self.state.step = PullStep.ASKING
        told = await ask_members(self._mesh)
        offers = [offer for one in told for offer in one.offers if offer.peer not in self._excluded]
        found = fitting_offers(self._name, offers, by_content=self._by_content)
        if not found and failed is not None:
            raise failed.afresh()
        if not found:
            lied = len(self._excluded)
            raise nobody_has(self._name, told, lied=lied, by_content=self._by_content)
        one_each = list({offer.peer: offer for offer in found}.values())[: MODEL_HOLDERS.most]
        self.state.name = one_each[0].stem
        self.state.total = one_each[0].model.size
        self.state.holders = {offer.peer: Holder(offer.node) for offer in one_each}
        return one_each

    async def _is_here(self, offers: Sequence[MemberOffer]) -> bool:
        """Whether this machine has the same, wherever: then that is used, and nothing fetched."""
        if not may_be_elsewhere(self._name):
            return False
        told, place = [offer.model for offer in offers], self._place
        found = await in_thread(
            lambda: same_model(
                told, place.own(), place.pieces, is_wished=self._is_wished, all_agree=not self._digits
            )
        )
        if found is None:
            return False
        state, stored = self.state, found.stored
        if is_of_members(stored):
            await in_thread(functools.partial(add_name, self._name, stored.paths))
        state.name, state.paths, state.fingerprint = stored.stem, stored.paths, found.fingerprint
        state.total = state.done = state.before = stored.size
        state.holders, state.was_here = {}, True
        return True

    async def _pull(self, offers: Sequence[MemberOffer]) -> bool:
        """False when what came is not what these members said: others are asked then."""
        self._offers, self._indexes, self._answered = offers, {}, set()
        self._index = self._failure = None
        self._chosen = asyncio.get_running_loop().create_future()
        async with Owner() as owner:
            known = asyncio.Event()
            holders = [
                owner.start_for(offer.peer.short, self._hold(offer, known), name="model holder")
                for offer in offers
            ]
            try:
                self._index = index = await self._choose(offers, known)
                offer = next(one for one in offers if self._indexes.get(one.peer) == index)
                self.state.name = offer.stem
                return await self._fetch(index, offer, holders)
            finally:
                self._chosen.cancel()
                owner.cancel()

    async def _hold(self, offer: MemberOffer, known: asyncio.Event) -> None:
        """One member: its index, then pieces as long as it has the chosen content."""
        assert self._chosen is not None
        holder = self.state.holders[offer.peer]

        def on_progress(text: str) -> None:
            self.state.activity = f"{offer.node}: {text}"

        try:
            index = await ask_pieces(self._mesh, offer, on_progress)
            index = next((same for same in self._indexes.values() if same == index), index)  # one in memory
            self._indexes[offer.peer] = index
            self._answered.add(offer.peer)
            known.set()
            fetcher = await asyncio.shield(self._chosen)
            if index.content != fetcher.content:
                holder.problem = _OTHER_FILE
                return
            await fetcher.fetch(offer.peer)
        except TimeoutError:
            holder.problem = "it does not answer"
        except MeshdError as error:
            holder.problem = error.what
            LOG.warning("holder_lost", peer=offer.peer.short, why=error.what)
            if isinstance(error, UserError):  # of our own disk
                self._failure = error
        finally:
            self._answered.add(offer.peer)
            known.set()

    async def _choose(self, offers: Sequence[MemberOffer], known: asyncio.Event) -> PieceIndex:
        """The content to fetch, once members know theirs: all, or those that do within ten seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_JOIN_SECONDS):
                await self._all_known(offers, known)
        while not self._indexes:
            if len(self._answered) == len(offers):
                raise self._lost()
            known.clear()
            await known.wait()
        contents = [index.content for index in self._indexes.values()]
        if len(set(contents)) > 1 and not self._digits:
            kinds = {self._indexes[one.peer].content: one for one in offers if one.peer in self._indexes}
            raise ambiguous(str(self._name), list(kinds.values()))
        most = max(contents, key=contents.count)
        return next(index for index in self._indexes.values() if index.content == most)

    async def _all_known(self, offers: Sequence[MemberOffer], known: asyncio.Event) -> None:
        while len(self._answered) < len(offers):
            known.clear()
            await known.wait()

    async def _fetch(self, index: PieceIndex, offer: MemberOffer, holders: HolderTasks) -> bool:
        files = PartFiles(self._place.folder, index, file_names(offer.stem, offer.model.files))
        try:
            plan = await self._look(files, index)
            await in_thread(functools.partial(files.check_space, index.size - plan.done_bytes))
            await self._fetch_all(files, index, plan, holders)
            return await self._finish(files, index)
        finally:
            try:
                await cancel_and_wait(*holders)  # they write to these files
            finally:
                files.close()

    async def _look(self, files: PartFiles, index: PieceIndex) -> PiecePlan:
        plan = PiecePlan(index, await self._present(files, index))
        self.state.done = self.state.before = plan.done_bytes
        return plan

    async def _present(self, files: PartFiles, index: PieceIndex) -> set[int]:
        """Opens the files."""
        state = self.state
        state.step, state.total = PullStep.LOOKING, index.size
        await in_thread(files.open)
        present: set[int] = set()
        for first in range(0, index.count, _LOOKED_AT):  # in steps, so that a cancel is heard
            numbers = range(first, min(index.count, first + _LOOKED_AT))
            present |= await in_thread(functools.partial(files.present, numbers))
            state.done = min(index.size, numbers.stop * PIECE_BYTES)
        return present

    async def _fetch_all(
        self, files: PartFiles, index: PieceIndex, plan: PiecePlan, holders: HolderTasks
    ) -> None:
        assert self._chosen is not None
        self._chosen.set_result(self._fetcher(files, index, plan))
        while not plan.is_done:
            if self._failure is not None:
                raise self._failure
            left = [task for task in holders if not task.done()]
            if not left:
                raise self._lost()
            await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)

    def _fetcher(self, files: PartFiles, index: PieceIndex, plan: PiecePlan) -> PieceFetcher:
        state, state.step = self.state, PullStep.FETCHING
        began = asyncio.get_running_loop().time()

        def on_bytes(peer: PeerId, count: int) -> None:
            state.holders[peer].bytes += count
            state.done = plan.done_bytes
            seconds = asyncio.get_running_loop().time() - began
            state.rate = (state.done - state.before) / max(seconds, 0.001)

        async def write(number: int, data: bytes) -> None:
            await in_thread(functools.partial(files.write, number, data))

        pace = None
        if self._rate is not None:
            pace = TokenBucket(rate=self._rate, burst=PIECE_BYTES, now=began)
        return PieceFetcher(self._mesh, index, plan, write, pace=pace, on_bytes=on_bytes)

    async def _finish(self, files: PartFiles, index: PieceIndex) -> bool:
        """Compare all with what these members said of it, and give it its place."""
        state, state.step = self.state, PullStep.CHECKING
        await in_thread(files.flush)
        try:
            found = await self._fingerprint(files)
        except UserError as error:
            found, problem = "", error.what
        else:
            problem = "its fingerprint is another one than was said"
        liars = self._liars(found, index)
        for peer in liars:
            self._excluded.add(peer)
            LOG.warning("holder_lied", peer=peer.short, why=problem)
        if liars == self._group(index):
            await in_thread(files.discard)
            return False
        await in_thread(functools.partial(self._note_name, files))
        states = await in_thread(files.finish)
        await in_thread(functools.partial(self._place.pieces.save, states, index))
        state.paths, state.fingerprint = files.final_paths, found
        return True

    def _note_name(self, files: PartFiles) -> None:
        """By which it will be found. One of Hugging Face's is compared first, by the verb that asked."""
        own = [self._name] if may_be_elsewhere(self._name) else []
        note_names(files.part_paths[0].parent, [*names_of(files.final_paths), *own])

    async def _fingerprint(self, files: PartFiles) -> str:
        """Raises UserError for what is no model."""

        def on_progress(progress: HashProgress) -> None:
            self.state.activity = progress.text

        clock = self._place.hashes.clock_ns()
        if clock is not None:  # or the hashes would not be kept, and all of it would be read again
            await asyncio.sleep(max(state.seconds_to_settle(clock) for state in files.states))
        model = await ModelFile.open(files.part_paths[0], cache=self._place.hashes)
        try:
            return (await model.index(on_progress)).fingerprint
        finally:
            model.close()

    def _liars(self, found: str, index: PieceIndex) -> set[PeerId]:
        """Of the members that have this content: those that said it was another model."""
        group = self._group(index)
        if not found or not self._is_wished(found, index.content.hex()):
            return group
        told = {one.peer: one.model.fingerprint.hex() for one in self._offers}
        return {peer for peer in group if told[peer] not in ("", found)}

    def _is_wished(self, fingerprint: str, content: str) -> bool:
        """Whether it begins with the digits that the model was named by; members may say what they like."""
        proven = (fingerprint, content) if self._by_content else (fingerprint,)
        return any(one.startswith(self._digits) for one in proven)

    def _lost(self) -> HoldersLost:
        """Every holder has ended."""
        why = "; ".join(f"{one.node}: {one.problem}" for one in self.state.holders.values() if one.problem)
        return HoldersLost(
            f"no member gives `{self._name}` any more ({why})",
            hint="run it again later: what is there is not fetched again",
        )
