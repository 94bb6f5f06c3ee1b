"""Graphs of the mesh-server protocol: known types and operations, sources before them, all in its buffer.

As native/mesh checks them in layout.cpp and graphs.cpp. What shapes an operation takes, and where its result
may overlap a source, is checked there alone.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshd.model.ggml import TENSOR_TYPE_NAMES
from meshd.rpc import mesh_protocol as wire
from meshd.rpc.frames import refused

MAX_DENSE = 1 << 47  # bytes of a tensor; far above any buffer
MAX_ROWS = (1 << 31) - 1 - 65536  # kernels count rows, and elements of a row, as int
_NOTHING = {"NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"}  # these compute nothing
_COMPUTES = tuple(operation.name not in _NOTHING for operation in wire.OPERATIONS)
_BLOCKS = tuple(
    (kind.block_elements, kind.block_bytes)
    for kind in (TENSOR_TYPE_NAMES[name.lower()] for name in wire.TYPES)
)
_SOURCES = slice(29, 39)  # fields of a TENSOR
_FIRST_PARAMETER = 13


@dataclass(frozen=True, slots=True)
class Offered:
    """What a worker said in WELCOME: how many devices, and numbers of the rest."""

    devices: int
    operations: frozenset[int]
    types: frozenset[int]
    neighbours: frozenset[int]


def check_inside(buffers: Mapping[int, int], buffer: int, offset: int, size: int) -> None:
    """Those bytes are in a buffer that there is. Raises RemoteProtocolError."""
    room = buffers.get(buffer)
    if room is None:
        raise refused(f"buffer {buffer}, which there is not")
    if offset + size > room:
        raise refused(f"bytes behind the end of buffer {buffer}")


def type_layout(kind: int, offered: Offered) -> tuple[int, int]:
    """Elements and bytes of a block of this type. Raises RemoteProtocolError."""
    if kind not in offered.types or kind >= len(_BLOCKS):
        raise refused(f"type {kind}, which the worker does not have")
    return _BLOCKS[kind]


def check_graph(
    body: memoryview, node_count: int, tensor_count: int, buffers: Mapping[int, int], offered: Offered
) -> None:
    """The lists of a GRAPH. Raises RemoteProtocolError."""
    if not 0 < node_count <= tensor_count <= wire.GRAPH_TENSORS:
        raise refused(f"{node_count} nodes of {tensor_count} tensors")
    if len(body) != 4 * node_count + wire.TENSOR.size * tensor_count:
        raise refused(f"{node_count} nodes and {tensor_count} tensors in {len(body)} bytes")
    nodes = struct.unpack_from(f"<{node_count}I", body)
    tensors: list[tuple[int, ...]] = []
    for fields in wire.TENSOR.iter_unpack(body[4 * node_count :]):
        tensors.append(fields)
        _check_tensor(len(tensors), fields, buffers, offered)
    if len(set(nodes)) != node_count:
        raise refused("a node that is there twice")
    for node in nodes:
        if node >= tensor_count:
            raise refused("a node that is no tensor of its graph")
        _check_node(tensors[node], tensors)


def _check_tensor(own: int, fields: tuple[int, ...], buffers: Mapping[int, int], offered: Offered) -> None:
    """A tensor that is number `own`, from 1."""
    buffer, kind, offset = fields[:3]
    span, dense = _layout(type_layout(kind, offered), fields[3:7], fields[7:11])
    if buffer:
        check_inside(buffers, buffer, offset, span)
        if dense > buffers[buffer]:
            raise refused("a tensor that is larger than its buffer")
    if max(fields[_SOURCES]) > own or fields[39] > own:
        raise refused("a tensor whose source is behind it")
    if fields[39] == own:
        raise refused("a tensor that is a view of itself")
    operation = fields[11]
    if operation not in offered.operations or operation >= len(wire.OPERATIONS):
        raise refused(f"operation {operation}, which the worker does not have")
    kinds = wire.OPERATIONS[operation].kinds
    if kinds and not 0 <= fields[_FIRST_PARAMETER] < len(kinds):
        raise refused(f"{wire.OPERATIONS[operation].name} of kind {fields[_FIRST_PARAMETER]}")


def _check_node(node: tuple[int, ...], tensors: Sequence[tuple[int, ...]]) -> None:
    """What is computed: it has the sources that it needs, and all that it touches lies somewhere."""
    operation = wire.OPERATIONS[node[11]]
    if node[39]:
        base = tensors[node[39] - 1]
        if base[39] or base[0] != node[0] or (node[0] and base[2] + node[41] != node[2]):
            raise refused(f"{operation.name} is no view of what it names")
    if not _COMPUTES[node[11]] or 0 in node[3:7]:
        return
    sources = node[_SOURCES]
    if 0 in sources[: operation.least] or any(sources[operation.most :]):
        raise refused(f"{operation.name} with other sources than it takes")
    for source in sources:
        if source and not tensors[source - 1][0] and 0 not in tensors[source - 1][3:7]:
            raise refused(f"{operation.name} of a tensor that lies nowhere")
    if not node[0]:
        raise refused(f"{operation.name} whose result lies nowhere")


def _layout(kind: tuple[int, int], ne: Sequence[int], nb: Sequence[int]) -> tuple[int, int]:
    """Bytes from the first to behind the last element, and without gaps. Raises RemoteProtocolError."""
    block, block_bytes = kind
    if ne[0] % block or (block > 1 and nb[0] != block_bytes):
        raise refused("a row that is not whole blocks of its type")
    blocks = max(ne[0] // block, 1)
    rows, dense, span = 1, block_bytes * blocks, block_bytes
    for number, (elements, stride) in enumerate(zip(ne, nb, strict=True)):
        count = max(elements, 1) if number else blocks
        if elements > MAX_ROWS or (elements > 1 and stride % block_bytes):
            raise refused("a dimension that no tensor has")
        if count > 1:
            span += (count - 1) * stride
        if number:
            rows *= count
            dense *= count
    if rows > MAX_ROWS or dense >= MAX_DENSE or span >= MAX_DENSE:
        raise refused("a tensor that is too large")
    return (0, 0) if 0 in ne else (span, dense)
