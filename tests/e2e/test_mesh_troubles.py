"""Things that go wrong before an answer: bad workers, options and roles, a file that is replaced."""

import os
import signal
from pathlib import Path

import pytest
from meshd.build.interface import MESH_PROGRAM
from meshd.fleet.fleet import model_ready
from meshd.worker.mesh_server import CHILD_NAME

from tests.e2e.alone import alone
from tests.e2e.left_out import ready_without
from tests.e2e.models import copy_to, fine_tune, flipped_byte, native, smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, child_pid, cli, model_of, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]


def test_an_option_that_llama_server_does_not_know_is_refused_at_the_start(tmp_path: Path) -> None:
    async def check() -> None:
        words = ("serve", "--model", str(smollm2()), "--port", "0", "--listen", "127.0.0.1:0")
        for args in (("--no-such-option", "1"), ("--pooling", "none-such")):
            done = await cli(tmp_path / "home", *words, "--", *args)
            assert (done.returncode, done.stdout) == (1, "")
            assert "llama-server refuses its options: " in done.stderr and args[0] in done.stderr

    play(check())


def test_a_llama_server_that_always_ends_is_called_a_failure(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            extra = ("--", "--lora", "/no/such/adapter")
            head = await fleet.head(smollm2(), "--min-workers", "0", *extra)
            status = await head.until(lambda s: s.model is not None and s.model.state == "failed")
            model = model_of(status)
            assert "3 times in a row" in model.reason
            assert "--lora /no/such/adapter" in model.reason
            assert model.split == ()
            assert "child_failed" in {warning.code for warning in status.warnings}

    play(check())


def test_a_replaced_file_is_taken_for_the_next_lease(tmp_path: Path) -> None:
    """The worker's file is replaced while it serves; killed and loaded again, it reads the new one."""
    reference = alone(smollm2(), 16)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            copy = copy_to(flipped_byte(), tmp_path, "model.gguf")
            token, [worker] = await fleet.workers(copy)
            head = await fleet.head(smollm2(), "--device", "none", *SAME_THREADS, token=token)
            first = model_of(await fleet.ready(head))
            assert first.weights_network_bytes > 0
            copy_to(smollm2(), tmp_path, "new.gguf").replace(copy)
            pid = child_pid(await worker.status(), CHILD_NAME)
            os.kill(pid, signal.SIGKILL)
            again = await head.until(
                lambda s: model_ready(s) and s.model is not None and s.model.weights_network_bytes == 0
            )
            assert await api_of(again).complete(PROMPT, 16) == reference
            assert "model_file" in {warning.code for warning in (await worker.status()).warnings}

    play(check())


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


def _broken_native(folder: Path) -> Path:
    """Binaries whose server lists its devices, passes the check at the start, and serves no lease."""
    folder.mkdir()
    info = native()
    (folder / "llama-server").symlink_to(info.binaries["llama-server"])
    server, real = folder / MESH_PROGRAM, info.binaries[MESH_PROGRAM]
    fails = 'case "$*" in *"--device CPU"*) echo no such luck >&2; exit 3;; esac'
    server.write_text(f'#!/bin/sh\n{fails}\nexec {real} "$@"\n')
    server.chmod(0o755)
    return folder


def test_a_bad_worker_does_not_keep_a_good_one_from_serving(tmp_path: Path) -> None:
    reference = alone(smollm2(), 16)
    bad_native = _broken_native(tmp_path / "native")

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            good = await fleet.worker("good", model=smollm2())
            token = await good.token()
            await fleet.worker("bad", "--native-bin", str(bad_native), model=smollm2(), token=token)
            await good.until(lambda s: any(p.name == "bad" and p.state == "connected" for p in s.peers))
            head = await fleet.head(smollm2(), *SAME_THREADS, token=token)
            status = await ready_without(head)
            assert "worker bad is left out" in model_of(status).reason
            assert {part.node for part in model_of(status).split} == {"good", "head"}
            assert await api_of(status).complete(PROMPT, 16) == reference

    play(check())
