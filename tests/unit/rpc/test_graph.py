"""Graphs: what ggml makes passes, and what would crash a server, or worse, does not."""

import struct
from dataclasses import replace

import pytest
from meshd.base.errors import RemoteProtocolError
from meshd.rpc import protocol as rpc
from meshd.rpc.graph import MAX_SOURCE_DEPTH

from tests.unit.rpc import talk
from tests.unit.rpc.talk import ADD, BASE, MUL_MAT, ROOM, SUM, VIEW, A, B, Talk, Tensor, graph

NEXT = Tensor(id=4, op=ADD, sources=(3, 1))
NOWHERE = Tensor(id=7, buffer=0, data=0)
MAP_CUSTOM1, CUSTOM, OPT_STEP_ADAMW, COUNT = 92, 95, 98, 101


def chain(length: int) -> list[Tensor]:
    """Tensors that are no nodes, each the source of the next; the last has the id `length`."""
    return [
        Tensor(id=number, op=rpc.UNARY if number > 1 else 0, sources=(number - 1,))
        for number in range(1, length + 1)
    ]


GOOD: dict[str, bytes] = {
    "a sum": talk.GRAPH,
    "two nodes": graph((A, B, SUM, NEXT), (3, 4)),
    "a view of something elsewhere": graph(
        (NOWHERE, Tensor(id=8, op=VIEW, sources=(7,), view=7, buffer=0, data=0), A, B, SUM), (8, 3)
    ),
    "a cast, whose second source is itself": graph((A, Tensor(id=2, op=rpc.CPY, sources=(1, 2))), (2,)),
    "a source in a place of its own": graph((A, B, replace(SUM, op=46, sources=(1, 0, 2))), (3,)),
    "nothing to compute": graph(
        (replace(NOWHERE, ne=(0, 1, 1, 1)), Tensor(id=5, op=rpc.UNARY, sources=(7,), ne=(0, 1, 1, 1))), (5,)
    ),
    "a view with strides over each other": graph(
        (
            A,
            Tensor(
                id=2, op=VIEW, sources=(1,), view=1, ne=(4, 3, 1, 1), nb=(4, 4, 16, 16), data=BASE + ROOM - 24
            ),
        ),
        (2,),
    ),
    "a leaf with a history": graph((*chain(100), Tensor(id=101, op=rpc.UNARY, sources=(100,))), (101,)),
    "each node in its turn": graph(chain(5000), list(range(1, 5001))),
    "the last unary": graph((A, Tensor(id=2, op=rpc.UNARY, param=21, sources=(1,))), (2,)),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_graph_of_ggml_passes(name: str) -> None:
    it = Talk()
    it.say(GOOD[name])
    it.say(talk.recompute())


BAD: dict[str, tuple[str, bytes]] = {
    "a function by its address": ("operation 92", graph((A, B, replace(SUM, op=MAP_CUSTOM1)), (3,))),
    "the same, not computed": (
        "operation 95",
        graph((A, B, replace(SUM, op=CUSTOM), NEXT), (4,)),
    ),
    "training": ("operation 98", graph((A, B, replace(SUM, op=OPT_STEP_ADAMW)), (3,))),
    "an operation beyond the last": ("operation 101", graph((A, B, replace(SUM, op=COUNT)), (3,))),
    "the largest operation": ("operation 4294967295", graph((A, B, replace(SUM, op=0xFFFFFFFF)), (3,))),
    "a unary beyond the last": (
        "of kind 22",
        graph((A, replace(SUM, op=rpc.UNARY, param=22, sources=(1,))), (3,)),
    ),
    "a glu beyond the last": ("of kind 7", graph((A, replace(SUM, op=rpc.GLU, param=7, sources=(1,))), (3,))),
    "no node": ("graph of 0 nodes", graph((A,), ())),
    "node 0": ("a node that is not there", graph((A, B, SUM), (0,))),
    "a node that is not there": ("a node that is not there", graph((A, B, SUM), (4,))),
    "a node twice": ("a node that is not there", graph((A, B, SUM), (3, 3))),
    "nodes out of order": ("not in the order", graph((A, B, SUM), (3, 2))),
    "a tensor twice": ("two of one", graph((A, A, B, SUM), (3,))),
    "a tensor without an id": ("without an id", graph((replace(A, id=0), B, SUM), (3,))),
    "a source that is not there": ("not before it", graph((A, SUM), (3,))),
    "a view of what is not there": ("not before it", graph((A, B, replace(SUM, view=9)), (3,))),
    "a source of itself": ("not before it", graph((A, replace(SUM, sources=(1, 3))), (3,))),
    "a view of itself": ("not before it", graph((A, B, replace(SUM, view=3)), (3,))),
    "a cast of itself": ("not before it", graph((A, replace(SUM, op=rpc.CPY, sources=(3, 3))), (3,))),
    "a cycle": ("not before it", graph((A, replace(B, op=ADD, sources=(1, 3)), SUM), (3,))),
    "missing sources": ("without its sources", graph((A, replace(SUM, sources=(1,))), (3,))),
    "no sources": ("without its sources", graph((replace(SUM, op=MUL_MAT, sources=()),), (3,))),
    "a source that lies nowhere": ("lies nowhere", graph((A, NOWHERE, replace(SUM, sources=(1, 7))), (3,))),
    "a result that lies nowhere": ("lies nowhere", graph((A, B, replace(SUM, buffer=0, data=0)), (3,))),
    "a deep chain": ("one behind the other", graph(chain(MAX_SOURCE_DEPTH + 2), (MAX_SOURCE_DEPTH + 2,))),
    "a leaf outside": ("outside its buffer", graph((replace(A, data=BASE + ROOM), B, SUM), (3,))),
    "a result outside": ("outside its buffer", graph((A, B, replace(SUM, data=BASE - 4)), (3,))),
    "a result whose rows are on top of each other": (
        "outside its buffer",
        graph((A, B, replace(SUM, ne=(4, 4, 4, 4), nb=(4, 0, 0, 0), data=BASE + ROOM - 16)), (3,)),
    ),
    "a view with more elements than the buffer": (
        "outside its buffer",
        graph((A, Tensor(id=2, op=VIEW, sources=(1,), ne=(4, 1 << 20, 1, 1), nb=(4, 0, 0, 0))), (2,)),
    ),
    "another connection's buffer": ("a buffer that", graph((replace(A, buffer=1), B, SUM), (3,))),
    "more nodes than bytes": ("nodes in", graph((A, B, SUM), (3,), count=200)),
    "as many nodes as can be said": ("nodes in", graph((A, B, SUM), (3,), count=0xFFFFFFFF)),
    "more tensors than bytes": ("tensors in", graph((A, B, SUM), (3,), total=4)),
    "fewer tensors than bytes": ("tensors in", graph((A, B, SUM), (3,), total=2)),
    "as many tensors as can be said": ("tensors in", graph((A, B, SUM), (3,), total=0xFFFFFFFF)),
    "nothing but a head": ("nodes in", talk.request(rpc.GRAPH_COMPUTE, struct.pack("<III", 0, 1, 0))),
}


@pytest.mark.parametrize("name", BAD)
def test_a_graph_that_nobody_makes_is_refused(name: str) -> None:
    why, message = BAD[name]
    with pytest.raises(RemoteProtocolError, match=f"GRAPH_COMPUTE: .*{why}"):
        Talk().say(message)


def test_a_long_chain_of_sources_is_refused_in_the_order_that_overflows_a_stack() -> None:
    backwards = chain(20_000)[::-1]
    with pytest.raises(RemoteProtocolError, match="not before it"):
        Talk().say(graph(backwards, (20_000,)))


def test_what_is_computed_again_was_computed_on_that_device() -> None:
    it = Talk()
    it.say(graph((A, B, SUM), (3,), device=2))
    it.say(talk.recompute(2))
    with pytest.raises(RemoteProtocolError, match="there is no graph"):
        it.say(talk.recompute(0))


def test_a_graph_is_held_until_it_is_whole() -> None:
    it = Talk()
    assert it.say(talk.GRAPH[:-1]) == b""
    assert it.firewall.held_bytes == len(talk.GRAPH) - 1
    assert it.say(talk.GRAPH[-1:]) == talk.GRAPH
    assert it.firewall.held_bytes == 0
