"""Programs of a folder that the user names: each is asked what it is."""

import shutil
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.build.interface import LLAMA_SERVER, MESH_MODULE, MESH_PROGRAM
from meshd.build.native import folder_of_ours

from tests.e2e.alone import alone
from tests.e2e.models import cache_folder, small, smollm2, stock
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, cli, model_of, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

TOKENS = 24


def _named(folder: Path, *names: str) -> tuple[str, str]:
    """Options for a folder with copies of these programs alone."""
    ours = folder_of_ours(cache_folder())
    folder.mkdir()
    for name in names:
        shutil.copy2(stock().binaries.get(name, ours / name), folder)
    return "--native-bin", str(folder)


def _folders(status: Status) -> set[Path]:
    """Where the programs of its children lie."""
    return {Path(f"/proc/{child.pid}/exe").resolve().parent for child in status.children}


@pytest.mark.parametrize("whole", [False, True], ids=["our module", "its own module"])
def test_a_llama_server_that_somebody_else_built_is_a_head(tmp_path: Path, whole: bool) -> None:
    reference = alone(smollm2(), TOKENS)
    own = (MESH_PROGRAM, MESH_MODULE) if whole else ()
    theirs = _named(tmp_path / "head-bin", LLAMA_SERVER, *own)
    others = _named(tmp_path / "worker-bin", MESH_PROGRAM)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, [worker] = await fleet.workers(smollm2(), options=others)
            head = await fleet.head(smollm2(), "--device", "none", *theirs, *SAME_THREADS, token=token)
            status = await fleet.ready(head)
            model = model_of(status)
            assert model.weights_network_bytes == 0
            assert model.weights_local_bytes > 60_000_000
            for one in (status, await worker.status()):
                assert not {found.code for found in one.warnings} & {"native_differs", "native_mismatch"}
            assert await api_of(status).complete(PROMPT, TOKENS) == reference
            for node, folder in ((head, "head-bin"), (worker, "worker-bin")):
                assert _folders(await node.status()) == {tmp_path / folder}

    play(check())


def test_what_was_found_is_shown(tmp_path: Path) -> None:
    named = _named(tmp_path / "bin", LLAMA_SERVER)

    async def check() -> None:
        home = tmp_path / "home"
        shown = await cli(home, "doctor", *named)
        assert f"`{tmp_path}/bin/llama-server` loads `" in shown.stdout
        shown = await cli(home, "doctor")
        assert "ok       backend      version" in shown.stdout
        shown = await cli(home, "native", "info", MESHD_NATIVE_BIN=str(tmp_path / "bin"))
        assert f"binaries  {tmp_path}/bin\n" in shown.stdout
        ours = folder_of_ours(cache_folder())
        assert f"{ours}\n          {MESH_MODULE}, {MESH_PROGRAM}\n" in shown.stdout

    play(check())


def test_a_llama_server_of_another_release_is_refused_at_the_start(tmp_path: Path) -> None:
    named = _named(tmp_path / "bin")
    server = tmp_path / "bin" / "llama-server"
    real = stock().binaries[LLAMA_SERVER]
    says = 'echo "version: 0.1.0-dev (build 0, commit unknown)"'
    server.write_text(f'#!/bin/sh\n[ "$1" = --version ] && {says} && exit\nexec {real} "$@"\n')
    server.chmod(0o755)

    async def check() -> None:
        words = ("serve", "--model", str(small()), "--min-workers", "0", *named)
        done = await cli(tmp_path / "home", *words)
        assert done.returncode == 1
        assert f"`{server}` is llama.cpp 0.1.0-dev (commit unknown); meshd's module is for" in done.stderr
        assert "run `meshd native build`" in done.stderr

    play(check())
