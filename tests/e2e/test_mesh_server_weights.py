"""native/mesh: weights by content. Whatever differs is found before a token is made, and is sent by the head.

Every name of a result is one of `load_results` in native/mesh/protocol.toml.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from meshd.build.interface import LLAMA_SERVER
from meshd.model.weights_index import encode_index, join_indexes
from meshd.rpc import mesh_protocol as wire

from tests.e2e.mesh_rig import CountedPair, Mesh, MeshHead, MeshServer
from tests.e2e.mesh_server_scene import MARKS, found_build
from tests.e2e.models import (
    FINE_TUNED,
    FLIPPED,
    copy_to,
    deep,
    fine_tune,
    flipped_byte,
    other_quantisation,
    small,
    small_sharded,
    smollm2,
    stock,
    stock_text,
    tensor_of,
)
from tests.e2e.native_rig import index_of

pytestmark = MARKS

ALL = 272  # tensors of SmolLM2: the output is the tied embedding, which the last device has as well
WARM_UP = 1_000_000  # bytes at most: masks, positions and states


@dataclass(frozen=True, slots=True)
class Served:
    """A head whose one worker has files."""

    head: MeshHead
    pair: CountedPair
    worker: MeshServer

    def sent(self) -> int:
        """Bytes of tensors towards the worker."""
        return self.pair.bytes[wire.WRITE]


@contextmanager
def _served(
    folder: Path,
    model: Path,
    files: Sequence[Path],
    *,
    ours: bytes | None = None,
    theirs: Callable[[Sequence[int]], bytes] | None = None,
    load_mode: str = "mmap",
    on_request: Callable[[int, bytes], object] = lambda _kind, _body: None,
    ready: bool = True,
) -> Iterator[Served]:
    """`ours`: the head's index, where it is not that of `model`; `theirs`: of the worker's files."""
    pair = CountedPair(on_request=on_request)
    with (
        closing(pair),
        MeshServer(found_build(), folder, pair, weights=files, index=theirs) as worker,
        MeshHead(
            found_build(),
            folder,
            model,
            [pair],
            binary=stock().binaries[LLAMA_SERVER],
            index=encode_index(index_of([model])) if ours is None else ours,
            load_mode=load_mode,
            ready=ready,
        ) as head,
    ):
        yield Served(head, pair, worker)


# Nothing differs.


@pytest.mark.parametrize("workers", [1, 3])
def test_a_load_asks_each_worker_few_questions(tmp_path: Path, workers: int) -> None:
    """And none while tokens are made but for results, though the cache has grown beyond its first cells."""
    asked = (wire.HELLO, wire.ALLOCATE, wire.LOAD, wire.SYNC)
    with Mesh(found_build(), tmp_path, smollm2(), workers, weights=[smollm2()], push=True) as mesh:
        before = [Counter(pair.messages) for pair in mesh.pairs]
        for place, counts in enumerate(before):
            assert [counts[kind] for kind in asked] == [1, 3, 1, 1]
            assert counts[wire.READ] == (2 if place == workers - 1 else 0)
        mesh.head.complete(tokens=260)
        for pair, counts in zip(mesh.pairs, before, strict=True):
            assert [pair.messages[kind] for kind in asked] == [counts[kind] for kind in asked]


def test_a_model_in_several_files(tmp_path: Path) -> None:
    shards = small_sharded()
    assert len(shards) > 1
    copies = [copy_to(shard, tmp_path, f"copy-{shard.name}") for shard in shards]
    with _served(tmp_path, shards[0], copies, ours=encode_index(index_of(shards))) as served:
        assert set(served.pair.loaded) == {"loaded"}
        assert served.sent() < WARM_UP
        assert served.head.complete() == stock_text(shards[0])


def test_more_tensors_than_one_message_asks_for(tmp_path: Path) -> None:
    with _served(tmp_path, deep(), [deep()]) as served:
        assert served.pair.loaded == {"loaded": 1082}  # the embedding is the head's
        assert served.pair.messages[wire.LOAD] == 2
        assert served.sent() < WARM_UP
        assert served.head.complete() == stock_text(deep())


def test_a_worker_with_several_models_finds_the_right_one(tmp_path: Path) -> None:
    index = encode_index(join_indexes([index_of([file]) for file in (small(), smollm2())]))
    for file in (smollm2(), small()):
        with _served(tmp_path, file, [small(), fine_tune(), smollm2()], ours=index) as served:
            assert set(served.pair.loaded) == {"loaded"}
            assert served.head.complete() == stock_text(file)


@pytest.mark.parametrize("load_mode", ["", "auto", "mmap+mlock"])
def test_the_other_load_modes_that_map_the_file(tmp_path: Path, load_mode: str) -> None:
    copy = copy_to(small(), tmp_path, "elsewhere/another name.bin")
    with _served(tmp_path, small(), [copy], load_mode=load_mode) as served:
        assert set(served.pair.loaded) == {"loaded"}
        assert served.sent() < WARM_UP
        assert served.head.complete() == stock_text(small())


@pytest.mark.parametrize("load_mode", ["none", "dio", "mlock"])
def test_what_is_read_without_a_mapping_is_sent(tmp_path: Path, load_mode: str) -> None:
    with _served(tmp_path, small(), [small()], load_mode=load_mode) as served:
        assert not served.pair.loaded
        assert served.sent() > 5_000_000
        assert served.head.complete() == stock_text(small())


# Something differs on the worker.


@pytest.mark.parametrize(
    ("model", "theirs", "differs"),
    [
        (smollm2, flipped_byte, FLIPPED),
        (smollm2, fine_tune, FINE_TUNED),
        (fine_tune, smollm2, FINE_TUNED),
    ],
    ids=["flipped byte", "fine-tune", "the head has the fine-tune"],
)
def test_one_tensor_differs_and_is_sent(
    tmp_path: Path, model: Callable[[], Path], theirs: Callable[[], Path], differs: str
) -> None:
    with _served(tmp_path, model(), [theirs()]) as served:
        assert served.pair.loaded == {"loaded": ALL - 1, "no-such-hash": 1}
        size = tensor_of(model(), differs).size
        assert f"lacks weights, {size} bytes are sent" in served.head.output
        assert size <= served.sent() < size + WARM_UP
        assert served.head.complete() == stock_text(model())


def test_another_quantisation_under_the_same_name(tmp_path: Path) -> None:
    copy = copy_to(other_quantisation(), tmp_path, smollm2().name)
    with _served(tmp_path, smollm2(), [copy]) as served:
        assert served.pair.loaded["no-such-hash"] > 200  # all but the F32 tensors, which stay as they are
        assert set(served.pair.loaded) == {"loaded", "no-such-hash"}
        assert served.pair.loaded.total() == ALL
        assert served.head.complete() == stock_text(smollm2())


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

    def before(descriptors: Sequence[int]) -> bytes:
        return encode_index(index, descriptors)

    with _served(tmp_path, smollm2(), [copy], theirs=before) as served:
        assert served.pair.loaded == {"file-changed": ALL}
        assert served.head.complete() == stock_text(smollm2())


@pytest.mark.parametrize(("copies", "result"), [(1, "unreadable"), (2, "loaded")])
def test_what_one_file_does_not_give_another_may(tmp_path: Path, copies: int, result: str) -> None:
    """The first of the worker's files cannot be read, though it is the one that was hashed."""
    files = [copy_to(smollm2(), tmp_path, f"copy-{number}.gguf") for number in range(copies)]
    index = index_of(files)

    def unreadable(descriptors: Sequence[int]) -> bytes:
        writing = os.open(files[0], os.O_WRONLY)
        os.dup2(writing, descriptors[0])
        os.close(writing)
        return encode_index(index, descriptors)

    with _served(tmp_path, smollm2(), files, theirs=unreadable) as served:
        assert served.pair.loaded == {result: ALL}
        assert served.head.complete() == stock_text(smollm2())


def test_the_workers_file_is_replaced_after_it_was_opened(tmp_path: Path) -> None:
    copy = copy_to(smollm2(), tmp_path, "copy.gguf")
    index = index_of([copy])

    def replaced(descriptors: Sequence[int]) -> bytes:
        copy_to(flipped_byte(), tmp_path, "new.gguf").replace(copy)
        return encode_index(index, descriptors)

    with _served(tmp_path, smollm2(), [copy], theirs=replaced) as served:
        # its ctime changed when the name went, which is no change of content but cannot be told from one
        assert served.pair.loaded == {"file-changed": ALL}
        assert served.head.complete() == stock_text(smollm2())


# Something differs on the head.


def test_the_heads_file_changed_before_the_load(tmp_path: Path) -> None:
    model = copy_to(smollm2(), tmp_path, "model.gguf")
    index = encode_index(index_of([model]))
    _touch(model)
    with _served(tmp_path, model, [smollm2()], ours=index) as served:
        assert not served.pair.loaded
        assert served.head.complete() == stock_text(smollm2())


@pytest.mark.parametrize("index", [b"", None], ids=["none", "of another file"])
def test_the_heads_index_says_nothing_of_its_file(tmp_path: Path, index: bytes | None) -> None:
    other = encode_index(index_of([fine_tune()])) if index is None else index
    with _served(tmp_path, smollm2(), [smollm2()], ours=other) as served:
        assert not served.pair.loaded
        assert served.sent() > 96_000_000
        assert served.head.complete() == stock_text(smollm2())


def test_the_heads_file_changes_during_the_load(tmp_path: Path) -> None:
    model = copy_to(smollm2(), tmp_path, "model.gguf")
    seen: Counter[int] = Counter()

    def touch(kind: int, _body: bytes) -> None:
        seen[kind] += 1
        if kind == wire.LOAD:
            _touch(model)

    with _served(tmp_path, model, [smollm2()], on_request=touch, ready=False) as served:
        assert served.head.wait_end() != 0
        assert "the model's file changed while it was loaded" in served.head.output
        assert seen[wire.LOAD]


def test_an_index_that_cannot_be_read_fails_the_load(tmp_path: Path) -> None:
    broken = b"meshd-weights 1\nfile 0 x\nend\n"
    with _served(tmp_path, smollm2(), [smollm2()], ours=broken, ready=False) as served:
        assert served.head.wait_end() == 1
        assert "line 2" in served.head.output


def test_several_workers_have_a_file_each(tmp_path: Path) -> None:
    """Two of three: what the third one lacks is sent to it, and to nobody else."""
    pairs = [CountedPair() for _ in range(3)]
    with ExitStack() as stack:
        for number, pair in enumerate(pairs):
            stack.enter_context(closing(pair))
            weights = [copy_to(smollm2(), tmp_path, f"{number}.gguf")] if number != 1 else []
            stack.enter_context(MeshServer(found_build(), tmp_path, pair, weights=weights))
        index = encode_index(index_of([smollm2()]))
        binary = stock().binaries[LLAMA_SERVER]
        head = stack.enter_context(
            MeshHead(found_build(), tmp_path, smollm2(), pairs, binary=binary, index=index)
        )
        assert [set(pair.loaded) for pair in pairs] == [{"loaded"}, {"no-such-hash"}, {"loaded"}]
        assert pairs[0].bytes[wire.WRITE] < WARM_UP
        assert pairs[1].bytes[wire.WRITE] > 20_000_000
        assert pairs[2].bytes[wire.WRITE] < WARM_UP
        assert head.complete() == stock_text(smollm2())
