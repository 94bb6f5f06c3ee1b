"""Several heads and workers: leases side by side, memory limits, late workers, equal names, options."""

import asyncio
import mmap
from collections.abc import Sequence
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.worker.mesh_server import CHILD_NAME

from tests.e2e.alone import alone
from tests.e2e.models import copy_to, header_of, own_cache, smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, child_pid, gone, model_of, play
from tests.e2e.residency import drop, read_ahead_bytes, resident_bytes

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

TOKENS = 24
FOLIO_BYTES = 128 << 10  # as the default read-ahead; 512 KiB would hide all where 8 MiB are read ahead
SMALL_CONTEXT = ("--ctx-size", "1024")


def _proc(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


def _counted(pid: int, what: str) -> int:
    return int(dict(line.split(": ") for line in _proc(pid, "io").splitlines())[what])


def _layers(status: Status) -> dict[str, int]:
    return {part.node: part.layers for part in model_of(status).split}


def test_two_heads_share_a_worker_and_its_memory_comes_back(tmp_path: Path) -> None:
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            worker = await fleet.worker("worker", model=smollm2())
            token = await worker.token()
            one = await fleet.head(smollm2(), *SMALL_CONTEXT, *SAME_THREADS, token=token, name="one")
            first = await fleet.ready(one)
            two = await fleet.head(smollm2(), *SMALL_CONTEXT, *SAME_THREADS, token=token, name="two")
            second = await fleet.ready(two)
            servers = {child.pid for child in (await worker.status()).children}
            assert len(servers) == 2
            assert await api_of(first).complete(PROMPT, TOKENS) == reference
            assert await api_of(second).complete(PROMPT, TOKENS) == reference
            await two.stop()
            fleet.forget(two)
            now = await worker.until(lambda status: len(status.children) == 1)
            await gone({pid for pid in servers if pid is not None} - {child_pid(now, CHILD_NAME)})
            assert await api_of(first).complete(PROMPT, TOKENS) == reference

    play(check())


def test_a_head_without_compute_and_an_explicit_split(tmp_path: Path) -> None:
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(smollm2(), smollm2())
            both = ("--min-workers", "2")
            none = await fleet.head(
                smollm2(), *both, "--device", "none", *SAME_THREADS, token=token, name="none"
            )
            status = await fleet.ready(none)
            layers = _layers(status)
            assert layers.pop("none", 0) == 0
            assert layers == {"worker-0": 15, "worker-1": 15}
            assert await api_of(status).complete(PROMPT, TOKENS) == reference
            given = await fleet.head(
                smollm2(), *both, "--tensor-split", "7,20,3", *SAME_THREADS, token=token, name="given"
            )
            status = await fleet.ready(given)
            assert _layers(status) == {"worker-0": 7, "worker-1": 20, "given": 3}
            assert await api_of(status).complete(PROMPT, TOKENS) == reference

    play(check())


def _size(parts: Sequence[tuple[int, int]]) -> int:
    return sum(size for _, size in parts)


@pytest.mark.parametrize("layers", [0, 15], ids=["no layers", "half of them"])
def test_the_head_reads_nothing_of_the_workers_weights(tmp_path: Path, layers: int) -> None:
    """/proc/PID/io counts what llama-server reads by calls, and the kernel holds what it reads in any way.

    A first load finds the hashes, for which the daemon reads the whole file.
    """
    here = copy_to(smollm2(), tmp_path, "here.gguf")
    tensors = header_of(here).tensors
    own: list[tuple[int, int]] = []
    remote: list[tuple[int, int]] = []
    for tensor in tensors:
        _, _, number = tensor.name.removesuffix(".weight").partition("blk.")
        is_own = int(number.split(".")[0]) < layers if number else tensor.name == "token_embd.weight"
        (own if is_own else remote).append((tensor.offset, tensor.size))
    embedding = next((one.offset, one.size) for one in tensors if one.name == "token_embd.weight")
    metadata = here.stat().st_size - _size(own) - _size(remote)
    # beyond what it reads, one after the other; the kernel rounds up to the folios that it reads into
    may_be_ahead = 3 * (read_ahead_bytes(here) + FOLIO_BYTES)
    assert may_be_ahead < _size(remote) * 4 // 5, "the kernel reads so far ahead that nothing can be shown"
    split = ("--tensor-split", f"{30 - layers},{layers}") if layers else ("--device", "none")

    async def check() -> None:
        async with Fleet(tmp_path, cache=own_cache(tmp_path)) as fleet:
            token, _ = await fleet.workers(smollm2())
            first = await fleet.head(here, *split, token=token)
            await fleet.ready(first)
            await first.stop()
            fleet.forget(first)
            drop(here)
            assert resident_bytes(here, own + remote) == 0
            head = await fleet.head(here, *split, token=token, name="second")
            status = await fleet.ready(head)
            ahead = resident_bytes(here, remote)
            pid = child_pid(status, "llama-server")
            read = _counted(pid, "rchar")
            print(f"llama-server read {read} bytes, and {ahead} that it does not need")  # noqa: T201
            assert _layers(status)["second"] == layers
            assert ahead <= may_be_ahead
            assert read < _size(own) + 2 * metadata + (1 << 20)
            # Read before it is computed with. Not so the embedding: its rows are looked up, and a worker
            # may have it, too, as the output.
            blocks = [part for part in own if part != embedding]
            whole = _size(blocks) - 2 * mmap.PAGESIZE * len(blocks)
            while max(resident_bytes(here, blocks), _counted(pid, "read_bytes")) < whole:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    play(check())
