"""Messages of llama.cpp's RPC protocol, true or broken, and a talk through a firewall."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from meshd.rpc import protocol as rpc
from meshd.rpc.firewall import Firewall
from meshd.rpc.missed_tensors import TensorKeeping

FEATURES = reduce(or_, (bits for name, bits in vars(rpc).items() if name.startswith("FEATURE_")))
F32, F16, Q4_0, I32 = 0, 1, 2, 26
ADD, MUL_MAT, VIEW = 2, 29, 37
COMPUTE = 16  # of flags
HANDLE, BASE, ROOM = 0xABC0, 0x10000, 4096


def caps(features: int) -> bytes:
    """conn_caps of HELLO that announce these."""
    return bytes(20) + rpc.EXTENSION_MAGIC + struct.pack("<H", features)


CAPS = caps(rpc.FEATURE_LOAD | rpc.FEATURE_PUSH)
SESSION = bytes(range(16))
ASKING = caps(FEATURES & ~(rpc.FEATURE_INFO | rpc.FEATURE_ALLOC))  # without tables behind HELLO
HALF_BYTES = 10  # of a row of 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """An rpc_tensor: 4 floats at the beginning of the buffer, unless it says otherwise."""

    id: int = 1
    kind: int = F32
    buffer: int = HANDLE
    ne: tuple[int, int, int, int] = (4, 1, 1, 1)
    nb: tuple[int, int, int, int] = (4, 16, 16, 16)
    op: int = 0
    param: int = 0
    params: tuple[int, ...] = ()  # those behind the first
    flags: int = 0  # without COMPUTE a node is judged and then left out
    sources: tuple[int, ...] = ()
    view: int = 0
    view_offset: int = 0
    data: int = BASE

    def encode(self) -> bytes:
        sources = [*self.sources, *([0] * (rpc.MAX_SOURCES - len(self.sources)))]
        head = struct.pack("<QIQ4I4II", self.id, self.kind, self.buffer, *self.ne, *self.nb, self.op)
        params = [self.param, *self.params, *([0] * (15 - len(self.params)))]
        head += struct.pack("<16Ii", *params, self.flags) + struct.pack("<10Q", *sources)
        view = struct.pack("<QQQ", self.view, self.view_offset, self.data)
        return head + view + b"name".ljust(64, b"\0") + bytes(4)


def request(command: int, body: bytes = b"") -> bytes:
    return rpc.REQUEST.pack(command, len(body)) + body


def answer(body: bytes) -> bytes:
    return rpc.ANSWER.pack(len(body)) + body


def hello(announced: bytes = CAPS) -> bytes:
    return request(rpc.HELLO, announced)


def hello_answer(announced: bytes = CAPS) -> bytes:
    return answer(b"\x07\0\0\0" + announced)


def alloc(size: int = ROOM) -> bytes:
    return request(rpc.ALLOC_BUFFER, struct.pack("<IQ", 0, size))


def alloc_as(handle: int, size: int = ROOM) -> bytes:
    return request(rpc.ALLOC_BUFFER_AS, struct.pack("<IIQQ", 0, 0, size, handle))


def on_buffer(command: int, handle: int = HANDLE) -> bytes:
    return request(command, struct.pack("<Q", handle) + b"\0" * (command == rpc.BUFFER_CLEAR))


def set_tensor(tensor: Tensor, data: bytes = bytes(16), *, offset: int = 0) -> bytes:
    return request(rpc.SET_TENSOR, tensor.encode() + struct.pack("<BQ", 0, offset) + data)


def get_tensor(tensor: Tensor, *, offset: int = 0, size: int = 16) -> bytes:
    return request(rpc.GET_TENSOR, tensor.encode() + struct.pack("<QQ", offset, size))


def memset(tensor: Tensor, *, offset: int = 0, size: int = 16) -> bytes:
    return request(rpc.MEMSET_TENSOR, tensor.encode() + struct.pack("<QQB", offset, size, 7))


def set_hash(tensor: Tensor, *, offset: int = 0) -> bytes:
    return request(rpc.SET_TENSOR_HASH, tensor.encode() + struct.pack("<QQ", offset, 99))


def copy(source: Tensor, target: Tensor) -> bytes:
    return request(rpc.COPY_TENSOR, source.encode() + target.encode())


def init(tensor: Tensor) -> bytes:
    return request(rpc.INIT_TENSOR, tensor.encode())


def alloc_size(tensor: Tensor, sources: Sequence[Tensor] = ()) -> bytes:
    body = b"".join(source.encode() for source in sources)
    blank = bytes(rpc.TENSOR_BYTES * (rpc.MAX_SOURCES - len(sources)))
    return request(rpc.GET_ALLOC_SIZE, bytes(4) + tensor.encode() + body + blank)


def graph(
    tensors: Iterable[Tensor], nodes: Sequence[int], *, device: int = 0, count: int = -1, total: int = -1
) -> bytes:
    """`count` and `total` lie about the numbers of nodes and tensors."""
    encoded = [tensor.encode() for tensor in tensors]
    body = struct.pack("<II", device, len(nodes) if count < 0 else count)
    body += struct.pack(f"<{len(nodes)}Q", *nodes)
    return request(
        rpc.GRAPH_COMPUTE,
        body + struct.pack("<I", len(encoded) if total < 0 else total) + b"".join(encoded),
    )


def recompute(device: int = 0) -> bytes:
    return request(rpc.GRAPH_RECOMPUTE, struct.pack("<I", device))


def load_entry(
    *,
    buffer: int = HANDLE,
    data: int = BASE,
    size: int = 16,
    kind: int = F32,
    ne: tuple[int, int, int, int] = (4, 1, 1, 1),
    digest: bytes = bytes(32),
) -> bytes:
    return struct.pack("<QQQI4I", buffer, data, size, kind, *ne) + digest + bytes(64)


def load(*entries: bytes, count: int = -1) -> bytes:
    head = struct.pack("<II", len(entries) if count < 0 else count, 0)
    return request(rpc.SET_TENSOR_GGUF, head + b"".join(entries))


def check(number: int = 1, *, zero: int = 0, session: bytes = SESSION) -> bytes:
    return request(rpc.PEER_CHECK, struct.pack("<II", number, zero) + session)


def push(tensor: Tensor, *, offset: int = 0, size: int = 16, number: int = 1, zero: int = 0) -> bytes:
    return request(rpc.PUSH_TENSOR, tensor.encode() + struct.pack("<QQQII", offset, size, 77, number, zero))


def take(tensor: Tensor, *, offset: int = 0, size: int = 16) -> bytes:
    return request(rpc.TAKE_TENSOR, tensor.encode() + struct.pack("<QQQ", offset, size, 77))


def set_half(tensor: Tensor, data: bytes = bytes(HALF_BYTES), *, offset: int = 0) -> bytes:
    return request(rpc.SET_TENSOR_F16, tensor.encode() + struct.pack("<BQ", 0, offset) + data)


def get_half(tensor: Tensor, *, offset: int = 0, size: int = HALF_BYTES) -> bytes:
    return request(rpc.GET_TENSOR_F16, tensor.encode() + struct.pack("<QQ", offset, size))


def push_half(tensor: Tensor, *, offset: int = 0, size: int = HALF_BYTES, number: int = 1) -> bytes:
    body = struct.pack("<QQQII", offset, size, 77, number, 0)
    return request(rpc.PUSH_TENSOR_F16, tensor.encode() + body)


def take_half(tensor: Tensor, *, offset: int = 0, size: int = HALF_BYTES) -> bytes:
    return request(rpc.TAKE_TENSOR_F16, tensor.encode() + struct.pack("<QQQ", offset, size, 77))


def session(name: bytes = SESSION) -> bytes:
    return request(rpc.PEER_SESSION, name)


def peer_hello(name: bytes = SESSION) -> bytes:
    return request(rpc.PEER_HELLO, name)


def peer_data(data: bytes = bytes(16), *, token: int = 77) -> bytes:
    return request(rpc.PEER_DATA, struct.pack("<Q", token) + data)


def asked_op(operation: int, sources: int) -> bytes:
    """The entry of a question; `sources` has a bit for each."""
    return struct.pack("<II", operation, sources) + bytes(64)


def asked_tensor(ne: Sequence[int] = (4, 1, 1, 1)) -> bytes:
    return struct.pack("<I4I4I", F32, *ne, 4, 16, 16, 16)


def ask_ops(*entries: bytes, tensors: int, count: int = -1, total: int = -1) -> bytes:
    """`count` and `total` lie about the numbers of operations and tensors."""
    head = struct.pack("<4I", 0, len(entries) if count < 0 else count, tensors if total < 0 else total, 0)
    return request(rpc.SUPPORTED_OPS, head + b"".join(entries) + asked_tensor() * tensors)


A, B = Tensor(id=1), Tensor(id=2, data=BASE + 16)
SUM = Tensor(id=3, op=ADD, sources=(1, 2), data=BASE + 32)
GRAPH = graph((A, B, SUM), (3,))


class Talk:
    """A connection that has said HELLO and has one buffer of ROOM bytes at BASE."""

    def __init__(self, keeping: TensorKeeping | None = None, *, announced: bytes = ASKING) -> None:
        self.firewall = Firewall(keeping=keeping)
        self.say(hello(announced))
        self.hear(hello_answer(announced))
        self.say(alloc())
        self.hear(answer(struct.pack("<QQ", HANDLE, ROOM)))
        self.say(on_buffer(rpc.BUFFER_GET_BASE))
        self.hear(answer(struct.pack("<Q", BASE)))

    def say(self, data: bytes) -> bytes:
        """What goes on to the server."""
        return bytes(self.firewall.from_peer(data))

    def hear(self, data: bytes) -> bytes:
        """What goes on to the client."""
        return bytes(self.firewall.to_peer(data))
