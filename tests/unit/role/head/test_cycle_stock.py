"""A head with a stock llama-server, whose tunnels have the file and report; and builds that do not fit."""

import asyncio
import os
from pathlib import Path

import pytest
from meshd.gateway.interface import ReadyReport
from meshd.model.status import ModelState
from meshd.model.weights_index import FileEntry, TensorEntry, WeightsIndex
from meshd.role.head.stock_weights import OpenNamedWeights
from meshd.store.interface import ProgressCallback
from meshd.tunnel.interface import SavedWeights
from meshd.wire.native import NativeVersion

from tests.conformance.run import run as run_real
from tests.sim.loop import run
from tests.unit.role.head.scene import Scene, scene
from tests.unit.role.rig import cpu_lines
from tests.unit.role.stubs import FakeFile

CONTENT = b"0123456789abcdef"
TENSORS = tuple(
    TensorEntry(number, 0, at, 4, bytes((at,)) * 32, name)
    for name, number, at in (("a", 0, 0), ("b", 0, 8), ("c", 1, 4))
)


class TwoShards(FakeFile):
    """Files in truth, the same twice."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        path.write_bytes(CONTENT)
        self.descriptors = (os.open(path, os.O_RDONLY), os.open(path, os.O_RDONLY))

    async def index(self, progress: ProgressCallback | None = None) -> WeightsIndex:
        stat = os.fstat(self.descriptors[0])
        entry = FileEntry(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
        return WeightsIndex((entry, entry), TENSORS, "f" * 64)

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


def _open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def _stock(it: Scene, file: TwoShards) -> None:
    it.head(file=file, patched=False)


def test_weights_are_found_by_name_in_every_shard_until_they_change(tmp_path: Path) -> None:
    async def main() -> None:
        file = TwoShards(tmp_path / "file")
        weights = OpenNamedWeights(await file.index(), file)
        file.close()  # it has descriptors of its own
        read = {name: await weights.read(tensor, 1, 3) for name, tensor in weights.tensors.items()}
        assert read == {"a": b"123", "b": b"9ab", "c": b"567"}
        assert weights.unchanged()
        (tmp_path / "file").write_bytes(CONTENT + b"!")
        assert not weights.unchanged()
        weights.close()

    run_real(main())


def test_a_stock_head_reports_by_its_tunnels_and_keeps_no_file_open(tmp_path: Path) -> None:
    async def main() -> None:
        file = TwoShards(tmp_path / "file")
        open_before = _open_files()
        async with scene(tmp_path) as it:
            _stock(it, file)
            it.worker("anna")
            it.bench.ready = asyncio.get_running_loop().create_future()
            it.start()
            await it.until(ModelState.LOADING, "loading the model")
            await asyncio.sleep(1)
            saved = it.bench.tunnels[0].asked.client.saved
            assert isinstance(saved, SavedWeights)
            assert set(saved.weights.tensors) == set("abc")
            assert saved.plain_sizes
            endpoint = it.bench.tunnels[0].endpoint
            saved.placed(endpoint, "a", 100, "")
            saved.placed(endpoint, "b", 7, "no-such-hash")
            it.bench.ready.set_result(ReadyReport(True, "", 0.1))
            await it.until(ModelState.READY)
            model = it.serve.status.model
            assert model is not None
            assert (model.weights_local_bytes, model.weights_network_bytes) == (100, 7)
            (tensor,) = model.tensors_from_network
            assert (tensor.name, tensor.node, tensor.reason) == ("b", "anna", "no-such-hash")
        assert _open_files() == open_before
        file.close()

    run(main())


def test_of_other_devices_than_cpus_it_is_not_known_what_a_tensor_takes(tmp_path: Path) -> None:
    async def main() -> None:
        file = TwoShards(tmp_path / "file")
        async with scene(tmp_path) as it:
            _stock(it, file)
            it.worker("anna")
            it.workers["anna"].device_lines = cpu_lines(free_mib=3000, name="CUDA0")
            it.start()
            await it.until(ModelState.READY)
            saved = it.bench.tunnels[0].asked.client.saved
            assert saved is not None
            assert not saved.plain_sizes
        file.close()

    run(main())


def test_a_patched_head_needs_no_such_thing(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            it.worker("anna")
            it.start()
            await it.until(ModelState.READY)
            assert it.bench.tunnels[0].asked.client.saved is None

    run(main())


@pytest.mark.parametrize(
    ("theirs", "why"),
    [
        (NativeVersion("8.0.0", "unknown", "stock", "cpu"), "speaks llama.cpp's RPC protocol 8.0.0"),
        (NativeVersion("7.0.0", "other", "patches", "cpu"), "runs llama.cpp other, this node pin"),
    ],
)
def test_a_worker_that_cannot_work_with_this_build_is_not_asked(
    tmp_path: Path, theirs: NativeVersion, why: str
) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            it.worker("anna").native = theirs
            it.start()
            await it.until(ModelState.LOADING, f"anna {why}")
            assert not it.workers["anna"].children
            it.worker("bert")
            await it.until(ModelState.READY, seconds=60)
            assert len(it.bench.tunnels) == 1

    run(main())
