"""Pull only what a head without layers needs: the header, and tensors outside the layers.

Their pieces are fetched and checked like those of a whole model (pull_model.py). The hashes of all tensors
are one member's claim: with the header they must yield the fingerprint in the model's name, or the one that
members report. These hashes alone determine which weights are computed with, so nobody can substitute others
unnoticed. The received tensors are compared with them; workers compare the layers that they have.

A plan pulls only the headers, and nothing is computed with them: a wrong header makes a wrong plan.
"""

import asyncio
import functools
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshd.base import log
from meshd.base.errors import MeshdError, UserError
from meshd.base.tasks import in_thread
from meshd.library.members.ask_models import ask_tensors
from meshd.library.members.fetch import Fetch
from meshd.library.members.offers import MemberOffer
from meshd.library.members.part_files import PLAN_KIND, PartFiles
from meshd.library.members.piece_plan import PiecePlan
from meshd.library.members.pull_model import HoldersLost, ModelPull, PullStep, UnusableContent
from meshd.library.pulled_models import HEADER_KIND
from meshd.model.gguf import MAX_HEADER_BYTES, Header, read_header
from meshd.model.gguf_names import HEADER_SUFFIX, file_names
from meshd.model.weights_index import PIECE_BYTES, PieceIndex, fingerprint
from meshd.store.hash_cache import FileState
from meshd.store.header_file import HeaderNote, compare_present, digests_of, present_tensors, write_note
from meshd.store.model_file import opened
from meshd.store.shard import Shard, check_headers, close_all

_MOST_PIECES = MAX_HEADER_BYTES // PIECE_BYTES + 1  # pieces of a header
_READY_SECONDS = 30.0  # for a member that knows the hashes, while others may know them
_MOST_READY_SECONDS = 4 * 3600.0  # to read the largest file
_LIED = "the hashes that it tells are not those of the model's fingerprint"
LOG = log.get("library")


@dataclass(frozen=True, slots=True)
class _Hashes:
    """The hashes of all tensors, as the offer's member reported them, and the resulting fingerprint."""

    offer: MemberOffer
    digests: tuple[bytes, ...]
    fingerprint: str


class _Beginning:
    """The first bytes of a file; `was_short`: more were requested."""

    def __init__(self, files: PartFiles, file: int, end: int) -> None:
        self._files = files
        self._file = file
        self._end = end
        self.was_short = False

    def pread(self, offset: int, length: int) -> bytes:
        self.was_short = self.was_short or offset + length > self._end
        return self._files.read(self._file, offset, max(0, min(length, self._end - offset)))


class HeaderPull(ModelPull):
    """Pull the header of a model: `run` it once; `state` is as for the pull of a model."""

    _by_content = False  # a content id covers no hashes of layers: a liar could report others

    async def _fetch(self, fetch: Fetch, index: PieceIndex, offer: MemberOffer) -> bool:
        names = file_names(offer.stem, len(index.sizes), HEADER_SUFFIX)
        files = PartFiles(self._place.folder, index, names, kind=HEADER_KIND)
        try:
            present = await self._present(files, index)
            headers = await self._headers(fetch, files, present, names)
            hashes = await self._hashes(fetch, index, headers)
            await self._take_these(fetch, files, present, _wanted(index, headers))
            return await self._keep(files, index, hashes)
        finally:
            files.close()

    async def _headers(
        self, fetch: Fetch, files: PartFiles, present: set[int], names: Sequence[str]
    ) -> list[Header]:
        """Return the headers of all files: all beginnings are fetched at once, from all holders."""
        assert fetch.chosen is not None
        beginnings = [fetch.chosen.numbers(file, 0, 1)[0] for file in range(len(names))]
        await self._take_these(fetch, files, present, beginnings)
        found = [
            await self._header(fetch, files, present, file, label=name) for file, name in enumerate(names)
        ]
        try:
            check_headers(names, found)
        except UserError as error:
            raise UnusableContent(error.what, hint=error.hint) from None
        return found

    async def _header(
        self, fetch: Fetch, files: PartFiles, present: set[int], file: int, *, label: str
    ) -> Header:
        """Return one header of unknown length: pieces are fetched until it is complete."""
        assert fetch.chosen is not None
        count, size = 1, fetch.chosen.sizes[file]
        while True:
            end = min(count * PIECE_BYTES, size, _MOST_PIECES * PIECE_BYTES)
            await self._take_these(fetch, files, present, fetch.chosen.numbers(file, 0, end))
            beginning = _Beginning(files, file, end)
            read = functools.partial(read_header, beginning.pread, size=size, label=label)
            try:
                return await in_thread(read)
            except UserError as error:
                if not beginning.was_short or end in (size, _MOST_PIECES * PIECE_BYTES):
                    raise UnusableContent(error.what, hint=error.hint) from None
                count *= 2

    async def _take_these(
        self, fetch: Fetch, files: PartFiles, present: set[int], numbers: Collection[int]
    ) -> None:
        """Fetch the missing ones of these pieces, from all members that have them."""
        assert fetch.chosen is not None
        await self._take(fetch, files, PiecePlan(fetch.chosen, present, wanted=numbers))
        present.update(numbers)

    def _holding(self, fetch: Fetch) -> list[MemberOffer]:
        """Return the members that have this content, and gave nothing wrong."""
        giving = fetch.giving
        return [offer for offer in self._offers if offer.peer in giving]

    async def _hashes(self, fetch: Fetch, index: PieceIndex, headers: Sequence[Header]) -> _Hashes:
        """Return the hashes of the first member whose claim fits the model's name, and its own earlier claim.

        A member that reads its file first is awaited, twice as long each time, while there are others to ask.
        """
        seconds = _READY_SECONDS
        while holding := self._holding(fetch):
            for offer in holding:
                limit = seconds if len(holding) > 1 else None
                if (found := await self._told_by(fetch, offer, headers, limit)) is not None:
                    return found
            if len(holding) == 1 or seconds > _MOST_READY_SECONDS:
                break
            seconds *= 2
        raise self._lost()

    async def _told_by(
        self, fetch: Fetch, offer: MemberOffer, headers: Sequence[Header], seconds: float | None
    ) -> _Hashes | None:
        """Return what one member reports within `seconds`; None for no answer, or a lie."""
        assert fetch.chosen is not None

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
        is_wished = self._is_wished(found, fetch.chosen.content.hex())
        if is_wished and offer.model.fingerprint.hex() in ("", found):
            return _Hashes(offer, digests, found)
        self.state.holders[offer.peer].problem = _LIED
        LOG.warning("holder_lied", peer=offer.peer.short, why=_LIED)
        return None

    async def _keep(self, files: PartFiles, index: PieceIndex, hashes: _Hashes) -> bool:
        """Keep the header; return False if the received bytes do not match the hashes."""
        self.state.step = PullStep.CHECKING
        # Compare the files with the hashes.
        await in_thread(files.lengthen)
        await in_thread(files.flush)
        path = files.part_paths[0]
        shards = await opened(path, header_only=True)
        try:
            note = _note(shards, index, hashes)
            try:
                await compare_present(shards, note)
            except UserError as error:
                self._excluded.add(hashes.offer.peer)
                LOG.warning("holder_lied", peer=hashes.offer.peer.short, why=error.what)
                return False
            await in_thread(functools.partial(_write, path, note))
        finally:
            close_all(shards)
        # Give them their place.
        await in_thread(functools.partial(self._note_name, files))
        await in_thread(files.finish)
        self.state.paths, self.state.fingerprint = files.final_paths, note.fingerprint
        return True

    def _lost(self) -> HoldersLost:
        """Return the error as for a model; no member can correct a lie about hashes."""
        lost = super()._lost()
        if any(one.problem == _LIED for one in self.state.holders.values()):
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


def _note(shards: Sequence[Shard], index: PieceIndex, hashes: _Hashes) -> HeaderNote:
    return HeaderNote(
        name=hashes.offer.stem,
        node=hashes.offer.node,
        content=index.content,
        fingerprint=hashes.fingerprint,
        digests=hashes.digests,
        states=tuple(FileState.of(shard.descriptor) for shard in shards),
    )


def _write(path: Path, note: HeaderNote) -> None:
    """Write the note beside the header. Raises UserError."""
    try:
        write_note(path, note)
    except OSError as error:
        raise UserError(
            f"cannot write beside `{path}`: {(error.strerror or str(error)).lower()}",
            hint="fix the cause, or set MESHD_CACHE to a directory that you can write to",
        ) from None


class PlanPull(HeaderPull):
    """Pull the headers of a model for a plan: `run` it once; `state` is as for the pull of a model."""

    _by_content = True

    async def _fetch(self, fetch: Fetch, index: PieceIndex, offer: MemberOffer) -> bool:
        names = file_names(offer.stem, len(index.sizes), HEADER_SUFFIX)
        files = PartFiles(self._place.folder, index, names, kind=f"{PLAN_KIND}-{secrets.token_hex(4)}")
        try:
            await self._headers(fetch, files, await self._present(files, index), names)
            await in_thread(files.lengthen)
            await in_thread(files.finish)
            self.state.paths = files.final_paths
            return True
        finally:
            files.close()
            files.leave_nothing()
