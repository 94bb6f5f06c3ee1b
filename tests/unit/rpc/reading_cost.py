"""Measure the processor time of reading along: `python -m tests.unit.rpc.reading_cost`.

The figures of meshd/rpc/frames.py come from here.
"""

import sys
import time
from collections.abc import Callable

from meshd.rpc import mesh_protocol as wire
from meshd.rpc.mesh_keeping import MeshKeeping

from tests.unit.rpc import mesh_talk as talk
from tests.unit.rpc.mesh_talk import MeshTalk
from tests.unit.rpc.test_mesh_keeping import FakeSink

_TIMES = 15
_MANY = 1000  # messages in one call


def _seconds(work: Callable[[], object]) -> float:
    """The least of some."""
    took = []
    for _ in range(_TIMES):
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return min(took)


def _of_messages(request: Callable[[int], bytes], answer: Callable[[int], bytes] = lambda _id: b"") -> float:
    it = MeshTalk(keeping=MeshKeeping(FakeSink()))
    asked, answered = (b"".join(make(10 + i) for i in range(_MANY)) for make in (request, answer))

    def work() -> None:
        it.say(asked)
        it.hear(answered)

    return _seconds(work) / _MANY


def main() -> None:
    """One line for each kind: microseconds of a message."""
    entries = b"".join([talk.load_entry()] * wire.LOAD_ENTRIES)
    rows = {
        "FILL of nothing": _of_messages(lambda _id: talk.message(wire.FILL, talk.BUFFER, 0, 0, 0)),
        "WRITE of nothing": _of_messages(lambda _id: talk.write(data=b"")),
        "FREE of nothing": _of_messages(lambda _id: talk.message(wire.FREE, 9)),
        "READ and DATA": _of_messages(
            lambda identity: talk.read(identity=identity, size=0),
            lambda identity: talk.data(0, identity=identity),
        ),
        "an entry of LOAD": _of_messages(
            lambda identity: talk.load(entries, identity=identity) if identity == 10 else b"",
            lambda identity: (
                talk.message(wire.LOADED, rest=bytes(wire.LOAD_ENTRIES), identity=identity)
                if identity == 10
                else b""
            ),
        )
        * _MANY
        / wire.LOAD_ENTRIES,
    }
    for name, seconds in rows.items():
        sys.stdout.write(f"{name:28}{seconds * 1e6:6.2f} us\n")


if __name__ == "__main__":
    main()
