"""What the firewall's judging costs, in processor time: `python -m tests.unit.rpc.judging_cost`.

The factors of meshd/rpc/judging_budget.py come from here.
"""

import sys
import time
from collections.abc import Callable

from meshd.rpc import mesh_protocol as wire

from tests.unit.rpc import mesh_talk as talk
from tests.unit.rpc.mesh_talk import LEAVES, NUMBERS, MeshTalk, Tensor

_ROOM = 1 << 40
_TIMES = 15
_MANY = 1000  # messages in one call
_COLUMNS = 181  # 32,768 tensors have as many shapes with them


def _seconds(work: Callable[[], object]) -> float:
    """The least of some."""
    took = []
    for _ in range(_TIMES):
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return min(took)


def _talk() -> MeshTalk:
    it = MeshTalk(greeted=False)
    it.say(talk.hello())
    it.hear(talk.welcome())
    it.say(talk.allocate(size=_ROOM))
    it.hear(talk.allocated())
    return it


def largest_graph(*, shapes_differ: bool) -> bytes:
    """All of it but two leaves are nodes."""
    nodes = []
    for number in range(wire.GRAPH_TENSORS - len(LEAVES)):
        row, column = divmod(number, _COLUMNS) if shapes_differ else (0, 3)
        ne, bytes_of_row = (column + 1, row + 1, 1, 1), 4 * (column + 1)
        nb = (4, bytes_of_row, bytes_of_row * (row + 1), bytes_of_row * (row + 1))
        nodes.append(Tensor(ne=ne, nb=nb, operation=NUMBERS["ADD"], sources=(1, 2)))
    return talk.graph((*LEAVES, *nodes), range(len(LEAVES), wire.GRAPH_TENSORS))


def _of_messages(request: Callable[[int], bytes], answer: Callable[[int], bytes] = lambda _id: b"") -> float:
    it = _talk()
    asked, answered = (b"".join(make(10 + i) for i in range(_MANY)) for make in (request, answer))

    def work() -> None:
        it.say(asked)
        it.hear(answered)

    return _seconds(work) / _MANY


def _of_graph(graph: bytes) -> float:
    """For each of its tensors."""
    it = _talk()
    return _seconds(lambda: it.say(graph)) / wire.GRAPH_TENSORS


def main() -> None:
    """One line for each kind: microseconds, and how many tensors that are."""
    count = wire.GRAPH_TENSORS
    alike, differ = (_of_graph(largest_graph(shapes_differ=shapes_differ)) for shapes_differ in (False, True))
    rows = {
        "a tensor": alike,
        "a shape, beside its tensor": differ - alike,
        "FILL of nothing": _of_messages(lambda _id: talk.message(wire.FILL, talk.BUFFER, 0, 0, 0)),
        "WRITE of nothing": _of_messages(lambda _id: talk.write(data=b"")),
        "WRITE of half rows": _of_messages(lambda _id: talk.write(data=bytes(6), row=2)),
        "READ and DATA": _of_messages(
            lambda identity: talk.read(identity=identity, size=0),
            lambda identity: talk.data(0, identity=identity),
        ),
    }
    for name, seconds in rows.items():
        sys.stdout.write(f"{name:28}{seconds * 1e6:6.2f} us {seconds / alike:5.2f} tensors\n")
    sys.stdout.write(
        f"the largest graph: {alike * count:.3f} s, of different shapes {differ * count:.3f} s\n"
    )


if __name__ == "__main__":
    main()
