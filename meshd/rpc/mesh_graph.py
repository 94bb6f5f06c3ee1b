"""Graphs of the mesh-server protocol: known types and operations, sources before them, all in its buffer.

As native/mesh checks them in layout.cpp and graphs.cpp. What shapes an operation takes, and where its result
may overlap a source, is checked there alone.

A worker gets a graph whenever the shapes of a prompt or an answer change, and computes nothing before it is
checked. So a tensor is unpacked only as far as each of them needs, and a layout that many have in common is
checked once.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
_KINDS = tuple(len(operation.kinds) for operation in wire.OPERATIONS)
# a wire.TENSOR: buffer, type, offset, ne and nb, operation, parameters, sources, viewed, view_offset
_PARTS = struct.Struct("<IIQ48sI4x64s40sI4xQ64x")
_DIMENSIONS = struct.Struct("<4I4Q")
_SOURCES = struct.Struct("<10I")
_KIND = struct.Struct("<i")  # the first parameter


class _GraphTensor(NamedTuple):
    """What nodes need to know of it. `sources` and `viewed` count from 1, 0 is none."""

    buffer: int
    offset: int
    size: int  # bytes from the first to behind the last element; 0: it has none
    operation: int
    sources: tuple[int, ...]
    viewed: int
    view_offset: int


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
) -> int:
    """The lists of a GRAPH; returns how many shapes there are in it. Raises RemoteProtocolError."""
    if not 0 < node_count <= tensor_count <= wire.GRAPH_TENSORS:
        raise refused(f"{node_count} nodes of {tensor_count} tensors")
    if len(body) != 4 * node_count + wire.TENSOR.size * tensor_count:
        raise refused(f"{node_count} nodes and {tensor_count} tensors in {len(body)} bytes")
    nodes = struct.unpack_from(f"<{node_count}I", body)
    tensors, shapes = _check_tensors(body[4 * node_count :], buffers, offered)
    if len(set(nodes)) != node_count:
        raise refused("a node that is there twice")
    for node in nodes:
        if node >= tensor_count:
            raise refused("a node that is no tensor of its graph")
        _check_node(tensors[node], tensors)
    return shapes


def _check_tensors(
    body: memoryview, buffers: Mapping[int, int], offered: Offered
) -> tuple[Sequence[_GraphTensor], int]:
    """The tensors, and how many shapes they have."""
    tensors: list[_GraphTensor] = []
    layouts: dict[tuple[int, bytes], tuple[int, int]] = {}
    fields = _PARTS.iter_unpack(body)
    for own, (buffer, kind, offset, shape, operation, parameters, named, viewed, moved) in enumerate(
        fields, 1
    ):
        layout = layouts.get((kind, shape))
        if layout is None:
            layout = _layout(type_layout(kind, offered), shape)
            layouts[kind, shape] = layout
        span, dense = layout
        if buffer:
            check_inside(buffers, buffer, offset, span)
            if dense > buffers[buffer]:
                raise refused("a tensor that is larger than its buffer")
        sources = _SOURCES.unpack(named)
        if max(sources) > own or viewed > own:
            raise refused("a tensor whose source is behind it")
        if viewed == own:
            raise refused("a tensor that is a view of itself")
        if operation not in offered.operations or operation >= len(_KINDS):
            raise refused(f"operation {operation}, which the worker does not have")
        if _KINDS[operation]:
            _check_kind(operation, parameters)
        tensors.append(_GraphTensor(buffer, offset, span, operation, sources, viewed, moved))
    return tensors, len(layouts)


def _check_kind(operation: int, parameters: bytes) -> None:
    (kind,) = _KIND.unpack_from(parameters)
    if not 0 <= kind < _KINDS[operation]:
        raise refused(f"{wire.OPERATIONS[operation].name} of kind {kind}")


def _check_node(node: _GraphTensor, tensors: Sequence[_GraphTensor]) -> None:
    """What is computed: it has the sources that it needs, and all that it touches lies somewhere."""
    operation = wire.OPERATIONS[node.operation]
    if node.viewed:
        base = tensors[node.viewed - 1]
        if base.viewed or base.buffer != node.buffer:
            raise refused(f"{operation.name} is no view of what it names")
        if node.buffer and base.offset + node.view_offset != node.offset:
            raise refused(f"{operation.name} is no view of what it names")
    if not _COMPUTES[node.operation] or not node.size:
        return
    sources = node.sources
    if 0 in sources[: operation.least] or any(sources[operation.most :]):
        raise refused(f"{operation.name} with other sources than it takes")
    for source in sources:
        if source and not tensors[source - 1].buffer and tensors[source - 1].size:
            raise refused(f"{operation.name} of a tensor that lies nowhere")
    if not node.buffer:
        raise refused(f"{operation.name} whose result lies nowhere")


def _layout(kind: tuple[int, int], shape: bytes) -> tuple[int, int]:
    """Bytes from the first to behind the last element, and without gaps. Raises RemoteProtocolError."""
    block, block_bytes = kind
    dimensions = _DIMENSIONS.unpack(shape)
    ne, nb = dimensions[:4], dimensions[4:]
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
