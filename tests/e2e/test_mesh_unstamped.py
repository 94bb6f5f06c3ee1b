"""Patched binaries in a folder without a stamp, as a distribution or a container has them, are asked."""

import shutil
from pathlib import Path

import pytest
from meshd.build.interface import NativeInfo

from tests.e2e.alone import alone
from tests.e2e.models import patched, smollm2, stock
from tests.e2e.native_protocol import RPC
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, cli, model_of, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

MB = 1_000_000


def unstamped(folder: Path, *builds: NativeInfo) -> tuple[str, str]:
    """Options for a copy of a build's programs alone; a later build's replace those of an earlier one."""
    folder.mkdir()
    for native, names in zip(builds, (("rpc-server", "llama-server"), ("llama-server",)), strict=False):
        for name in names:
            shutil.copy2(native.binaries[name], folder / native.binaries[name].name)
    return "--native-bin", str(folder)


@pytest.mark.parametrize("side", ["both", "head", "worker"])
def test_a_load_goes_as_with_a_stamp(tmp_path: Path, side: str) -> None:
    reference = alone(smollm2(), 24)
    native = unstamped(tmp_path / "native", patched())
    head_bin, worker_bin = (native if side in ("both", one) else () for one in ("head", "worker"))

    async def check() -> None:
        async with Fleet(tmp_path, protocol=RPC) as fleet:
            token, workers = await fleet.workers(smollm2(), smollm2(), options=worker_bin)
            options = ("--min-workers", "2", *head_bin, *SAME_THREADS)
            head = await fleet.head(smollm2(), *options, token=token)
            status = await fleet.ready(head)
            model = model_of(status)
            assert model.weights_network_bytes == 0
            assert model.weights_local_bytes > 20 * MB
            assert any(part.push for part in model.split), "only patched programs push to each other"
            for one in (status, *[await worker.status() for worker in workers]):
                codes = {warning.code for warning in one.warnings}
                assert not codes & {"rpc_refused", "native_differs", "native_mismatch"}
            assert await api_of(status).complete(PROMPT, 24) == reference

    play(check())


def test_a_stock_build_is_known_as_one(tmp_path: Path) -> None:
    native = unstamped(tmp_path / "native", stock())

    async def check() -> None:
        shown = await cli(tmp_path / "home", "doctor", *RPC.options, *native)
        assert "without meshd's patches" in shown.stdout
        own = await cli(tmp_path / "home", "doctor", *RPC.options, *unstamped(tmp_path / "ours", patched()))
        assert "with meshd's patches" in own.stdout

    play(check())


def test_programs_of_two_builds_are_refused_at_the_start(tmp_path: Path) -> None:
    native = unstamped(tmp_path / "native", stock(), patched())

    async def check() -> None:
        done = await cli(
            tmp_path / "home", "serve", *RPC.options, "--model", str(smollm2()), "--min-workers", "0", *native
        )
        assert done.returncode == 1
        assert "llama-server` has meshd's patches" in done.stderr
        assert "rpc-server` does not" in done.stderr

    play(check())
