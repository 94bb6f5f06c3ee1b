"""The rules of docs/native.md for what a head may say to an rpc-server, written a second time.

Nothing of meshd/rpc but its tables of layouts is used: what the firewall lets through is judged here anew.
"""

import struct
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from meshd.model.ggml import TENSOR_TYPES
from meshd.rpc import protocol as rpc

MOST_BUFFERS = 1024
TENSOR = struct.Struct("<QIQ4I4II16Ii10QQQQ64xI")
assert TENSOR.size == rpc.TENSOR_BYTES


class Broken(AssertionError):
    """A frame went on that breaks this rule."""


def need(holds: bool, rule: str) -> None:
    """Raises Broken."""
    if not holds:
        raise Broken(rule)


@dataclass(slots=True)
class Tensor:
    """As the server reads it."""

    id: int
    kind: int
    buffer: int
    ne: tuple[int, ...]
    nb: tuple[int, ...]
    op: int
    param: int
    sources: tuple[int, ...]
    view: int
    data: int


def read_tensor(body: bytes, at: int) -> Tensor:
    """The rpc_tensor at `at`."""
    one = TENSOR.unpack_from(body, at)
    return Tensor(one[0], one[1], one[2], one[3:7], one[7:11], one[11], one[12], one[29:39], one[39], one[41])


FEATURES = reduce(or_, (bits for name, bits in vars(rpc).items() if name.startswith("FEATURE_")))


@dataclass(slots=True)
class World:
    """What the server has given to this connection, as its answers said."""

    memory: int
    features: int = 0
    greeted: bool = False
    named: bool = False
    buffers: dict[int, tuple[int, int]] = field(default_factory=dict)  # handle: start (0: not told), bytes
    asked: int = 0  # bytes of buffers that were asked for and not answered
    asked_count: int = 0
    neighbours: set[int] = field(default_factory=set)
    graphs: set[int] = field(default_factory=set)

    def extent(self, tensor: Tensor, *, lies: bool) -> int:
        """Bytes from its first to its last; all of them in a buffer of this connection."""
        need(tensor.kind in TENSOR_TYPES, "a type that ggml has")
        layout = TENSOR_TYPES[tensor.kind]
        need(tensor.ne[0] % layout.block_elements == 0, "rows of whole blocks")
        empty = 0 in tensor.ne
        last = (tensor.ne[0] // layout.block_elements - 1) * tensor.nb[0] + layout.block_bytes
        last += sum((ne - 1) * nb for ne, nb in zip(tensor.ne[1:], tensor.nb[1:], strict=True))
        size = 0 if empty else last
        if not tensor.buffer:
            need(not lies and not tensor.data, "no address without a buffer")
            return size
        need(tensor.buffer in self.buffers, "a buffer of this connection")
        start, room = self.buffers[tensor.buffer]
        need(start > 0 or not room, "an address that was told")
        need(start <= tensor.data and tensor.data + size <= start + room, "all of it in its buffer")
        return size

    def judge(self, number: int, body: bytes, size: int) -> None:
        """One request that was let through; of `size` bytes, of which data to be set may not be there yet.

        Raises Broken.
        """
        need(number in rpc.COMMANDS, "a command that is listed")
        command = rpc.COMMANDS[number]
        need(self.greeted or number == rpc.HELLO, "HELLO first")
        need(not command.feature & ~self.features, "a feature that both have")
        need(command.least <= size <= max(command.least, command.most), "a size that it may have")
        need(len(body) == size or bool(command.held), "all of it is there before any goes on")
        if number in (rpc.SET_TENSOR, rpc.SET_TENSOR_F16):
            self._set(number, body, size)
            return
        rule = getattr(self, f"_{command.name.lower()}", None)
        if rule is not None:
            rule(body)

    # Each command.

    def _hello(self, body: bytes) -> None:
        need(not self.greeted, "HELLO once")
        need(not any(body[: rpc.CAPS_OWN]), "TCP only")
        self.greeted = True

    def _room(self, size: int) -> None:
        need(len(self.buffers) + self.asked_count < MOST_BUFFERS, "few buffers")
        held = sum(room for _, room in self.buffers.values()) + self.asked
        need(size <= 1 << 44 and held + size <= self.memory, "no more memory than was lent")

    def _alloc_buffer(self, body: bytes) -> None:
        size = int.from_bytes(body[4:12], "little")
        self._room(size)
        self.asked += size
        self.asked_count += 1

    def _alloc_buffer_as(self, body: bytes) -> None:
        size, handle = struct.unpack_from("<QQ", body, 8)
        self._room(size)
        need(handle % (1 << 44) == 0 and 0 < handle >> 44 < 1 << 18, "a handle that clients may choose")
        need(handle not in self.buffers, "a handle that is free")
        self.buffers[handle] = (handle, size)

    def _own(self, body: bytes) -> int:
        handle = int.from_bytes(body[:8], "little")
        need(handle in self.buffers, "a buffer of this connection")
        return handle

    def _buffer_get_base(self, body: bytes) -> None:
        self._own(body)

    def _buffer_clear(self, body: bytes) -> None:
        self._own(body)

    def _free_buffer(self, body: bytes) -> None:
        self.forget(self._own(body))

    def forget(self, handle: int) -> None:
        """The buffer is gone, and what was to be computed in it."""
        del self.buffers[handle]
        self.graphs.clear()

    def _set(self, number: int, body: bytes, size: int) -> None:
        offset = int.from_bytes(body[297:305], "little")
        if number == rpc.SET_TENSOR_F16:
            self._half(body, offset, size - 305)
        else:
            need(offset + size - 305 <= self.extent(read_tensor(body, 0), lies=True), "within the tensor")

    def _set_tensor_hash(self, body: bytes) -> None:
        offset = int.from_bytes(body[296:304], "little")
        need(offset <= self.extent(read_tensor(body, 0), lies=True), "within the tensor")

    def _region(self, body: bytes) -> int:
        offset, size = struct.unpack_from("<QQ", body, 296)
        need(offset + size <= self.extent(read_tensor(body, 0), lies=True), "within the tensor")
        return int(size)

    def _get_tensor(self, body: bytes) -> None:
        self._region(body)

    def _memset_tensor(self, body: bytes) -> None:
        self._region(body)

    def _half(self, body: bytes, offset: int, size: int) -> None:
        """All of a tensor of F32 without gaps: of each row a word for its exponent, one for each value."""
        tensor = read_tensor(body, 0)
        need(tensor.kind == 0 and 0 not in tensor.ne and tensor.ne[0] <= 1 << 20, "F32 that has rows")
        dense = 4
        for ne, nb in zip(tensor.ne, tensor.nb, strict=True):
            need(ne == 1 or nb == dense & 0xFFFFFFFF, "no gaps")
            dense *= ne
        need(
            not offset and size == 2 * (tensor.ne[0] + 1) * (dense // 4 // tensor.ne[0]), "all its half rows"
        )
        self.extent(tensor, lies=True)

    def _get_tensor_f16(self, body: bytes) -> None:
        self._half(body, *struct.unpack_from("<QQ", body, 296))

    def _push(self, body: bytes) -> None:
        size = self._region(body)
        number, zero = struct.unpack_from("<II", body, 320)
        need(number in self.neighbours and not zero, "a neighbour that was confirmed")
        need(size <= (64 << 20) - 8, "one message of a server to the next")

    def _push_tensor(self, body: bytes) -> None:
        self._push(body)

    def _push_tensor_f16(self, body: bytes) -> None:
        self._push(body)
        self._half(body, *struct.unpack_from("<QQ", body, 296))

    def _take_tensor(self, body: bytes) -> None:
        need(self.named, "PEER_SESSION first")
        need(self._region(body) <= (64 << 20) - 8, "one message of a server to the next")

    def _take_tensor_f16(self, body: bytes) -> None:
        self._take_tensor(body)
        self._half(body, *struct.unpack_from("<QQ", body, 296))

    def _peer_session(self, _body: bytes) -> None:
        need(not self.named, "PEER_SESSION once")
        self.named = True

    def _peer_check(self, body: bytes) -> None:
        number, zero = struct.unpack_from("<II", body)
        need(number <= 65_535 and not zero, "a number that neighbours have")

    def _copy_tensor(self, body: bytes) -> None:
        one, other = (self.extent(read_tensor(body, at), lies=True) for at in (0, 296))
        need(one == other, "two of one size")

    def _init_tensor(self, body: bytes) -> None:
        self.extent(read_tensor(body, 0), lies=True)

    def _get_alloc_size(self, body: bytes) -> None:
        for at in range(4, len(body), 296):
            self.extent(read_tensor(body, at), lies=False)

    def _set_tensor_gguf(self, body: bytes) -> None:
        need(len(body) == 8 + 140 * int.from_bytes(body[:4], "little"), "as many entries as it says")
        for at in range(8, len(body), 140):
            buffer, data, size, kind, *ne = struct.unpack_from("<QQQI4I", body, at)
            need(kind in TENSOR_TYPES and buffer in self.buffers, "a type and a buffer that there are")
            layout = TENSOR_TYPES[kind]
            need(ne[0] % layout.block_elements == 0, "rows of whole blocks")
            need(
                size == ne[0] // layout.block_elements * layout.block_bytes * ne[1] * ne[2] * ne[3] > 0,
                "the size of its shape",
            )
            start, room = self.buffers[buffer]
            need(0 < start <= data and data + size <= start + room, "all of it in its buffer")

    def _supported_ops(self, body: bytes) -> None:
        _, count, total, _ = struct.unpack_from("<4I", body)
        need(len(body) == 16 + 72 * count + 36 * total, "as many as it says")
        wanted = count
        for at in range(16, 16 + 72 * count, 72):
            sources = int.from_bytes(body[at + 4 : at + 8], "little")
            need(sources < 1 << 10, "ten sources at most")
            wanted += sources.bit_count()
        need(wanted == total, "a tensor for each")

    def _graph_recompute(self, body: bytes) -> None:
        need(int.from_bytes(body[:4], "little") in self.graphs, "a graph that was computed")

    def _graph_compute(self, body: bytes) -> None:
        device, count = struct.unpack_from("<II", body)
        (total,) = struct.unpack_from("<I", body, 8 + 8 * count)
        need(count > 0 and len(body) == 12 + 8 * count + 296 * total, "as many as it says")
        nodes = set(struct.unpack_from(f"<{count}Q", body, 8))
        there: dict[int, Tensor] = {}
        for at in range(12 + 8 * count, len(body), 296):
            tensor = read_tensor(body, at)
            need(tensor.id != 0 and tensor.id not in there, "an id of its own")
            sources = list(tensor.sources)
            if tensor.op == 34 and sources[1] == tensor.id:
                sources[1] = 0
            need(all(one == 0 or one in there for one in (*sources, tensor.view)), "sources before it")
            need(tensor.op in rpc.OPERATIONS, "an operation that is listed")
            self.extent(tensor, lies=False)
            there[tensor.id] = tensor
            if tensor.id in nodes and not 36 <= tensor.op <= 39:
                needed = tensor.sources[: rpc.OPERATIONS[tensor.op]]
                need(0 not in needed, "the sources that it needs")
                touched = [tensor, *(there[one] for one in tensor.sources if one)]
                need(all(one.data or 0 in one.ne for one in touched), "all that is computed lies somewhere")
                need(tensor.op != 91 or tensor.param < 22, "a kind of UNARY")
                need(tensor.op != 100 or tensor.param < 7, "a kind of GLU")
        need(nodes <= there.keys(), "nodes that are there")
        self.graphs.add(device)
