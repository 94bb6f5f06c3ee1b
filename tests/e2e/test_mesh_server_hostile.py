"""Hostile heads straight at a mesh-server: each ends its server, with the reason.

Never by a signal, and never with much memory. A server has one head, so nobody else is there to be harmed.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from meshd.rpc import mesh_protocol as wire

from tests.e2e.bare_head import LENT, bare_head
from tests.e2e.hostile_frames import CASES, SERVED, every_operation
from tests.e2e.hostile_stage import ROOM, message
from tests.e2e.mesh_server_scene import MARKS
from tests.e2e.native_rig import DEADLINE
from tests.native.schema import OPERATIONS

MOST_MEMORY = 256 << 20  # bytes of a server that reads the largest graph, or what says it is larger
EMPTY = {"NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"}  # nothing is computed, whatever they say
pytestmark = MARKS


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_frame_ends_its_server_with_the_reason(tmp_path: Path, name: str) -> None:
    with bare_head(tmp_path) as head:
        head.answers_right()
        assert CASES[name].why in head.refusal(CASES[name].said())


@pytest.mark.parametrize("said", SERVED.values(), ids=SERVED)
def test_what_only_looks_hostile_is_served(tmp_path: Path, said: Callable[[], bytes]) -> None:
    with bare_head(tmp_path) as head:
        head.say(said())
        head.answers_right()
        if sys.platform == "linux":
            assert head.most_memory() < MOST_MEMORY


@pytest.mark.parametrize("sources", [0, 10])
def test_no_operation_computes_without_its_sources_or_with_too_many(tmp_path: Path, sources: int) -> None:
    served = set()
    for number in range(len(OPERATIONS) + 9):
        with bare_head(tmp_path) as head:
            try:
                head.say(every_operation(number, sources) + message(wire.SYNC))
                head.hear(wire.SYNCED)
                served.add(OPERATIONS[number].name)
            except (EOFError, AssertionError):
                assert head.server.process.wait(DEADLINE) == 1, head.server.output
    assert served == EMPTY


def test_memory_that_is_not_lent_is_refused_and_the_connection_goes_on(tmp_path: Path) -> None:
    with bare_head(tmp_path) as head:
        for size in (LENT + 1, LENT - ROOM + 1, 1 << 40, (1 << 64) - 1):
            assert not head.allocate(2, size)
        assert head.allocate(2, LENT - ROOM)
        assert not head.allocate(3, 1)
        head.say(message(wire.FREE, 2))
        assert head.allocate(3, LENT - ROOM)
        head.answers_right()


def test_buffers_have_a_limit(tmp_path: Path) -> None:
    with bare_head(tmp_path) as head:
        for number in range(2, wire.BUFFERS + 1):
            assert head.allocate(number, 64)
        assert "ALLOCATE names" in head.refusal(message(wire.ALLOCATE, wire.BUFFERS + 1, 0, 64))
