"""Where tensors of the wire lie: in which buffer, how many bytes, within it or not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshd.base.errors import RemoteProtocolError
from meshd.model.ggml import F32, TENSOR_TYPES
from meshd.rpc.protocol import LOAD_ENTRY, MAX_HALF_ROW, PLACE

TYPES: Mapping[int, tuple[int, int]] = {
    number: (kind.block_elements, kind.block_bytes) for number, kind in TENSOR_TYPES.items()
}
MOST_ELEMENTS = 1 << 40  # of a tensor without a place, or an empty one: a kernel may count them


@dataclass(frozen=True, slots=True)
class Buffer:
    """Addresses as the server told them; `start` 0: it has not told yet."""

    size: int
    start: int = 0


Buffers = Mapping[int, Buffer]
MAX_REMEMBERED = 512


class Remembered(dict[bytes, int]):
    """What was found of tensors, by their bytes on the wire: those of every token, and then some."""

    def keep(self, key: bytes, value: int) -> None:
        """At most MAX_REMEMBERED; then it begins anew."""
        if len(self) >= MAX_REMEMBERED:
            self.clear()
        self[key] = value


def refused(why: str) -> RemoteProtocolError:
    """The error for a request that may not go on."""
    return RemoteProtocolError(why, code="rpc")


def find(handle: int, buffers: Buffers) -> Buffer:
    """Raises RemoteProtocolError for a handle that this connection was not given, or has given back."""
    buffer = buffers.get(handle)
    if buffer is None:
        raise refused("a buffer that this connection does not have")
    return buffer


def place(
    kind: int, handle: int, shape: Sequence[int], data: int, buffers: Buffers, *, view: bool = False
) -> int:
    """Bytes from the first to behind the last element, as ggml_nbytes counts them.

    `shape` is ne and nb. All of it lies in the buffer; so does a contiguous tensor of this shape, for kernels
    that pass over strides; of a `view`, which only others read, such a one need not begin here. Without
    a buffer there is no address either. Raises RemoteProtocolError.
    """
    ne0, ne1, ne2, ne3, nb0, nb1, nb2, nb3 = shape
    try:
        block, block_bytes = TYPES[kind]
    except KeyError:
        raise refused(f"a tensor of the unknown type {kind}") from None
    dense = ne0 * ne1 * ne2 * ne3
    if block == 1:
        dense *= block_bytes
        size = block_bytes + (ne0 - 1) * nb0 + (ne1 - 1) * nb1 + (ne2 - 1) * nb2 + (ne3 - 1) * nb3
    elif ne0 % block or (nb0 != block_bytes and dense):
        raise refused("a row that is not whole blocks of its type")
    else:
        dense = dense // block * block_bytes
        size = ne0 // block * nb0 + (ne1 - 1) * nb1 + (ne2 - 1) * nb2 + (ne3 - 1) * nb3
    if not dense:
        size = 0
        if (ne0 or 1) * (ne1 or 1) * (ne2 or 1) * (ne3 or 1) > MOST_ELEMENTS:
            raise refused("an empty tensor of an impossible shape")
    if not handle:
        if data:
            raise refused("an address without a buffer")
        if dense > MOST_ELEMENTS:
            raise refused("a tensor of an impossible shape")
        return size
    buffer = find(handle, buffers)
    start = buffer.start
    if not start and buffer.size:
        raise refused("a buffer whose address was not asked for")
    room = start + buffer.size - data
    if data < start or size > room or dense > (buffer.size if view else room):
        raise refused("a tensor outside its buffer")
    return size


def dense_strides(kind: int, ne: Sequence[int]) -> tuple[int, int, int, int]:
    """nb of a contiguous tensor of a known type, as an rpc_tensor has them: 32 bits of each."""
    block, block_bytes = TYPES[kind]
    row = ne[0] // block * block_bytes
    mask = 0xFFFFFFFF
    return block_bytes, row & mask, row * ne[1] & mask, row * ne[1] * ne[2] & mask


def place_of(message: bytes | memoryview, at: int, buffers: Buffers, *, must_lie: bool = False) -> int:
    """Bytes of the rpc_tensor at `at`; `must_lie` in a buffer. Raises RemoteProtocolError."""
    kind, handle, *shape, data = PLACE.unpack_from(message, at)
    if must_lie and not handle:
        raise refused("a tensor without a buffer")
    return place(kind, handle, shape, data, buffers, view=True)


def check_half_rows(message: bytes | memoryview, at: int, offset: int, size: int) -> None:
    """All of the rpc_tensor at `at`, which is F32 without gaps, as `size` bytes of half rows.

    That is never more than the tensor has itself. Raises RemoteProtocolError.
    """
    kind, _handle, *shape, _data = PLACE.unpack_from(message, at)
    ne = shape[:4]
    if kind != F32 or 0 in ne or ne[0] > MAX_HALF_ROW:
        raise refused("a tensor that has no half rows")
    layout = zip(ne, shape[4:], dense_strides(kind, ne), strict=True)
    if any(count != 1 and stride != dense for count, stride, dense in layout):
        raise refused("half rows of a tensor with gaps")
    if offset or size != 2 * (ne[0] + 1) * ne[1] * ne[2] * ne[3]:
        raise refused("another part of a tensor than all of its half rows")


def check_load_entry(message: bytes | memoryview, at: int, buffers: Buffers) -> None:
    """An entry of SET_TENSOR_GGUF: contiguous, and exactly its size. Raises RemoteProtocolError."""
    handle, data, size, kind, *ne = LOAD_ENTRY.unpack_from(message, at)
    find(handle, buffers)
    block, block_bytes = TYPES.get(kind, (1, 0))
    place(kind, handle, (*ne, block_bytes, 0, 0, 0), data, buffers)
    if size != ne[0] // block * block_bytes * ne[1] * ne[2] * ne[3] or not size:
        raise refused("a tensor of another size than its shape")
