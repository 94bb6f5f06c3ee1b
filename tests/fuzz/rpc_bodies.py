"""Bodies of requests as a head makes them, for buffers that its server has given it."""

import random
import struct
from collections.abc import Callable, Mapping

from meshd.model.ggml import TENSOR_TYPES
from meshd.rpc import protocol as rpc

from tests.fuzz.rpc_oracle import TENSOR, World, read_tensor

MOST_ASKED = 1 << 20  # for one buffer
ROOM = 64  # bytes of a buffer in which tensors are put
_KINDS = tuple(TENSOR_TYPES)
_NODES = tuple(op for op in rpc.OPERATIONS if op)


class Bodies:
    """Composes from what `world` has. `offered`: features that HELLO names; `given`: buffers so far."""

    def __init__(self, rng: random.Random, world: World, *, offered: int) -> None:
        self.rng = rng
        self.world = world
        self.offered = offered
        self.given = 0

    def of(self, number: int) -> bytearray:
        """A good one, where there can be one now; of a command without a composer its least size."""
        compose = COMPOSERS.get(number)
        if compose is None:
            return bytearray(self.rng.randbytes(rpc.COMMANDS[number].least))
        return bytearray(compose(self))

    def _tensor(
        self, identity: int = 1, *, op: int = 0, sources: tuple[int, ...] = (), plain: bool = False
    ) -> bytes:
        """In one of the buffers, if there is one: of any type, dense or with gaps."""
        rng = self.rng
        places = [
            (handle, *place) for handle, place in self.world.buffers.items() if place[0] and place[1] >= ROOM
        ]
        if not places:
            return TENSOR.pack(identity, 0, 0, 4, 1, 1, 1, 4, 16, 16, 16, *([0] * 31), 0)
        handle, start, room = rng.choice(places)
        kind = 0 if plain else rng.choice((0, 0, 1, *_KINDS))
        layout = TENSOR_TYPES[kind]
        blocks, rows, planes = rng.randint(1, 4), rng.randint(1, 3), rng.randint(1, 2)
        row = blocks * layout.block_bytes
        gap = 0 if plain or rng.random() < 0.8 else 4 * rng.randint(1, 8)
        nb = (layout.block_bytes, row + gap, (row + gap) * rows, (row + gap) * rows * planes)
        size = (row + gap) * rows * planes
        if size > room:
            kind, nb, blocks, rows, planes, size = 0, (4, 4, 4, 4), 1, 1, 1, 4
            layout = TENSOR_TYPES[0]
        data = start + 4 * rng.randrange((room - size) // 4 + 1) if room >= size else start
        ne = (blocks * layout.block_elements, rows, planes, 1)
        params = [rng.randrange(7)] + [0] * 15
        every = (*sources, *([0] * (10 - len(sources))))
        return TENSOR.pack(identity, kind, handle, *ne, *nb, op, *params, 16, *every, 0, 0, data, 1)

    def _extent(self, tensor: bytes) -> int:
        return self.world.extent(read_tensor(tensor, 0), lies=False)

    def _part(self, tensor: bytes) -> tuple[int, int]:
        """An offset and a size within it."""
        size = self._extent(tensor)
        offset = self.rng.randrange(size + 1)
        return offset, self.rng.randrange(size - offset + 1)

    def _hello(self) -> bytes:
        return bytes(20) + rpc.EXTENSION_MAGIC + struct.pack("<H", self.offered)

    def _alloc(self) -> bytes:
        return struct.pack("<IQ", 0, self.rng.choice((0, 64, 4096, 4096, MOST_ASKED)))

    def _alloc_as(self) -> bytes:
        self.given += 1
        while self.given * rpc.HANDLE_SPACE in self.world.buffers:  # a broken one has taken it
            self.given += 1
        size = self.rng.choice((0, 64, 4096, MOST_ASKED))
        return struct.pack("<IIQQ", 0, 0, size, self.given * rpc.HANDLE_SPACE)

    def _device(self) -> bytes:
        return bytes(4)

    def _handle(self) -> bytes:
        handles = list(self.world.buffers)
        return struct.pack("<Q", self.rng.choice(handles) if handles else 77)

    def _set(self) -> bytes:
        tensor = self._tensor()
        offset, size = self._part(tensor)
        return tensor + struct.pack("<BQ", 0, offset) + bytes(size)

    def _set_hash(self) -> bytes:
        tensor = self._tensor()
        return tensor + struct.pack("<QQ", self._part(tensor)[0], 99)

    def _get(self) -> bytes:
        tensor = self._tensor()
        return tensor + struct.pack("<QQ", *self._part(tensor))

    def _copy(self) -> bytes:
        tensor = self._tensor()
        return tensor + tensor

    def _alloc_size(self) -> bytes:
        return bytes(4) + b"".join(self._tensor(at) for at in range(1, 12))

    def _graph(self) -> bytes:
        rng = self.rng
        leaves = rng.randint(1, 4)
        tensors = [self._tensor(at) for at in range(1, leaves + 1)]
        nodes = []
        for identity in range(leaves + 1, leaves + 1 + rng.randint(1, 6)):
            op = rng.choice(_NODES)
            count = rng.randint(rpc.OPERATIONS[op], 10)
            sources = tuple(rng.randrange(1, identity) for _ in range(count))
            tensors.append(self._tensor(identity, op=op, sources=sources))
            nodes.append(identity)
        head = struct.pack(f"<II{len(nodes)}Q", rng.randrange(2), len(nodes), *nodes)
        return head + struct.pack("<I", len(tensors)) + b"".join(tensors)

    def _recompute(self) -> bytes:
        return struct.pack("<I", next(iter(self.world.graphs), 9))

    def _load(self) -> bytes:
        entries = []
        for _ in range(self.rng.randint(0, 3)):
            tensor = self._tensor(plain=True)
            kind, buffer, *ne = struct.unpack_from("<IQ4I", tensor, 8)
            (data,) = struct.unpack_from("<Q", tensor, 220)
            size = 4 * ne[0] * ne[1] * ne[2] * ne[3]
            entries.append(struct.pack("<QQQI4I", buffer, data, size, kind, *ne) + bytes(96))
        return struct.pack("<II", len(entries), 0) + b"".join(entries)

    def _ask(self) -> bytes:
        entries, total = [], 0
        for _ in range(self.rng.randint(0, 4)):
            sources = self.rng.randrange(1 << 10)
            total += 1 + sources.bit_count()
            entries.append(struct.pack("<II", self.rng.randrange(120), sources) + bytes(64))
        head = struct.pack("<4I", 0, len(entries), total, 0)
        return head + b"".join(entries) + bytes(36) * total

    def _check(self) -> bytes:
        return struct.pack("<II", self.rng.randrange(4), 0) + bytes(16)

    def _push(self) -> bytes:
        tensor = self._tensor()
        number = self.rng.choice(list(self.world.neighbours) or [0])
        return tensor + struct.pack("<QQQII", *self._part(tensor), 77, number, 0)

    def _take(self) -> bytes:
        tensor = self._tensor()
        return tensor + struct.pack("<QQQ", *self._part(tensor), 77)

    def _half_bytes(self, tensor: bytes) -> int:
        ne = struct.unpack_from("<4I", tensor, 20)
        return int(2 * (ne[0] + 1) * ne[1] * ne[2] * ne[3])

    def _set_half(self) -> bytes:
        tensor = self._tensor(plain=True)
        return tensor + struct.pack("<BQ", 0, 0) + bytes(self._half_bytes(tensor))

    def _get_half(self) -> bytes:
        tensor = self._tensor(plain=True)
        return tensor + struct.pack("<QQ", 0, self._half_bytes(tensor))

    def _push_half(self) -> bytes:
        tensor = self._tensor(plain=True)
        number = next(iter(self.world.neighbours), 0)
        return tensor + struct.pack("<QQQII", 0, self._half_bytes(tensor), 77, number, 0)

    def _take_half(self) -> bytes:
        tensor = self._tensor(plain=True)
        return tensor + struct.pack("<QQQ", 0, self._half_bytes(tensor), 77)


COMPOSERS: Mapping[int, Callable[[Bodies], bytes]] = {
    rpc.HELLO: Bodies._hello,
    rpc.ALLOC_BUFFER: Bodies._alloc,
    rpc.ALLOC_BUFFER_AS: Bodies._alloc_as,
    rpc.GET_ALIGNMENT: Bodies._device,
    rpc.GET_MAX_SIZE: Bodies._device,
    rpc.GET_DEVICE_MEMORY: Bodies._device,
    rpc.BUFFER_GET_BASE: Bodies._handle,
    rpc.FREE_BUFFER: Bodies._handle,
    rpc.BUFFER_CLEAR: lambda it: it._handle() + b"\0",
    rpc.SET_TENSOR: Bodies._set,
    rpc.SET_TENSOR_HASH: Bodies._set_hash,
    rpc.GET_TENSOR: Bodies._get,
    rpc.MEMSET_TENSOR: lambda it: it._get() + b"\7",
    rpc.COPY_TENSOR: Bodies._copy,
    rpc.GRAPH_COMPUTE: Bodies._graph,
    rpc.GRAPH_RECOMPUTE: Bodies._recompute,
    rpc.INIT_TENSOR: lambda it: it._tensor(),
    rpc.GET_ALLOC_SIZE: Bodies._alloc_size,
    rpc.SET_TENSOR_GGUF: Bodies._load,
    rpc.SUPPORTED_OPS: Bodies._ask,
    rpc.PEER_CHECK: Bodies._check,
    rpc.PUSH_TENSOR: Bodies._push,
    rpc.TAKE_TENSOR: Bodies._take,
    rpc.SET_TENSOR_F16: Bodies._set_half,
    rpc.GET_TENSOR_F16: Bodies._get_half,
    rpc.PUSH_TENSOR_F16: Bodies._push_half,
    rpc.TAKE_TENSOR_F16: Bodies._take_half,
}
