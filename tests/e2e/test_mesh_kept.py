"""Weights that came over the mesh once are kept: the next load misses nothing, and never a wrong byte."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.fleet.fleet import LocalNode, model_ready

from tests.e2e.alone import alone
from tests.e2e.models import FINE_TUNED, copy_to, fine_tune, own_cache, smollm2, tensor_of
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, child_pid, cli, model_of, peer_of, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

ON_WORKER = ("--device", "none", "--set", "serve.output=head")  # a worker has all of the layers, each time
MB = 1_000_000


def _crossed(status: Status, name: str) -> int:
    link = peer_of(status, name).link
    assert link is not None
    return link.sent_bytes + link.received_bytes


async def _loaded_anew(head: LocalNode, before: Status) -> Status:
    """The status after llama-server has ended and another one is ready."""
    server = child_pid(before, "llama-server")
    os.kill(server, signal.SIGKILL)
    return await head.until(
        lambda s: model_ready(s) and any(child.pid not in (None, server) for child in s.children)
    )


def _packs(cache: Path) -> list[Path]:
    return sorted((cache / "tensors").glob("*.tensors"))


def test_a_worker_without_a_file_misses_nothing_the_second_time(tmp_path: Path) -> None:
    reference = alone(smollm2(), 24)
    cache = own_cache(tmp_path)

    async def check() -> None:
        async with Fleet(tmp_path, cache=cache) as fleet:
            token, [worker] = await fleet.workers(None)
            head = await fleet.head(smollm2(), *ON_WORKER, *SAME_THREADS, token=token)
            first = await fleet.ready(head)
            sent = model_of(first).weights_network_bytes
            assert sent > 60 * MB
            assert model_of(first).weights_local_bytes == 0
            second = await _loaded_anew(head, first)
            assert model_of(second).weights_network_bytes == 0
            assert model_of(second).weights_local_bytes == sent
            assert _crossed(second, "worker-0") - _crossed(first, "worker-0") < 2 * MB
            assert await api_of(second).complete(PROMPT, 24) == reference
            store = (await worker.status()).store
            assert store is not None
            assert sent <= store.bytes < sent + MB
            assert sum(pack.stat().st_size for pack in _packs(cache)) == store.bytes
            assert not list((cache / "tensors").glob(".new-*"))

    play(check())


def test_a_file_that_lacks_some_is_made_up_for(tmp_path: Path) -> None:
    """A fine-tune of the model: what differs is sent once, and comes from the store from then on."""
    reference = alone(smollm2(), 24)
    assert alone(fine_tune(), 24) != reference, "this change cannot be seen in the text: it tests nothing"
    cache = own_cache(tmp_path)
    size = tensor_of(smollm2(), FINE_TUNED).size

    async def check() -> None:
        theirs = copy_to(fine_tune(), tmp_path, "theirs.gguf")
        async with Fleet(tmp_path, cache=cache) as fleet:
            token, _ = await fleet.workers(theirs)
            head = await fleet.head(smollm2(), *ON_WORKER, *SAME_THREADS, token=token)
            first = await fleet.ready(head)
            assert model_of(first).weights_network_bytes == size
            [load] = model_of(first).workers
            assert (load.node, load.missing_bytes, load.sent_bytes) == ("worker-0", size, size)
            [sent] = model_of(first).tensors_from_network
            assert (sent.name, sent.bytes, sent.node) == (FINE_TUNED, size, "worker-0") and sent.reason
            assert FINE_TUNED in (await cli(head.spec.home, "status")).stdout
            assert load.local_bytes == model_of(first).weights_local_bytes
            assert 0 <= load.total_bytes - load.local_bytes - load.missing_bytes < MB, load
            second = await _loaded_anew(head, first)
            assert model_of(second).weights_network_bytes == 0
            assert await api_of(second).complete(PROMPT, 24) == reference

    play(check())


def _flip(pack: Path) -> None:
    with pack.open("r+b") as file:
        file.seek(1000)
        byte = file.read(1)[0]
        file.seek(1000)
        file.write(bytes([byte ^ 1]))


def test_a_damaged_pack_is_found_and_sent_again(tmp_path: Path) -> None:
    """While the worker runs (it is another state of the file), and over its restart (it is read again)."""
    reference = alone(smollm2(), 24)
    cache = own_cache(tmp_path)

    async def check() -> None:
        async with Fleet(tmp_path, cache=cache) as fleet:
            token, [worker] = await fleet.workers(None)
            head = await fleet.head(smollm2(), *ON_WORKER, *SAME_THREADS, token=token)
            status = await fleet.ready(head)
            sent = model_of(status).weights_network_bytes
            server = child_pid(status, "llama-server")
            await _on_disk(worker, sent)
            _flip(_packs(cache)[0])
            again = await _loaded_anew(head, status)
            assert child_pid(again, "llama-server") != server
            assert model_of(again).weights_network_bytes == sent
            assert await api_of(again).complete(PROMPT, 24) == reference
            for expected in (sent, 0):
                await _on_disk(worker, sent)
                if expected:
                    _flip(_packs(cache)[0])
                worker = await _restarted(fleet, worker)
                again = await head.until(_lost_and_back(again))
                assert model_of(again).weights_network_bytes == expected
                assert await api_of(again).complete(PROMPT, 24) == reference

    play(check())


async def _on_disk(worker: LocalNode, sent: int) -> None:
    """It is written behind the load."""
    await worker.until(lambda s: s.store is not None and s.store.tensors > 0 and s.store.bytes >= sent)


def _lost_and_back(before: Status) -> Callable[[Status], bool]:
    server = child_pid(before, "llama-server")
    return lambda s: model_ready(s) and any(child.pid not in (None, server) for child in s.children)


async def _restarted(fleet: Fleet, worker: LocalNode) -> LocalNode:
    fleet.forget(worker)
    await worker.stop()
    return await fleet.start(worker.spec)
