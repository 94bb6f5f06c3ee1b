"""Never a wrong weight: whatever differs is found before a token is made, and comes over the network."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from meshd.build.interface import LLAMA_SERVER, RPC_SERVER
from meshd.model.weights_index import encode_index
from meshd.rpc import protocol as rpc

from tests.e2e.counting_proxy import CountingProxy
from tests.e2e.models import (
    FINE_TUNED,
    FLIPPED,
    copy_to,
    fine_tune,
    flipped_byte,
    other_quantisation,
    patched,
    smollm2,
    tensor_of,
    text_alone,
)
from tests.e2e.native_rig import Head, Worker, index_of

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]  # the first test may have to build

ALL = 272


def _worker(folder: Path, files: list[Path]) -> Worker:
    return Worker(patched().binaries[RPC_SERVER], folder, weights=files)


def _head(
    folder: Path,
    proxy: CountingProxy,
    model: Path,
    *,
    index: bytes | None = None,
    load_mode: str = "none",
    ready: bool = True,
) -> Head:
    text = encode_index(index_of([model])) if index is None else index
    binary = patched().binaries[LLAMA_SERVER]
    return Head(binary, folder, model, [proxy.endpoint], index=text, load_mode=load_mode, ready=ready)


@pytest.mark.parametrize(
    ("theirs", "differs"),
    [(flipped_byte, FLIPPED), (fine_tune, FINE_TUNED)],
    ids=["flipped-byte", "fine-tune"],
)
@pytest.mark.parametrize("load_mode", ["none", "mmap"])
def test_one_tensor_differs_and_is_sent(
    tmp_path: Path, theirs: Callable[[], Path], differs: str, load_mode: str
) -> None:
    with (
        _worker(tmp_path, [theirs()]) as worker,
        CountingProxy(worker.port) as proxy,
        _head(tmp_path, proxy, smollm2(), load_mode=load_mode) as head,
    ):
        assert head.placements() == {proxy.endpoint: Counter({"local": ALL - 1, "network no-such-hash": 1})}
        assert head.report is not None
        size = tensor_of(smollm2(), differs).size
        assert f"tensor {proxy.endpoint} network no-such-hash {size} {differs}" in head.report.lines
        assert f"miss no-such-hash {differs}" in worker.lines
        assert size <= proxy.counts.weights < size + 1000
        assert head.complete() == text_alone(smollm2())


def test_the_head_has_the_fine_tune(tmp_path: Path) -> None:
    with (
        _worker(tmp_path, [smollm2()]) as worker,
        CountingProxy(worker.port) as proxy,
        _head(tmp_path, proxy, fine_tune()) as head,
    ):
        assert head.placements() == {proxy.endpoint: Counter({"local": ALL - 1, "network no-such-hash": 1})}
        assert head.complete() == text_alone(fine_tune())


def test_another_quantisation_under_the_same_name(tmp_path: Path) -> None:
    copy = copy_to(other_quantisation(), tmp_path, smollm2().name)
    with (
        _worker(tmp_path, [copy]) as worker,
        CountingProxy(worker.port) as proxy,
        _head(tmp_path, proxy, smollm2()) as head,
    ):
        ways = head.placements()[proxy.endpoint]
        assert ways["network no-such-hash"] > 200  # all but the F32 tensors, which quantising leaves alone
        assert ways["local"] + ways["network no-such-hash"] == ALL
        assert head.complete() == text_alone(smollm2())


def test_a_worker_without_files(tmp_path: Path) -> None:
    with (
        Worker(patched().binaries[RPC_SERVER], tmp_path) as worker,
        CountingProxy(worker.port) as proxy,
        _head(tmp_path, proxy, smollm2()) as head,
    ):
        assert head.placements() == {proxy.endpoint: Counter({"network worker-has-no-files": ALL})}
        assert proxy.counts.weights > 96_000_000
        assert proxy.counts.calls[rpc.SET_TENSOR_GGUF] == 0
        assert head.complete() == text_alone(smollm2())


def _write(path: Path) -> None:
    """Other bytes in the very same file, of the same size."""
    with path.open("r+b") as file:
        file.seek(tensor_of(path, FLIPPED).offset)
        file.write(bytes(64))


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1_000_000)


def _touch(path: Path) -> None:
    os.utime(path)


@pytest.mark.parametrize("change", [_write, _cut, _touch])
def test_the_workers_file_changed_after_it_was_hashed(tmp_path: Path, change: Callable[[Path], None]) -> None:
    copy = copy_to(smollm2(), tmp_path, "copy.gguf")
    index = index_of([copy])
    change(copy)
    with (
        Worker(
            patched().binaries[RPC_SERVER],
            tmp_path,
            weights=[copy],
            index=lambda descriptors: encode_index(index, descriptors),
        ) as worker,
        CountingProxy(worker.port) as proxy,
        _head(tmp_path, proxy, smollm2()) as head,
    ):
        assert head.placements() == {proxy.endpoint: Counter({"network file-changed": ALL})}
        assert head.complete() == text_alone(smollm2())


@pytest.mark.parametrize(("copies", "way"), [(1, "network unreadable"), (2, "local")])
def test_what_one_file_does_not_give_another_may(tmp_path: Path, copies: int, way: str) -> None:
    """The first of the worker's files cannot be read, though it is the one that was hashed."""
    files = [copy_to(smollm2(), tmp_path, f"copy-{number}.gguf") for number in range(copies)]
    index = index_of(files)

    def unreadable(descriptors: Sequence[int]) -> bytes:
        writing = os.open(files[0], os.O_WRONLY)
        os.dup2(writing, descriptors[0])
        os.close(writing)
        return encode_index(index, descriptors)

    with (
        Worker(patched().binaries[RPC_SERVER], tmp_path, weights=files, index=unreadable) as worker,
        CountingProxy(worker.port) as proxy,
        _head(tmp_path, proxy, smollm2()) as head,
    ):
        assert head.placements() == {proxy.endpoint: Counter({way: ALL})}
        assert head.complete() == text_alone(smollm2())


def test_the_workers_file_changes_between_two_loads(tmp_path: Path) -> None:
    copy = copy_to(smollm2(), tmp_path, "copy.gguf")
    with _worker(tmp_path, [copy]) as worker:
        for change, way in ((None, "local"), (_write, "network file-changed")):
            if change is not None:
                change(copy)
            with CountingProxy(worker.port) as proxy, _head(tmp_path, proxy, smollm2()) as head:
                assert head.placements() == {proxy.endpoint: Counter({way: ALL})}
                assert head.complete() == text_alone(smollm2())


def test_the_workers_file_is_replaced_the_open_one_stays(tmp_path: Path) -> None:
    copy = copy_to(smollm2(), tmp_path, "copy.gguf")
    with _worker(tmp_path, [copy]) as worker:
        copy_to(flipped_byte(), tmp_path, "new.gguf").replace(copy)
        with CountingProxy(worker.port) as proxy, _head(tmp_path, proxy, smollm2()) as head:
            # its ctime changed when the name went, which is no change of content but cannot be told from one
            assert head.placements() == {proxy.endpoint: Counter({"network file-changed": ALL})}
            assert head.complete() == text_alone(smollm2())


def test_the_heads_file_changed_before_the_load(tmp_path: Path) -> None:
    model = copy_to(smollm2(), tmp_path, "model.gguf")
    index = encode_index(index_of([model]))
    _touch(model)
    with (
        _worker(tmp_path, [smollm2()]) as worker,
        CountingProxy(worker.port) as proxy,
        _head(tmp_path, proxy, model, index=index) as head,
    ):
        assert head.placements() == {proxy.endpoint: Counter({"network head-file-changed": ALL})}
        assert "changed since its weights were hashed" in head.output
        assert head.complete() == text_alone(smollm2())


def test_the_heads_file_is_another_one_than_the_index_says(tmp_path: Path) -> None:
    with (
        _worker(tmp_path, [smollm2()]) as worker,
        CountingProxy(worker.port) as proxy,
        _head(tmp_path, proxy, smollm2(), index=encode_index(index_of([fine_tune()]))) as head,
    ):
        assert head.placements() == {proxy.endpoint: Counter({"network file-not-in-index": ALL})}
        assert head.complete() == text_alone(smollm2())


@pytest.mark.parametrize("load_mode", ["none", "mmap"])
def test_the_heads_file_changes_during_the_load(tmp_path: Path, load_mode: str) -> None:
    model = copy_to(smollm2(), tmp_path, "model.gguf")
    index = encode_index(index_of([model]))

    def on_command(command: int) -> None:
        if command == rpc.SET_TENSOR_GGUF:
            _touch(model)

    with (
        _worker(tmp_path, [smollm2()]) as worker,
        CountingProxy(worker.port, on_command=on_command) as proxy,
        _head(tmp_path, proxy, model, index=index, load_mode=load_mode, ready=False) as head,
    ):
        assert head.wait_end() == 1
        assert "changed while it was loaded" in head.output
        assert head.report is not None
        assert "done" not in head.report.lines


def test_a_head_without_an_index_sends_all(tmp_path: Path) -> None:
    with (
        _worker(tmp_path, [smollm2()]) as worker,
        CountingProxy(worker.port) as proxy,
        Head(patched().binaries[LLAMA_SERVER], tmp_path, smollm2(), [proxy.endpoint]) as head,
    ):
        assert head.placements() == {proxy.endpoint: Counter({"network no-index": ALL})}
        assert head.complete() == text_alone(smollm2())


def test_an_index_that_cannot_be_read_fails_the_load(tmp_path: Path) -> None:
    with (
        _worker(tmp_path, [smollm2()]) as worker,
        CountingProxy(worker.port) as proxy,
        _head(tmp_path, proxy, smollm2(), index=b"meshd-weights 1\nfile 0 x\nend\n", ready=False) as head,
    ):
        assert head.wait_end() == 1
        assert "line 2: a file has a number" in head.output
