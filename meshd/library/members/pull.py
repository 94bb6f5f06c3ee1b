"""Pull a model from all members that have it: fetched piece by piece, checked, and put in its place.

A head without layers pulls only the header, and tensors outside the layers. Their pieces are fetched and
checked like those of a whole model. The hashes of all tensors are one member's claim: with the header they
must yield the fingerprint in the model's name, or the one that members report. These hashes alone determine
which weights are computed with, so nobody can substitute others unnoticed. The received tensors are compared
with them; workers compare the layers that they have.

A plan pulls only the headers, and nothing is computed with them: a wrong header makes a wrong plan.
"""

import asyncio
import functools
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

from meshd.base import log
from meshd.base.errors import MeshdError, UserError
from meshd.base.peer_limits import MODEL_HOLDERS
from meshd.base.tasks import in_thread
from meshd.identity.keys import PeerId
from meshd.library.facts import facts_of, read_beginning
from meshd.library.interface import StoredModel
from meshd.library.members.fetch import OTHER_FILE, Fetch, Holder, PiecePlan
from meshd.library.members.offers import (
    MemberModels,
    MemberOffer,
    ambiguous,
    ask_members,
    ask_pieces,
    ask_tensors,
    fitting_offers,
)
from meshd.library.members.part_files import PLAN_KIND, PartFiles, PulledAlready, is_locked
from meshd.library.pulled_models import HEADER_KIND, add_name, is_of_members, names_of, note_names
from meshd.model.gguf import MAX_HEADER_BYTES, Header
from meshd.model.gguf_names import HEADER_SUFFIX, file_names
from meshd.model.model_name import MeshName, ModelName
from meshd.model.short_names import hub_name_of
from meshd.model.weights_index import PIECE_BYTES, PieceIndex, fingerprint
from meshd.peer.interface import Mesh
from meshd.store.hash_cache import FileState, HashCache, PieceCache
from meshd.store.header_file import HeaderNote, compare_present, digests_of, present_tensors, write_note
from meshd.store.interface import HashProgress
from meshd.store.model_file import ModelFile, check_headers, close_all, opened
from meshd.wire.models import ToldModel

_LOOKED_AT = 64  # pieces hashed in one step
_LOOK_SECONDS = 0.5  # between two looks at whether another pull has ended
_JOIN_SECONDS = 10.0  # how long to wait for members that must read their file first
_MOST_PIECES = MAX_HEADER_BYTES // PIECE_BYTES + 1  # pieces of a header
_READY_SECONDS = 30.0  # for a member that knows the hashes, while others may know them
_MOST_READY_SECONDS = 4 * 3600.0  # to read the largest file
_LIED = "the hashes that it tells are not those of the model's fingerprint"
LOG = log.get("library")


@dataclass(frozen=True, slots=True)
class PullPlace:
    """The place of pulled models, and their hashes. `own`: the models of this machine; it blocks."""

    folder: Path
    hashes: HashCache
    pieces: PieceCache
    own: Callable[[], Iterable[StoredModel]] = tuple


class PullStep(StrEnum):
    """The step of a pull; the words are part of `meshd model pull --json`."""

    ASKING = "asking"
    LOOKING = "looking"  # for pieces from an earlier pull
    FETCHING = "fetching"
    CHECKING = "checking"  # the tensors of the whole file
    DONE = "done"
    FAILED = "failed"


@dataclass(slots=True)
class PullState:
    """The visible state of a running pull. `before`: bytes that were there when it began."""

    step: PullStep = PullStep.ASKING
    name: str = ""
    done: int = 0
    total: int = 0
    before: int = 0
    rate: float = 0.0
    holders: dict[PeerId, Holder] = field(default_factory=dict)
    paths: tuple[Path, ...] = ()
    fingerprint: str = ""
    activity: str = ""
    was_here: bool = False  # `paths` are a model of this machine, and nothing was fetched
    source: str = "members"  # or `download`
    note: str = ""  # what the user should know of it besides


class NobodyHasIt(UserError):
    """Raised if no member has the model."""


class HoldersLost(UserError):
    """Raised if the members that had the model give no more."""


class UnusableContent(UserError):
    """Raised if the holders' content is unusable; others may have it right."""


def nobody_has(
    name: ModelName, replies: Sequence[MemberModels], *, lied: int, by_content: bool
) -> NobodyHasIt:
    """Return the error with the members that were asked; `lied`: members that had something else.

    `by_content`: the name may have been a content id.
    """
    asked = ", ".join(reply.node + (f" ({reply.why_not})" if reply.why_not else "") for reply in replies)
    what = f"no member of the mesh has `{name}`" + (f"; asked: {asked}" if asked else ": none is connected")
    if lied:
        what = f"what members gave as `{name}` was something else"
    hint = "list what there is: `meshd model ls`"
    if not by_content and isinstance(name, MeshName) and name.fingerprint:
        hint += "; with `--header-only`, name a model by its fingerprint, not by its content id"
    return NobodyHasIt(what, hint=hint)


def may_be_elsewhere(name: ModelName) -> bool:
    """Say whether any copy will do: not if Hugging Face's hash of the whole file counts."""
    return hub_name_of(str(name)) is None


def same_model(
    reported: Sequence[ToldModel],
    own: Iterable[StoredModel],
    pieces: PieceCache,
    *,
    is_wished: Callable[[str, str], bool],
    all_agree: bool,
) -> tuple[StoredModel, str] | None:
    """Return the first of `own` that has a reported fingerprint or content id, as far as known.

    The fingerprint comes with it, in hex, empty if the model was found by its content id.

    No file is hashed for this, only headers are read: run it in a thread. `is_wished` gets both ids in hex,
    and says whether they fit the request. `all_agree`: all reports must match, or one member alone could
    substitute another model of this machine for what the others have.
    """
    sizes = {model.size for model in reported if model.content}
    # The content id, if it is known.
    for stored in own:
        content = b""
        if stored.size in sizes:
            with suppress(OSError):
                index = pieces.load([FileState.at(path) for path in stored.paths])
                content = index.content if index is not None else b""
        # The fingerprint, if it is known.
        facts = facts_of(stored, pieces.hashes.folder)
        if facts.problem:
            continue
        found = facts.fingerprint or ""
        same = [
            found == model.fingerprint.hex() != ""
            or (stored.size, content) == (model.size, model.content or None)
            for model in reported
        ]
        if (all(same) if all_agree else any(same)) and is_wished(found, content.hex()):
            return stored, found
    return None


class ModelPull:
    """Pull the model `name`: `run` it once. `rate` in bytes per second."""

    _by_content: ClassVar[bool] = True  # a content id proves the received bytes, as a fingerprint does

    def __init__(self, mesh: Mesh, name: ModelName, place: PullPlace, *, rate: float | None = None) -> None:
        self._mesh = mesh
        self._name = name
        self._digits = name.fingerprint if isinstance(name, MeshName) else ""
        self._place = place
        self._rate = rate
        self._excluded: set[PeerId] = set()
        self._offers: Sequence[MemberOffer] = ()
        self.state = PullState()

    async def run(self) -> None:
        """Pull the model, from other members if the first choice fails.

        Raises UserError and other MeshdErrors; fetched bytes stay for the next time.
        """
        failed: UserError | None = None
        while True:
            self._offers = await self._find(failed)
            if await self._is_here():
                break
            fetch = Fetch(self._mesh, self.state.holders, self._ask, rate=self._rate)
            try:
                async with fetch:
                    if await self._pull(fetch):
                        break
            except PulledAlready as error:
                await self._until_free(error)
            except UserError as error:
                at_fault = self._at_fault(error, fetch)
                if not at_fault:
                    raise
                self._excluded |= at_fault
                if failed is None or isinstance(failed, HoldersLost | UnusableContent):
                    failed = error  # a fault here says more than the members' lack
        self.state.step = PullStep.DONE

    async def _until_free(self, taken: PulledAlready) -> None:
        """Wait for another pull of the same content, of whatever name: what it leaves is used then."""
        self.state.step, self.state.activity = PullStep.ASKING, f"waiting for another pull: {taken.what}"
        look = functools.partial(is_locked, taken.lock)
        with suppress(OSError):  # told again by who opens it
            while await in_thread(look):  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(_LOOK_SECONDS)
        self.state.activity = ""

    def _at_fault(self, error: UserError, fetch: Fetch) -> set[PeerId]:
        """Return the members to exclude, so that the others may succeed; empty if that cannot help.

        If the model was named by digits, each member that claims to have it may lie. With any other name all
        were believed to have the same.
        """
        holders = self.state.holders
        if isinstance(error, HoldersLost):
            lost = {peer for peer, holder in holders.items() if holder.problem not in ("", OTHER_FILE)}
            return lost if self._digits and lost else set(holders)
        if fetch.chosen is None or not self._digits:
            return set()
        if isinstance(error, UnusableContent):
            return fetch.group
        # This machine lacks space, for example: then a smaller file may fit.
        return {offer.peer for offer in self._offers if offer.model.size >= fetch.chosen.size}

    async def _find(self, failed: UserError | None) -> list[MemberOffer]:
        self.state.step = PullStep.ASKING
        replies = await ask_members(self._mesh)
        offers = [offer for reply in replies for offer in reply.offers if offer.peer not in self._excluded]
        found = fitting_offers(self._name, offers, by_content=self._by_content)
        if not found and failed is not None:
            raise failed.afresh()
        if not found:
            lied = len(self._excluded)
            raise nobody_has(self._name, replies, lied=lied, by_content=self._by_content)
        one_each = list({offer.peer: offer for offer in found}.values())[: MODEL_HOLDERS.most]
        self.state.name = one_each[0].stem
        self.state.total = one_each[0].model.size
        self.state.holders = {offer.peer: Holder(offer.node) for offer in one_each}
        return one_each

    async def _is_here(self) -> bool:
        """Say whether this machine has the same model anywhere; then use it, and fetch nothing."""
        if not may_be_elsewhere(self._name):
            return False
        reported, place = [offer.model for offer in self._offers], self._place
        found = await in_thread(
            lambda: same_model(
                reported, place.own(), place.pieces, is_wished=self._is_wished, all_agree=not self._digits
            )
        )
        if found is None:
            return False
        state, (stored, fingerprint_here) = self.state, found
        if is_of_members(stored):
            await in_thread(add_name, self._name, stored.paths)
        state.name, state.paths, state.fingerprint = stored.stem, stored.paths, fingerprint_here
        state.total = state.done = state.before = stored.size
        state.holders, state.was_here = {}, True
        return True

    async def _ask(self, peer: PeerId) -> PieceIndex:
        """Return the pieces of a member's offer, once it has read its file."""
        offer = next(known for known in self._offers if known.peer == peer)

        def on_progress(text: str) -> None:
            self.state.activity = f"{offer.node}: {text}"

        return await ask_pieces(self._mesh, offer, on_progress)

    async def _pull(self, fetch: Fetch) -> bool:
        """Pull from these members; return False if their claims were wrong: then others are asked."""
        index = await self._choose(fetch)
        fetch.choose(index)
        offer = next(known for known in self._offers if known.peer in fetch.group)
        self.state.name = offer.stem
        return await self._fetch(fetch, index, offer)

    async def _choose(self, fetch: Fetch) -> PieceIndex:
        """Return the content to fetch, once members know theirs: all, or those that do within ten seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_JOIN_SECONDS):
                while fetch.unanswered:
                    await fetch.news()
        while not fetch.indexes:
            if not fetch.unanswered:
                raise self._lost()
            await fetch.news()
        contents = [index.content for index in fetch.indexes.values()]
        if len(set(contents)) > 1 and not self._digits:
            answered = [offer for offer in self._offers if offer.peer in fetch.indexes]
            kinds = {fetch.indexes[answer.peer].content: answer for answer in answered}
            raise ambiguous(str(self._name), list(kinds.values()))
        most = max(contents, key=contents.count)
        return next(index for index in fetch.indexes.values() if index.content == most)

    async def _fetch(self, fetch: Fetch, index: PieceIndex, offer: MemberOffer) -> bool:
        files = PartFiles(self._place.folder, index, file_names(offer.stem, offer.model.files))
        try:
            await self._open(files)
            await self._take(fetch, files, PiecePlan(index, files.there))
            return await self._finish(fetch, files)
        finally:
            files.close()

    async def _open(self, files: PartFiles) -> None:
        """Open the files, and find the pieces from earlier pulls."""
        state, index = self.state, files.index
        state.step, state.total = PullStep.LOOKING, index.size
        await in_thread(files.open)
        for first in range(0, index.count, _LOOKED_AT):  # in steps, so that a cancellation takes effect
            numbers = range(first, min(index.count, first + _LOOKED_AT))
            files.there |= await in_thread(files.present, numbers)
            state.done = min(index.size, numbers.stop * PIECE_BYTES)

    async def _take(self, fetch: Fetch, files: PartFiles, plan: PiecePlan) -> None:
        """Fetch the pieces that the plan lacks. Raises UserError if they do not fit on the disk."""
        state, state.step, state.total = self.state, PullStep.FETCHING, plan.wanted_bytes
        state.done = state.before = plan.done_bytes
        await in_thread(files.check_space, plan.wanted_bytes - plan.done_bytes)
        now = asyncio.get_running_loop().time
        began = now()

        def on_bytes() -> None:
            state.done = plan.done_bytes
            state.rate = (state.done - state.before) / max(now() - began, 0.001)

        async def write(number: int, data: bytes) -> None:
            await in_thread(files.write, number, data)

        await fetch.take(plan, write, on_bytes)
        if not plan.is_done:
            raise self._lost()

    async def _finish(self, fetch: Fetch, files: PartFiles) -> bool:
        """Compare the model with its holders' claims, and move it to its place; return False if all lied."""
        state, state.step = self.state, PullStep.CHECKING
        await in_thread(files.flush)
        try:
            found = await self._fingerprint(files)
        except UserError as error:
            found, problem = "", error.what
        else:
            problem = "its fingerprint is another one than was said"
        # Exclude liars.
        liars = self._liars(fetch, found, files.index)
        for peer in liars:
            self._excluded.add(peer)
            LOG.warning("holder_lied", peer=peer.short, why=problem)
        if liars == fetch.group:
            await in_thread(files.discard)
            return False
        # Give the model its place.
        await in_thread(self._note_name, files)
        states = await in_thread(files.finish)
        await in_thread(self._place.pieces.save, states, files.index)
        state.paths, state.fingerprint = files.final_paths, found
        return True

    def _note_name(self, files: PartFiles) -> None:
        """Note the names that find the model. The caller first compares a model of Hugging Face."""
        own = [self._name] if may_be_elsewhere(self._name) else []
        note_names(files.part_paths[0].parent, [*names_of(files.final_paths), *own])

    async def _fingerprint(self, files: PartFiles) -> str:
        """Hash all tensors. Raises UserError if the file is no model."""

        def on_progress(progress: HashProgress) -> None:
            self.state.activity = progress.text

        clock = self._place.hashes.clock_ns()
        if clock is not None:  # else the hashes would not be kept, and all bytes would be read again
            await asyncio.sleep(max(state.seconds_to_settle(clock) for state in files.states))
        model = await ModelFile.open(files.part_paths[0], cache=self._place.hashes)
        try:
            return (await model.index(on_progress)).fingerprint
        finally:
            model.close()

    def _liars(self, fetch: Fetch, found: str, index: PieceIndex) -> set[PeerId]:
        """Return the members with this content that claimed that it was another model."""
        group = fetch.group
        if not found or not self._is_wished(found, index.content.hex()):
            return group
        fingerprints = {offer.peer: offer.model.fingerprint.hex() for offer in self._offers}
        return {peer for peer in group if fingerprints[peer] not in ("", found)}

    def _is_wished(self, fingerprint: str, content: str) -> bool:
        """Say whether an id begins with the digits of the model's name; members' claims do not count."""
        proven = (fingerprint, content) if self._by_content else (fingerprint,)
        return any(digits.startswith(self._digits) for digits in proven)

    def _lost(self) -> HoldersLost:
        """Return the error for a pull whose holders have all ended."""
        why = "; ".join(
            f"{holder.node}: {holder.problem}" for holder in self.state.holders.values() if holder.problem
        )
        return HoldersLost(
            f"no member gives `{self._name}` any more ({why})",
            hint="run it again later: it continues where it stopped",
        )


class HeaderPull(ModelPull):
    """Pull the header of a model: `run` it once; `state` is as for the pull of a model."""

    _by_content = False  # a content id covers no hashes of layers: a liar could report others

    async def _fetch(self, fetch: Fetch, index: PieceIndex, offer: MemberOffer) -> bool:
        names = file_names(offer.stem, len(index.sizes), HEADER_SUFFIX)
        files = PartFiles(self._place.folder, index, names, kind=HEADER_KIND)
        try:
            await self._open(files)
            headers = await self._headers(fetch, files, names)
            teller, note = await self._hashes(fetch, index, headers)
            await self._take_these(fetch, files, _wanted(index, headers))
            return await self._keep(files, teller, note)
        finally:
            files.close()

    async def _headers(self, fetch: Fetch, files: PartFiles, names: Sequence[str]) -> list[Header]:
        """Return the headers of all files: all beginnings are fetched at once, from all holders."""
        beginnings = [files.index.numbers(file, 0, 1)[0] for file in range(len(names))]
        await self._take_these(fetch, files, beginnings)
        found = [await self._header(fetch, files, file, label=name) for file, name in enumerate(names)]
        try:
            check_headers(names, found)
        except UserError as error:
            raise UnusableContent(error.what, hint=error.hint) from None
        return found

    async def _header(self, fetch: Fetch, files: PartFiles, file: int, *, label: str) -> Header:
        """Return one header of unknown length: pieces are fetched until it is complete."""
        count, size = 1, files.index.sizes[file]
        most = min(size, _MOST_PIECES * PIECE_BYTES)
        while True:
            end = min(count * PIECE_BYTES, most)
            await self._take_these(fetch, files, files.index.numbers(file, 0, end))
            read = functools.partial(
                read_beginning,
                functools.partial(files.read, file),
                end=end,
                size=size,
                label=label,
                may_grow=end < most,
            )
            try:
                header = await in_thread(read)
            except UserError as error:
                raise UnusableContent(error.what, hint=error.hint) from None
            if header is not None:
                return header
            count *= 2

    async def _take_these(self, fetch: Fetch, files: PartFiles, numbers: Collection[int]) -> None:
        """Fetch the missing ones of these pieces, from all members that have them."""
        await self._take(fetch, files, PiecePlan(files.index, files.there, wanted=numbers))
        files.there.update(numbers)

    async def _hashes(
        self, fetch: Fetch, index: PieceIndex, headers: Sequence[Header]
    ) -> tuple[PeerId, HeaderNote]:
        """Return the first member whose claim fits the model's name and its own earlier claim, and the claim.

        A member that reads its file first is awaited, twice as long each time, while there are others to ask.
        """
        seconds = _READY_SECONDS
        while holding := [offer for offer in self._offers if offer.peer in fetch.giving]:
            for offer in holding:
                limit = seconds if len(holding) > 1 else None
                if (note := await self._told_by(fetch, index, offer, headers, limit)) is not None:
                    return offer.peer, note
            if len(holding) == 1 or seconds > _MOST_READY_SECONDS:
                break
            seconds *= 2
        raise self._lost()

    async def _told_by(
        self,
        fetch: Fetch,
        index: PieceIndex,
        offer: MemberOffer,
        headers: Sequence[Header],
        seconds: float | None,
    ) -> HeaderNote | None:
        """Return what one member reports within `seconds`; None for no answer, or a lie."""

        def on_progress(text: str) -> None:
            self.state.activity = f"{offer.node}: {text}"

        try:
            async with asyncio.timeout(seconds) as limit:
                count = sum(len(header.tensors) for header in headers)
                digests = await ask_tensors(self._mesh, offer, count, on_progress)
        except (MeshdError, TimeoutError) as error:
            if not limit.expired():
                fetch.lose(offer.peer, error)
            return None
        found = fingerprint(headers, digests_of(headers, digests))
        is_wished = self._is_wished(found, index.content.hex())
        if is_wished and offer.model.fingerprint.hex() in ("", found):
            return HeaderNote(offer.stem, offer.node, index.content, found, digests, states=())
        self.state.holders[offer.peer].problem = _LIED
        LOG.warning("holder_lied", peer=offer.peer.short, why=_LIED)
        return None

    async def _keep(self, files: PartFiles, teller: PeerId, note: HeaderNote) -> bool:
        """Keep the header; return False if the received bytes do not match the hashes of `teller`."""
        self.state.step = PullStep.CHECKING
        # Compare the files with the hashes.
        await in_thread(files.lengthen)
        await in_thread(files.flush)
        path = files.part_paths[0]
        shards = await opened(path, header_only=True)
        try:
            try:
                await compare_present(shards, note)
            except UserError as error:
                self._excluded.add(teller)
                LOG.warning("holder_lied", peer=teller.short, why=error.what)
                return False
            states = tuple(FileState.of(shard.descriptor) for shard in shards)
            try:
                await in_thread(write_note, path, replace(note, states=states))
            except OSError as error:
                raise files.cannot_write(error) from None
        finally:
            close_all(shards)
        # Give them their place.
        await in_thread(self._note_name, files)
        await in_thread(files.finish)
        self.state.paths, self.state.fingerprint = files.final_paths, note.fingerprint
        return True

    def _lost(self) -> HoldersLost:
        """Return the error as for a model; no member can correct a lie about hashes."""
        lost = super()._lost()
        if any(holder.problem == _LIED for holder in self.state.holders.values()):
            return HoldersLost(lost.what, hint="name the model by its fingerprint, or ask who runs that node")
        return lost


def _wanted(index: PieceIndex, headers: Sequence[Header]) -> set[int]:
    """Return the pieces that contain the headers, and tensors that belong to no layer."""
    found: set[int] = set()
    for file, header in enumerate(headers):
        found.update(index.numbers(file, 0, min(header.data_offset, index.sizes[file])))
        for tensor in present_tensors(header):
            found.update(index.numbers(file, tensor.offset, tensor.size))
    return found


class PlanPull(HeaderPull):
    """Pull the headers of a model for a plan: `run` it once; `state` is as for the pull of a model."""

    _by_content = True

    async def _fetch(self, fetch: Fetch, index: PieceIndex, offer: MemberOffer) -> bool:
        names = file_names(offer.stem, len(index.sizes), HEADER_SUFFIX)
        files = PartFiles(self._place.folder, index, names, kind=f"{PLAN_KIND}-{secrets.token_hex(4)}")
        try:
            await self._open(files)
            await self._headers(fetch, files, names)
            await in_thread(files.lengthen)
            await in_thread(files.finish)
            self.state.paths = files.final_paths
            return True
        finally:
            files.close()
            files.leave_nothing()
