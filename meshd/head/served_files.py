"""The files of a model: its own is loaded, or a smaller one where that does not fit after a loss.

Smaller ones are quantisations of the same model: they have its vocabulary, so that open answers go on. The
model's own file is tried first in each life; it is the first one, too, that must have been loaded.

Before a load, members, this head included, may give the workers of a plan what they lack of it.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from meshd.base import log
from meshd.base.errors import MeshdError, UserError
from meshd.base.tasks import Owner
from meshd.devices.interface import WeightsFromMembers
from meshd.head.lease import Lease
from meshd.model.gguf import Header
from meshd.model.layers import ModelLayers, is_of_layer, read_layers
from meshd.model.served_facts import ServedFacts, facts_of_file
from meshd.model.weights_index import PIECE_BYTES, WeightsIndex
from meshd.plan.machines import NodeOffer, PlainRpc
from meshd.plan.split import Plan, placed_tensors
from meshd.plan.wishes import HeadOptions
from meshd.store.interface import ProgressCallback, WeightsFile
from meshd.wire.lease import NeededTensor, Needs, from_bits, mark
from meshd.wire.limits import MAX_ASKED_TENSORS


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Describe the model of one run: how its user wants it run, and where its llama-server answers."""

    file: WeightsFile
    index: WeightsIndex
    layers: ModelLayers
    options: HeadOptions
    plain_rpc: Sequence[PlainRpc]
    """The rpc-servers without meshd, as they answered just now."""
    alias: str
    socket: Path

    @property
    def plain_endpoints(self) -> list[str]:
        return [server.endpoint for server in self.plain_rpc]

    def plain_bytes(self, plan: Plan) -> int:
        """Count the weights that rpc-servers without meshd get over the network."""
        plain = self.plain_endpoints
        return sum(share.weights for share in plan.shares if share.device.node in plain)


_ARCHITECTURE = "general.architecture"
_VOCABULARY = ("tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens", "tokenizer.ggml.merges")
LOG = log.get("serve")


class ServedFiles:
    """Choose the file that is loaded."""

    def __init__(self, own: WeightsFile, smaller: Sequence[WeightsFile] = ()) -> None:
        """Begin with the model's own. Raises UserError when one of `smaller` is another model."""
        for file in smaller:
            check_same_model(file.headers[0], own.headers[0], name=file.name, own=own.name)
        self._files = (own, *smaller)
        self._at = 0
        self._created = _modified(own)
        self._was_loaded = asyncio.Event()  # the model's own
        self._why = ""
        self.layers: ModelLayers = read_layers(own.headers, name=own.name)
        self.index: WeightsIndex | None = None
        """With `layers`, of the file that was known last."""

    @property
    def current(self) -> WeightsFile:
        """Return the file that is loaded, or to be loaded."""
        return self._files[self._at]

    @property
    def own(self) -> WeightsFile:
        """Return the model's own file."""
        return self._files[0]

    @property
    def smaller(self) -> tuple[str, ...]:
        """Return the names of the smaller ones."""
        return tuple(file.name for file in self._files[1:])

    @property
    def note(self) -> str:
        """Say what people should know of the current one; empty for the model's own."""
        if not self._at:
            return ""
        return f"`{self.current.name}` in place of `{self.own.name}`: {self._why}"

    def facts(self, llama_args: Sequence[str]) -> ServedFacts:
        """Return what clients are told of the current one before llama-server says more."""
        facts = facts_of_file(self.current.headers, created=self._created, llama_args=llama_args)
        return replace(facts, fingerprint=self.index.fingerprint if self.index is not None else "")

    @property
    def was_loaded(self) -> bool:
        """Return True if the model's own, or a smaller one after it, was loaded since `begin`."""
        return self._was_loaded.is_set()

    def begin(self) -> None:
        """Begin as if nothing had ever been loaded: what does not fit is waited for."""
        self._was_loaded.clear()
        self.lost()

    def loaded(self) -> None:
        """Note that the current one is loaded."""
        if not self._at:
            self._was_loaded.set()

    def lost(self) -> None:
        """Note that nothing is loaded any more: the model's own is tried first."""
        self._at, self._why = 0, ""

    def does_not_fit(self, why: str) -> bool:
        """Go on to a smaller one and return True, or back to the model's own if there is none to try."""
        if self.was_loaded and self._at + 1 < len(self._files):
            self._why = self._why or why
            self._at += 1
            return True
        self.lost()
        return False

    async def know(self, on_progress: ProgressCallback) -> bool:
        """Know the current one by content; return True if it is another than before. Raises UserError.

        Costs nothing while the file is as it was.
        """
        file, before = self.current, self.index
        self.index = await file.index(on_progress)
        if not file.paths_unchanged():  # llama-server opens the path, the workers know what was there
            raise _changed(file)
        self.layers = read_layers(file.headers, name=file.name)
        return before is not None and before.fingerprint != self.index.fingerprint

    async def know_smaller(self) -> None:
        """Read them once, when the model's own is loaded: a loss is no time to begin with that."""
        await self._was_loaded.wait()
        for file in self._files[1:]:
            try:
                await file.index()
            except UserError as error:  # it is said again when it is needed
                LOG.warning("weights_unknown", why=error.what, hint=error.hint)


def _modified(file: WeightsFile) -> int:
    """Return when the file was written, in unix seconds; 0 where nobody knows."""
    try:
        return int(file.paths[0].stat().st_mtime)
    except OSError:
        return 0


def _changed(file: WeightsFile) -> UserError:
    if all(path.exists() for path in file.paths):
        return UserError(
            f"`{file.name}` was replaced by another file", hint="restart `meshd serve` to serve it"
        )
    return UserError(
        f"`{file.name}` is gone: it was removed, moved or renamed",
        hint="move it back there, or restart `meshd serve` with another one",
    )


def check_same_model(header: Header, served: Header, *, name: str, own: str) -> None:
    """Check that a file can go on with the answers of the served one. Raises UserError."""
    kinds = header.text(_ARCHITECTURE), served.text(_ARCHITECTURE)
    if kinds[0] != kinds[1]:
        raise UserError(
            f"`{name}` cannot take the place of `{own}`: it is `{kinds[0]}`, not `{kinds[1]}`",
            hint="give smaller quantisations of the same model in `fallback_models`",
        )
    if any(header.digests.get(key) != served.digests.get(key) for key in _VOCABULARY):
        raise UserError(
            f"`{name}` cannot take the place of `{own}`: it has another vocabulary",
            hint="give smaller quantisations of the same model in `fallback_models`",
        )


READ_SECONDS = 20.0  # for our file to be compared with those of members: offers stand for a minute
_WORTH_BYTES = 8 << 20  # lacking on all workers together: less is sent with the load
_ALONE_WORKERS = 2  # that lack as much, each: one gets it sooner with the load, if only this node gives it
_ALONE_WHOLE = 8  # whole pieces may cost this part of what is lacking: this node's line has to bring it


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
        offer.node: lacking(index, layers, offer.offer.lacks) / total
        for offer in offers
        if offer.offer.lacks and total
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
    content, is_waited_for = b"", True

    def tell(text: str) -> None:
        if is_waited_for:
            on_progress(text)

    async def ask() -> None:
        nonlocal content
        try:
            content = await members.given_content(model.file, tell, by_us=by_us)
        except (MeshdError, OSError) as error:
            LOG.warning("weights_not_shared", why=str(error))

    await asyncio.wait([owner.start_for("members", ask(), name="content")], timeout=READ_SECONDS)
    is_waited_for = False
    return _all_needs(model, parts, leases, content, missing) if content else {}


def _all_needs(
    model: ServedModel,
    parts: Mapping[str, Sequence[int]],
    leases: Sequence[Lease],
    content: bytes,
    missing: int,
) -> Mapping[str, Needs]:
    LOG.info("weights_missing", bytes=missing)
    return {lease.name: needs_of(model.index, parts.get(lease.name, ()), content) for lease in leases}


def needs_of(index: WeightsIndex, part: Sequence[int], content: bytes) -> Needs:
    """Word what a worker is told of its part of the file with this content id."""
    rows = [index.tensors[number] for number in part]
    tensors = [NeededTensor(row.file, row.kind, row.offset, row.size, row.digest) for row in rows]
    size = sum(file.size for file in index.files)
    return Needs(content, size, len(index.files), tuple(tensors))
