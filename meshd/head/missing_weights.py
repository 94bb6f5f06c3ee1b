"""Weights that the workers of a plan lack: members, this head included, may give them before the load."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner
from meshd.devices.interface import WeightsFromMembers
from meshd.head.lease import Lease
from meshd.head.served_files import ServedModel
from meshd.model.layers import is_of_layer
from meshd.model.piece_index import PIECE_BYTES
from meshd.model.weights_index import WeightsIndex
from meshd.plan.machines import NodeOffer
from meshd.plan.split import Plan, placed_tensors
from meshd.wire.limits import MAX_ASKED_TENSORS
from meshd.wire.needs import NeededTensor, Needs, from_bits, mark

READ_SECONDS = 20.0  # for our file to be compared with those of members: offers stand for a minute
_WORTH_BYTES = 8 << 20  # lacking on all workers together: less is sent with the load
_ALONE_WORKERS = 2  # that lack as much, each: one gets it sooner with the load, if only this node gives it
_ALONE_WHOLE = 8  # whole pieces may cost this part of what is lacking: this node's line has to bring it
LOG = log.get("serve")


def marks_of(index: WeightsIndex) -> bytes:
    """Return the marks of all tensors for the question to workers; nothing if there are too many."""
    if len(index.tensors) > MAX_ASKED_TENSORS:
        return b""
    return b"".join(mark(tensor.digest) for tensor in index.tensors)


def lacking(index: WeightsIndex, part: Sequence[int], bits: bytes) -> int:
    """Count the bytes of these tensors that a worker has not, by its own word."""
    return _size(index, _lacked(index, part, bits))


def gains_alone(index: WeightsIndex, lacked: Collection[Sequence[int]]) -> bool:
    """Return True if workers get what each lacks sooner in pieces, though only this node gives them.

    llama-server sends one tensor after another; pieces go over the lines of all workers at once, but as whole
    ones. Workers on this machine count for nothing: no line is what they wait for.
    """
    sizes = [_size(index, numbers) for numbers in lacked]
    whole = PIECE_BYTES * sum(len(_pieces(index, numbers)) for numbers in lacked)
    many = sum(size >= _WORTH_BYTES for size in sizes)
    return many >= _ALONE_WORKERS and whole <= sum(sizes) + sum(sizes) // _ALONE_WHOLE


def _pieces(index: WeightsIndex, numbers: Sequence[int]) -> set[tuple[int, int]]:
    """Return the pieces in which these tensors lie: of a file, which one."""
    found: set[tuple[int, int]] = set()
    for row in (index.tensors[number] for number in numbers):
        last = (row.offset + row.size - 1) // PIECE_BYTES
        found.update((row.file, number) for number in range(row.offset // PIECE_BYTES, last + 1))
    return found


def _lacked(index: WeightsIndex, part: Sequence[int], bits: bytes) -> list[int]:
    lacks = from_bits(bits, len(index.tensors))
    return [number for number in part if lacks[number]]


def _size(index: WeightsIndex, numbers: Sequence[int]) -> int:
    return sum(index.tensors[number].size for number in numbers)


def lacking_shares(index: WeightsIndex, offers: Sequence[NodeOffer]) -> dict[str, float]:
    """Return the share of the layers' bytes that each worker has not, if it says so."""
    layers = [number for number, tensor in enumerate(index.tensors) if is_of_layer(tensor.name)]
    total = sum(index.tensors[number].size for number in layers)
    return {
        one.node: lacking(index, layers, one.offer.lacks) / total
        for one in offers
        if one.offer.lacks and total
    }


async def find_needs(
    model: ServedModel,
    plan: Plan,
    leases: Sequence[Lease],
    members: WeightsFromMembers,
    owner: Owner,
    on_progress: Callable[[str], None],
) -> Mapping[str, Needs]:
    """Return each worker's part of the model by its name, if some is lacking and taken before the load.

    Empty: llama-server sends what is missing. If this node's file must be read for long first, that goes on
    in a task of `owner`, for later loads.
    """
    index = model.index
    parts = placed_tensors(plan, model.layers, [tensor.name for tensor in index.tensors])
    offers = {lease.name: lease.offer for lease in leases if lease.offer is not None}
    lacked = {name: _lacked(index, parts.get(name, ()), offer.lacks) for name, offer in offers.items()}
    missing = sum(_size(index, numbers) for numbers in lacked.values())
    if model.file.header_of:  # this node can send nothing of it
        return _all_needs(model, parts, leases, model.file.header_of, missing) if missing else {}
    if missing < _WORTH_BYTES:
        return {}
    by_us = gains_alone(index, [lacked.get(lease.name, ()) for lease in leases if not lease.is_here])
    asking = _ContentQuestion(model, members, on_progress, by_us=by_us)
    await asyncio.wait([owner.start_for("members", asking.ask(), name="content")], timeout=READ_SECONDS)
    asking.waited = True
    if not (content := asking.content):
        return {}
    return _all_needs(model, parts, leases, content, missing)


def _all_needs(
    model: ServedModel,
    parts: Mapping[str, Sequence[int]],
    leases: Sequence[Lease],
    content: bytes,
    missing: int,
) -> Mapping[str, Needs]:
    LOG.info("weights_missing", bytes=missing)
    return {lease.name: needs_of(model.index, parts.get(lease.name, ()), content) for lease in leases}


class _ContentQuestion:
    """Ask for the content id of the model's files, if they are given: known once `ask` is done.

    `by_us`: it is enough if this node gives them.
    """

    def __init__(
        self,
        model: ServedModel,
        members: WeightsFromMembers,
        on_progress: Callable[[str], None],
        *,
        by_us: bool,
    ) -> None:
        self._model = model
        self._members = members
        self._by_us = by_us
        self._on_progress = on_progress
        self.content = b""
        self.waited = False  # nobody listens any more

    async def ask(self) -> None:
        try:
            self.content = await self._members.given_content(self._model.file, self._tell, by_us=self._by_us)
        except (MeshdError, OSError) as error:
            LOG.warning("weights_not_shared", why=str(error))

    def _tell(self, text: str) -> None:
        if not self.waited:
            self._on_progress(text)


def needs_of(index: WeightsIndex, part: Sequence[int], content: bytes) -> Needs:
    """Word what a worker is told of its part of the file with this content id."""
    rows = [index.tensors[number] for number in part]
    tensors = [NeededTensor(row.file, row.kind, row.offset, row.size, row.digest) for row in rows]
    size = sum(file.size for file in index.files)
    return Needs(content, size, len(index.files), tuple(tensors))
