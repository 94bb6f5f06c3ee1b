"""Weights that a lease lacks and other members have: fetched before its mesh-server starts, then stored.

The head says where its file has the tensors of this worker's part; members with the same file send the pieces
that contain the missing tensors. The head sends the rest with the load. A worker that holds weights ready
also reads them into the page cache, and waits.
"""

import asyncio
import functools
import mmap
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from meshd.base import log
from meshd.base.admission import Rates
from meshd.base.errors import MeshdError, Refused, RemoteProtocolError
from meshd.base.peer_limits import FETCHES_ASKED
from meshd.base.processes import Outgoing
from meshd.base.tasks import Owner, first_error, in_thread
from meshd.base.units import in_bytes
from meshd.devices.interface import FromMembers, WeightsFromMembers
from meshd.model.ggml import TENSOR_TYPES
from meshd.peer.messages import MessageStream
from meshd.wire.lease import PAUSED, Begin, Fetched, NeededTensor, Needs, Progress, decode, mark
from meshd.wire.limits import MAX_ASKED_TENSORS
from meshd.worker.known_files import FilePart, KnownFiles, Weights
from meshd.worker.mesh_server import AgreedLease
from meshd.worker.worker_options import IS_PAUSED, Pause

_READ_BYTES = 1 << 20  # at a time: it is thrown away
_STEP_BYTES = 16 << 20  # between two checks whether the weights are still wanted
_MADV_POPULATE_READ = 22  # Linux 5.14; POSIX_FADV_WILLNEED reads only as much as is convenient
_AGAIN_SECONDS = 60.0
_NEXT_SECONDS = 60.0  # for the next message of a head that lists what it needs
_TOLD_SECONDS = 2.0  # between two progress messages to the head
LOG = log.get("worker")


class HeldWeights:
    """Weights that a worker holds ready without a process: read once, and kept in the kernel's page cache.

    A mesh-server that is started later reads them from there instead of the disk. The kernel may drop them
    when memory is short, so every minute the worker asks for them again, which costs little for the pages
    that are still cached. The descriptors stay open while `read` or `keep` runs.
    """

    def __init__(self, parts: Sequence[FilePart]) -> None:
        self._parts = parts

    async def read(self, on_progress: Callable[[str], None]) -> int:
        """Read all weights once. Returns the number of bytes that could be read."""
        total = sum(part.size for part in self._parts)
        done = 0
        for step in self._steps():
            on_progress(f"reads its weights: {in_bytes(done)} of {in_bytes(total)}")
            done += await in_thread(functools.partial(_read, step))
        return done

    async def keep(self) -> None:
        """Refresh the weights every minute until cancelled."""
        while True:
            await asyncio.sleep(_AGAIN_SECONDS)
            await self.refresh()

    async def refresh(self) -> None:
        """Ask the kernel to read the pages that it has dropped (Linux 5.14)."""
        if sys.platform == "linux":
            for step in self._steps():
                await in_thread(functools.partial(_populate, step))

    def _steps(self) -> list[FilePart]:
        return [
            FilePart(part.descriptor, part.offset + at, min(_STEP_BYTES, part.size - at))
            for part in self._parts
            for at in range(0, part.size, _STEP_BYTES)
        ]


def _read(part: FilePart) -> int:
    """Read the part and return how many bytes were there: a file may have been cut, and a disk may fail."""
    done = 0
    while done < part.size:
        try:
            data = os.pread(part.descriptor, min(_READ_BYTES, part.size - done), part.offset + done)
        except OSError:
            break
        if not data:
            break
        done += len(data)
    return done


def _populate(part: FilePart) -> None:
    """Populate the pages of `part` without copying. Cached pages cost a microsecond for each 64 KiB."""
    begin = part.offset - part.offset % mmap.ALLOCATIONGRANULARITY
    length = part.offset + part.size - begin
    # An earlier kernel does not know this advice, and a file may have been cut: the pages stay as they are.
    with suppress(OSError, ValueError), _mapped(part.descriptor, begin, length) as mapped:
        mapped.madvise(_MADV_POPULATE_READ)


def _mapped(descriptor: int, begin: int, length: int) -> mmap.mmap:
    return mmap.mmap(descriptor, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=begin)


class MissingWeights:
    """Fetch missing weights for all leases of one worker."""

    def __init__(self, members: WeightsFromMembers, files: KnownFiles, pause: Pause) -> None:
        self._members = members
        self._files = files
        self._pause = pause
        self._asked = Rates(FETCHES_ASKED)

    async def fetch(self, messages: MessageStream, agreed: AgreedLease, outgoing: Outgoing) -> AgreedLease:
        """Return the lease with the weights that are present once the head says that the load may begin.

        Raises EndOfStream and Broken when the head is gone, Refused when the worker is paused, and
        RemoteProtocolError or MeshdError for other failures.
        """
        # The head lists its tensors.
        needs = await _read_needs(messages, limit=sum(agreed.lease.memory.values()))
        text = ["looking for members that have its weights"]
        ended = asyncio.Event()
        try:
            # Fetch them and report the progress; meanwhile the head may end the lease.
            async with Owner() as owner:
                began = owner.start(_until_begin(messages), name="begin")
                owner.start(self._until_paused(), name="pause")
                owner.start(_say_progress(messages, text, ended), name="fetch progress")
                found = await self._from_members(needs, agreed, text)
                # Read the held weights into the page cache, and keep them there.
                if agreed.lease.is_standby:
                    agreed = replace(agreed, weights=await self._renewed(messages, agreed, needs, outgoing))
                    held = held_weights(needs, agreed.weights)
                    found = replace(found, held=await held.read(partial(text.__setitem__, 0)))
                    owner.start(held.keep(), name="held weights")
                # Report the result, then wait for `begin`.
                ended.set()
                await messages.send(found.encode())
                await began
                owner.cancel()
        except ExceptionGroup as group:
            raise first_error(group) from None
        # The store may have changed since the last look.
        return replace(agreed, weights=await self._renewed(messages, agreed, needs, outgoing))

    async def _from_members(self, needs: Needs, agreed: AgreedLease, text: list[str]) -> Fetched:
        weights, peer = agreed.weights, agreed.lease.peer
        if weights is None or weights.lease_cache is None:
            return Fetched(0, "no downloaded weights are kept here")
        lacking = _lacking(needs, weights)
        if not lacking.tensors:
            return Fetched(0, "nothing is missing")
        if not self._asked.spend(peer, asyncio.get_running_loop().time()):
            return Fetched(0, "this head has asked for weights too often")
        weights.lease_cache.allow(sum(agreed.lease.memory.values()))

        def on_progress(line: str) -> None:
            text[0] = line

        found = await self._members.fetch(lacking, weights.lease_cache, on_progress)
        LOG.info("weights_fetched", peer=peer.short, bytes=sum(found.given.values()), what=_sentence(found))
        return Fetched(sum(found.given.values()), _sentence(found))

    async def _renewed(
        self, messages: MessageStream, agreed: AgreedLease, needs: Needs, outgoing: Outgoing
    ) -> Weights | None:
        """Take the weights again and close their former descriptors."""
        outgoing.close()
        marks = b"".join(mark(tensor.digest) for tensor in needs.tensors)
        peer = str(agreed.lease.peer)
        try:
            return await self._files.take(outgoing, progress_to(messages), peer=peer, marks=marks)
        except OSError as error:
            raise MeshdError(f"cannot open the weights again: {error.strerror}") from None

    async def _until_paused(self) -> None:
        await self._pause.until_leases_end()
        raise Refused(IS_PAUSED, code=PAUSED)


def progress_to(messages: MessageStream) -> Callable[[str], Awaitable[None]]:
    """Return a callback that sends progress texts to the head of a lease."""

    async def on_progress(text: str) -> None:
        await messages.send(Progress(text).encode())

    return on_progress


async def _read_needs(messages: MessageStream, *, limit: int) -> Needs:
    """Read all Needs messages and join them. Their tensors fit into the `limit` bytes that were reserved.

    Raises Refused, RemoteProtocolError.
    """
    tensors: list[NeededTensor] = []
    while True:
        try:
            async with asyncio.timeout(_NEXT_SECONDS):
                needs = decode(await messages.receive())
        except TimeoutError:
            raise Refused("the head did not say what it needs in time", code="timeout") from None
        if not isinstance(needs, Needs):
            raise RemoteProtocolError("lease: expected `needs`", code="lease")
        tensors += needs.tensors
        if not all(tensor.kind in TENSOR_TYPES for tensor in needs.tensors):
            raise RemoteProtocolError("lease: a tensor of no known type", code="lease")
        if len(tensors) > MAX_ASKED_TENSORS or sum(tensor.size for tensor in tensors) > limit:
            raise RemoteProtocolError("lease: more weights than were reserved", code="lease")
        if needs.last:
            return replace(needs, tensors=tuple(tensors))


def held_weights(needs: Needs, weights: Weights | None) -> HeldWeights:
    """Return the needed tensors that are here, in use by this lease from now on."""
    if weights is None:
        return HeldWeights(())
    return HeldWeights(weights.places(_in_use(needs, weights)))


def _lacking(needs: Needs, weights: Weights) -> Needs:
    """Return the needed tensors that are missing. Those that are here stay while the store makes room."""
    _in_use(needs, weights)
    missing = {tensor.digest: tensor for tensor in needs.tensors if tensor.digest not in weights.sizes}
    return replace(needs, tensors=tuple(missing.values()))


def _in_use(needs: Needs, weights: Weights) -> set[bytes]:
    """Mark the needed tensors that are here as used by this lease, and return their digests.

    The head has reserved memory for the sizes it stated, so a tensor of another size is none of these.
    """
    here = {tensor.digest for tensor in needs.tensors if weights.sizes.get(tensor.digest) == tensor.size}
    if weights.lease_cache is not None:
        for digest in here:
            weights.lease_cache.loaded(digest)
    return here


async def _until_begin(messages: MessageStream) -> None:
    if not isinstance(decode(await messages.receive()), Begin):
        raise RemoteProtocolError("lease: expected `begin`", code="lease")


async def _say_progress(messages: MessageStream, text: list[str], ended: asyncio.Event) -> None:
    """Send progress to the head until `ended` is set. Then it does not listen until the lease is granted."""
    on_progress = progress_to(messages)
    while not ended.is_set():
        await on_progress(text[0])
        with suppress(TimeoutError):
            async with asyncio.timeout(_TOLD_SECONDS):
                await ended.wait()


def _sentence(found: FromMembers) -> str:
    """Return a log text: how much came from which node, and what went wrong."""
    given = ", ".join(f"{in_bytes(count)} from {node}" for node, count in found.given.items() if count)
    return "; ".join(part for part in (given or "nothing came", found.why) if part)
