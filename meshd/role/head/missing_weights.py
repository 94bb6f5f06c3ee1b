"""What the workers of a plan lack, and whether members other than this head can give it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner
from meshd.model.layers import is_of_layer
from meshd.model.placed_tensors import placed_tensors
from meshd.model.split_values import Plan
from meshd.model.weights_index import WeightsIndex
from meshd.role.head.lease_client import LeaseClient
from meshd.role.head.run_input import ServedModel
from meshd.role.head.split_plan import NodeOffer
from meshd.role.interface import WeightsFromMembers
from meshd.wire.limits import MAX_ASKED_TENSORS
from meshd.wire.needs import NeededTensor, Needs, from_bits, mark

READ_SECONDS = 20.0  # for our file to be compared with those of members: offers stand for a minute
_WORTH_BYTES = 8 << 20  # lacking on all workers together: less is sent with the load
LOG = log.get("serve")


def marks_of(index: WeightsIndex) -> bytes:
    """Of all tensors, for the question to workers; nothing where there are too many to ask for."""
    if len(index.tensors) > MAX_ASKED_TENSORS:
        return b""
    return b"".join(mark(tensor.digest) for tensor in index.tensors)


def lacking(index: WeightsIndex, part: Sequence[int], bits: bytes) -> int:
    """Bytes of these tensors that a worker has not, by its own word."""
    lacks = from_bits(bits, len(index.tensors))
    return sum(index.tensors[number].size for number in part if lacks[number])


def lacking_shares(index: WeightsIndex, offers: Sequence[NodeOffer]) -> dict[str, float]:
    """Of the layers' bytes, what each worker has not, by its own word; without those that say nothing."""
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
    leases: Sequence[LeaseClient],
    members: WeightsFromMembers,
    owner: Owner,
    on_progress: Callable[[str], None],
) -> Mapping[str, Needs]:
    """By name of the worker, its part of the model, if somebody lacks some of it that members can give.

    Empty: the head sends what is missing, with the load. If its file must be read for long first, that goes
    on in a task of `owner`, for later loads.
    """
    index = model.index
    parts = placed_tensors(plan, model.layers, [tensor.name for tensor in index.tensors])
    offers = {lease.name: lease.offer for lease in leases if lease.offer is not None}
    missing = sum(lacking(index, parts.get(name, ()), offer.lacks) for name, offer in offers.items())
    if model.file.header_of:  # this node can send nothing of it
        return _all_needs(model, parts, leases, model.file.header_of, missing) if missing else {}
    if missing < _WORTH_BYTES:
        return {}
    asking = _ContentQuestion(model, members, on_progress)
    await asyncio.wait([owner.start_for("members", asking.ask(), name="content")], timeout=READ_SECONDS)
    asking.waited = True
    if not (content := asking.content):
        return {}
    return _all_needs(model, parts, leases, content, missing)


def _all_needs(
    model: ServedModel,
    parts: Mapping[str, Sequence[int]],
    leases: Sequence[LeaseClient],
    content: bytes,
    missing: int,
) -> Mapping[str, Needs]:
    LOG.info("weights_missing", bytes=missing)
    return {lease.name: needs_of(model.index, parts.get(lease.name, ()), content) for lease in leases}


class _ContentQuestion:
    """For the content id of the model's files, if others have them: known once `ask` is done."""

    def __init__(
        self, model: ServedModel, members: WeightsFromMembers, on_progress: Callable[[str], None]
    ) -> None:
        self._model = model
        self._members = members
        self._on_progress = on_progress
        self.content = b""
        self.waited = False  # nobody listens any more

    async def ask(self) -> None:
        try:
            self.content = await self._members.shared_content(self._model.file, self._tell)
        except (MeshdError, OSError) as error:
            LOG.warning("weights_not_shared", why=str(error))

    def _tell(self, text: str) -> None:
        if not self.waited:
            self._on_progress(text)


def needs_of(index: WeightsIndex, part: Sequence[int], content: bytes) -> Needs:
    """What a worker is told of its part of the file with this content id."""
    rows = [index.tensors[number] for number in part]
    tensors = [NeededTensor(row.file, row.kind, row.offset, row.size, row.digest) for row in rows]
    size = sum(file.size for file in index.files)
    return Needs(content, size, len(index.files), tuple(tensors))
