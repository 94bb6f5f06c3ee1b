"""What the workers of a plan lack, and whether members other than this head can give it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner
from meshd.model.placed_tensors import placed_tensors
from meshd.model.split_values import Plan
from meshd.model.weights_index import WeightsIndex
from meshd.role.head.lease_client import LeaseClient
from meshd.role.head.run_input import ServedModel
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
    if missing < _WORTH_BYTES:
        return {}
    waited = False

    def tell(text: str) -> None:
        if not waited:
            on_progress(text)

    asking = owner.start(_content(model, members, tell), name="content of the model")
    await asyncio.wait([asking], timeout=READ_SECONDS)
    waited = True
    if not asking.done() or not (content := asking.result()):
        return {}
    LOG.info("weights_missing", bytes=missing)
    return {lease.name: _needs(index, parts.get(lease.name, ()), content) for lease in leases}


async def _content(
    model: ServedModel, members: WeightsFromMembers, on_progress: Callable[[str], None]
) -> bytes:
    try:
        return await members.shared_content(model.file, on_progress)
    except (MeshdError, OSError) as error:
        LOG.warning("weights_not_shared", why=str(error))
        return b""


def _needs(index: WeightsIndex, part: Sequence[int], content: bytes) -> Needs:
    rows = [index.tensors[number] for number in part]
    tensors = [NeededTensor(row.file, row.kind, row.offset, row.size, row.digest) for row in rows]
    size = sum(file.size for file in index.files)
    return Needs(content, size, len(index.files), tuple(tensors))
