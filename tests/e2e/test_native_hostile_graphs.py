"""Hostile frames straight at the patched rpc-server, with no firewall between (patches 0016 to 0018).

Each ends its own connection, for the reason that it should, and nothing else: the same process goes on,
computes right for the next client, and has no more memory than before.
"""

import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from meshd.build.interface import RPC_SERVER
from meshd.model.weights_index import FileEntry, WeightsIndex, encode_index
from meshd.rpc import protocol as rpc

from tests.e2e.hostile_frames import CASES, COUNT, SERVED, every_operation
from tests.e2e.hostile_stage import ROOM, Make, Stage
from tests.e2e.models import patched
from tests.e2e.native_rig import Worker, wait_until
from tests.e2e.rpc_client import RpcClient
from tests.unit.rpc import talk

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]  # the first test may have to build

MIB = 1 << 20
LENT = 64 * MIB
MOST_GROWN = 32 * MIB  # what the allocator may keep of an earlier connection
# while 200,000 tensors are read: 59 MB of them, as much again as they come, and what they become
MOST_AT_ONCE = 256 * MIB
EMPTY = {0, 36, 37, 38, 39}  # NONE and views: nothing is computed, whatever they say


class Target:
    """One server for all frames, and where its log has been read to."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._read = 0
        self.answers_right()
        self.began_with = self._memory("VmRSS")

    def stage(self, client: RpcClient) -> Stage:
        client.hello(features=rpc.FEATURE_LOAD | rpc.FEATURE_ALLOC)
        handle = client.alloc(ROOM)
        assert handle
        client.send(rpc.BUFFER_CLEAR, struct.pack("<QB", handle, 0))
        return Stage(handle, client.base(handle))

    def refusal(self, make: Make) -> str:
        """The log of a connection that says what `make` makes, and must be closed for it."""
        with RpcClient(self.worker.port) as client:
            client.say(make(self.stage(client)))
            with pytest.raises(EOFError):
                client.receive(1)
        wait_until(
            lambda: self._log().endswith("closed\n"), "the server has closed the connection, and says so"
        )
        return self._log()

    def answers_right(self) -> None:
        """To another client, in the same process; and all that the one before had is free again."""
        with RpcClient(self.worker.port) as client:
            stage = self.stage(client)
            one, two = stage.tensor(1, 0, 4), stage.tensor(2, 16, 4)
            client.say(talk.set_tensor(one, struct.pack("<4f", 1, 2, 3, 4)))
            client.say(talk.set_tensor(two, struct.pack("<4f", 10, 20, 30, 40)))
            total = stage.tensor(3, 32, 4, op=talk.ADD, sources=(1, 2))
            client.say(talk.graph([one, two, total], (3,)))
            got = client.ask(rpc.GET_TENSOR, total.encode() + struct.pack("<QQ", 0, 16))
            assert struct.unpack("<4f", got) == (11, 22, 33, 44)
            assert client.memory() == (LENT - ROOM, LENT)
        assert self.worker.process.poll() is None

    def memory_is_bounded(self) -> None:
        if sys.platform == "linux":
            assert self._memory("VmRSS") - self.began_with < MOST_GROWN
            assert self._memory("VmHWM") < MOST_AT_ONCE

    def _log(self) -> str:
        return self.worker.output[self._read :]

    def next(self) -> None:
        """What comes from now on belongs to another case."""
        self._read = len(self.worker.output)

    def _memory(self, field: str) -> int:
        """Bytes; a field of /proc/PID/status."""
        lines = Path(f"/proc/{self.worker.process.pid}/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("target")
    file = folder / "weights"
    file.touch()

    def of_nothing(descriptors: Sequence[int]) -> bytes:
        return encode_index(WeightsIndex((FileEntry(0, 0, 0, 0),), (), ""), descriptors)

    server = patched().binaries[RPC_SERVER]
    with Worker(server, folder, weights=[file], index=of_nothing, memory=str(LENT)) as worker:
        yield Target(worker)


@pytest.fixture(autouse=True)
def _goes_on(target: Target) -> Iterator[None]:
    target.next()
    yield
    target.answers_right()
    target.memory_is_bounded()


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_frame_ends_its_own_connection(target: Target, name: str) -> None:
    case = CASES[name]
    assert case.why in target.refusal(case.make)


@pytest.mark.parametrize("make", SERVED.values(), ids=SERVED)
def test_what_only_looks_hostile_is_served(target: Target, make: Make) -> None:
    with RpcClient(target.worker.port) as client:
        stage = target.stage(client)
        first = stage.tensor(1, 0, 4)
        client.say(talk.set_tensor(first, struct.pack("<4f", 1, 2, 3, 4)) + make(stage))
        got = client.ask(rpc.GET_TENSOR, first.encode() + struct.pack("<QQ", 0, 16))
        assert struct.unpack("<4f", got) in ((1, 2, 3, 4), (0, 0, 0, 0))  # as it was, or of its empty source


@pytest.mark.parametrize("sources", [0, 10])
def test_no_operation_computes_without_its_sources_or_with_too_many(target: Target, sources: int) -> None:
    served = set()
    for op in range(COUNT + 9):
        with RpcClient(target.worker.port) as client:
            stage = target.stage(client)
            client.say(every_operation(stage, op, sources))
            try:
                client.memory()
                served.add(op)
            except EOFError:
                pass
    assert served == EMPTY


def test_memory_that_is_not_lent_is_refused_and_the_connection_goes_on(target: Target) -> None:
    with RpcClient(target.worker.port) as client:
        client.hello(features=rpc.FEATURE_LOAD | rpc.FEATURE_ALLOC)
        for size in (LENT + 1, 1 << 40, (1 << 64) - 1):
            assert client.alloc(size) == 0
            assert client.alloc_as(1, size)[1] == 0
        assert client.memory() == (LENT, LENT)


def test_buffers_have_a_limit_and_the_connection_goes_on(target: Target) -> None:
    with RpcClient(target.worker.port) as client:
        client.hello(features=rpc.FEATURE_LOAD | rpc.FEATURE_ALLOC)
        buffers = [client.alloc(64) for _ in range(4096)]
        assert all(buffers)
        assert client.alloc(64) == 0
        client.free(buffers[7])
        assert client.alloc(64)
