"""Never a wrong weight: a worker's file that differs costs bytes on the wire and never a wrong token."""

import os
import shutil
import signal
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.fleet.fleet import LocalNode, model_ready
from meshd.model.status import ModelStatus

from tests.e2e.alone import alone
from tests.e2e.models import (
    FINE_TUNED,
    FLIPPED,
    copy_to,
    fine_tune,
    flipped_byte,
    smollm2,
    tensor_of,
)
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, child_pid, cli, model_of, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

ON_WORKER = ("--device", "none")  # the head computes nothing: every layer's tensor is a worker's


async def _served(folder: Path, theirs: Path, reference: str) -> tuple[ModelStatus, str]:
    """The head's model with `theirs` on the worker, and what `meshd status` prints; the text is checked."""
    copy = copy_to(theirs, folder, smollm2().name)
    async with Fleet(folder) as fleet:
        token, _ = await fleet.workers(copy)
        head = await fleet.head(smollm2(), *ON_WORKER, *SAME_THREADS, token=token)
        status = await fleet.ready(head)
        assert await api_of(status).complete(PROMPT, 32) == reference
        shown = await cli(head.spec.home, "status")
        assert shown.returncode == 0
        return model_of(status), shown.stdout


def test_one_tensor_that_differs_is_sent_and_named(tmp_path: Path) -> None:
    reference = alone(smollm2(), 32)
    assert alone(fine_tune(), 32) != reference, "this change cannot be seen in the text: it tests nothing"
    model, shown = play(_served(tmp_path, fine_tune(), reference))
    size = tensor_of(smollm2(), FINE_TUNED).size
    assert [(tensor.name, tensor.bytes, tensor.node) for tensor in model.tensors_from_network] == [
        (FINE_TUNED, size, "worker-0")
    ]
    assert model.tensors_from_network[0].reason
    assert model.weights_network_bytes == size
    assert FINE_TUNED in shown


def test_a_file_that_is_touched_or_written_to_is_known_anew_at_the_next_load(tmp_path: Path) -> None:
    """A link to it changes only its dates, and a byte its content; both ends look before they load."""
    reference = alone(smollm2(), 24)

    async def check() -> None:
        ours = copy_to(smollm2(), tmp_path, "ours.gguf")
        theirs = copy_to(smollm2(), tmp_path, "theirs.gguf")
        async with Fleet(tmp_path) as fleet:
            token, [worker] = await fleet.workers(theirs)
            head = await fleet.head(ours, *ON_WORKER, *SAME_THREADS, token=token)
            first = await fleet.ready(head)
            (tmp_path / "link").hardlink_to(ours)
            (tmp_path / "other link").hardlink_to(theirs)
            again = await _loaded_anew(head, first)
            assert model_of(again).weights_network_bytes == 0
            shutil.copyfile(flipped_byte(), theirs)
            last = await _loaded_anew(head, again)
            assert [tensor.name for tensor in model_of(last).tensors_from_network] == [FLIPPED]
            assert await api_of(last).complete(PROMPT, 24) == reference
            assert worker.pid is not None

    play(check())


async def _loaded_anew(head: LocalNode, before: Status) -> Status:
    """The status after llama-server has ended and another one is ready."""
    server = child_pid(before, "llama-server")
    os.kill(server, signal.SIGKILL)
    return await head.until(
        lambda s: model_ready(s) and any(child.pid not in (None, server) for child in s.children)
    )


def test_a_file_that_was_replaced_is_not_mixed_with_the_old_one(tmp_path: Path) -> None:
    """llama-server would read the new file where the workers have the old one."""

    async def check() -> None:
        ours = copy_to(smollm2(), tmp_path, "ours.gguf")
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(smollm2())
            head = await fleet.head(ours, *SAME_THREADS, token=token)
            server = child_pid(await fleet.ready(head), "llama-server")
            copy_to(fine_tune(), tmp_path, "new.gguf").rename(ours)
            os.kill(server, signal.SIGKILL)
            status = await head.until(lambda s: model_of(s).state == "failed")
            assert "replaced" in model_of(status).reason
            assert not status.children

    play(check())
