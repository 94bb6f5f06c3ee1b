"""Checks operations: those in GRAPH_COMPUTE, and those in requests about support (SUPPORTED_OPS).

Of a graph: known operations, sources that are there, no cycle, all in its buffer.
"""

import struct

from meshd.rpc.protocol import (
    ASKED_HEAD,
    ASKED_OP,
    ASKED_TENSOR_BYTES,
    CPY,
    GRAPH_HEAD_BYTES,
    KINDS_OF,
    MAX_ASKED_OPS,
    MAX_GRAPH_TENSORS,
    MAX_SOURCES,
    NODE,
    OPERATIONS,
    PAIR32,
    TENSOR_BYTES,
    U32,
    VIEWS,
)
from meshd.rpc.tensors import Buffers, place, refused

MAX_SOURCE_DEPTH = (
    4096  # of tensors that are no nodes, each a source of the next: the server follows by recursion
)


def check_graph(message: bytes | memoryview, at: int, size: int, buffers: Buffers) -> int:
    """The device that shall compute the graph in the `size` bytes from `at`. Raises RemoteProtocolError.

    Tensors come behind their sources, and nodes in the order of their list, as ggml writes them: so there is
    no cycle, and a server that makes node after node finds earlier ones made.
    """
    device, count = PAIR32.unpack_from(message, at)
    tensors_at = at + GRAPH_HEAD_BYTES + 8 * count
    if not 0 < count <= MAX_GRAPH_TENSORS or size < GRAPH_HEAD_BYTES + 8 * count + 4:
        raise refused(f"a graph of {count} nodes in {size} bytes")
    (total,) = U32.unpack_from(message, tensors_at)
    if total > MAX_GRAPH_TENSORS or size != GRAPH_HEAD_BYTES + 8 * count + 4 + TENSOR_BYTES * total:
        raise refused(f"a graph of {total} tensors in {size} bytes")
    nodes = struct.unpack_from(f"<{count}Q", message, at + GRAPH_HEAD_BYTES)
    tensors = memoryview(message)[tensors_at + 4 : at + size]
    _check_tensors(tensors, nodes, buffers)
    return int(device)


def _check_tensors(tensors: memoryview, nodes: tuple[int, ...], buffers: Buffers) -> None:
    order = iter(nodes)
    awaited: int | None = next(order)
    depths: dict[int, int] = {0: 0}  # of each tensor before this one; no source is no tensor
    nowhere: set[int] = set()  # those without an address
    for fields in NODE.iter_unpack(tensors):
        identity, operation, data = fields[0], fields[11], fields[24]
        if identity in depths:
            raise refused("a tensor without an id, or two of one")
        sources = fields[13:23]
        if operation == CPY and sources[1] == identity:  # ggml_cast has it so
            sources = sources[:1]
        try:
            depth = max(map(depths.__getitem__, sources))
            depth = max(depth, depths[fields[23]])
        except KeyError:
            raise refused("a tensor whose source is not before it") from None
        if operation not in OPERATIONS:
            raise refused(f"operation {operation}")
        is_view = operation in VIEWS
        size = place(fields[1], fields[2], fields[3:11], data, buffers, view=is_view)
        if not data and size:
            nowhere.add(identity)
        if identity == awaited:
            depths[identity] = 0
            awaited = next(order, None)
            if not is_view:
                _check_node(operation, fields, nowhere)
        elif depth < MAX_SOURCE_DEPTH:
            depths[identity] = depth + 1
        else:
            raise refused(f"more than {MAX_SOURCE_DEPTH} tensors one behind the other")
    if awaited is not None:
        raise refused("a node that is not there, or not in the order of the tensors")


def _check_node(operation: int, fields: tuple[int, ...], nowhere: set[int]) -> None:
    """What is computed: the sources that it needs are given, and all that it touches lies somewhere."""
    if 0 in fields[13 : 13 + OPERATIONS[operation]]:
        raise refused(f"operation {operation} without its sources")
    if nowhere and not nowhere.isdisjoint((fields[0], *fields[13:23])):
        raise refused(f"operation {operation} on a tensor that lies nowhere")
    if fields[12] >= KINDS_OF.get(operation, 1 << 32):
        raise refused(f"operation {operation} of kind {fields[12]}")


def check_asked_ops(message: bytes | memoryview, at: int, size: int) -> int:
    """How many operations are asked about in the `size` bytes from `at`. Raises RemoteProtocolError.

    They name no buffer and no address, so what operations and tensors they are is the server's to judge: it
    answers no for those that it does not know.
    """
    _device, count, total, _ = ASKED_HEAD.unpack_from(message, at)
    if count > MAX_ASKED_OPS or size != ASKED_HEAD.size + count * ASKED_OP.size + total * ASKED_TENSOR_BYTES:
        raise refused(f"{count} operations and {total} tensors in {size} bytes")
    needed = count
    for number in range(count):
        operation, sources = ASKED_OP.unpack_from(message, at + ASKED_HEAD.size + number * ASKED_OP.size)
        if sources >> MAX_SOURCES:
            raise refused(f"a question about operation {operation} with sources {sources:x}")
        needed += sources.bit_count()
    if needed != total:
        raise refused(f"{total} tensors for operations that have {needed}")
    return int(count)
