"""A node inside another program, played by a small script in its place."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner
from meshd.fleet.fleet import LocalNode, NodeSpec, model_ready, ready_or_raise, start_all
from meshd.model.status import ModelState
from meshd.process.interface import ChildFailed

from tests.unit.admin.fake import full_status

SHOW = "import os, sys, time; print('hello there', flush=True);"
STAY = "time.sleep(60)"


def node(tmp_path: Path, script: str, name: str = "anna") -> LocalNode:
    """`prefix` runs the script, which sees the daemon's own command line as its arguments."""
    return LocalNode(
        NodeSpec(
            name=name,
            role="worker",
            home=tmp_path / name,
            cache=tmp_path / "cache",
            options=("--model", "x.gguf"),
            environment={"EXTRA": "1"},
            prefix=(sys.executable, "-c", script),
        )
    )


async def test_the_token_is_the_line_that_looks_like_one(tmp_path: Path) -> None:
    script = SHOW + "print('meshd1 is a word'); print(f'meshd1abc{os.getpid()}', flush=True);" + STAY

    it = node(tmp_path, script)
    async with Owner() as owner:
        await start_all(owner, it)
        pid = it.pid
        assert pid is not None
        assert await it.token() == f"meshd1abc{pid}"
        await it.stop()
        assert it.pid is None
        await it.start()  # again, with a token of its own
        assert await it.token() == f"meshd1abc{it.pid}"
        owner.cancel()


async def test_the_command_line_and_the_environment_are_the_nodes_own(tmp_path: Path) -> None:
    script = (
        "import os, sys, time; print('meshd1' + '|'.join([*sys.argv[3:],"
        "os.environ['MESHD_HOME'], os.environ['MESHD_CACHE'], os.environ['EXTRA']]), flush=True);" + STAY
    )

    it = node(tmp_path, script)
    async with Owner() as owner:
        await start_all(owner, it)
        words = (await it.token()).split("|")
        owner.cancel()
    assert words == [
        "meshd1meshd",
        "worker",
        "--name",
        "anna",
        "--listen",
        "127.0.0.1:0",
        "--model",
        "x.gguf",
        str(tmp_path / "anna"),
        str(tmp_path / "cache"),
        "1",
    ]
    assert (tmp_path / "anna").stat().st_mode & 0o077 == 0


async def test_a_node_that_ends_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    it = node(tmp_path, SHOW + "print('port taken', flush=True); sys.exit(1)")
    async with Owner() as owner:
        owner.start(it.serve(), name="node")
        with pytest.raises(MeshdError) as caught:
            await it.start()
            await it.token()
        assert "port taken" in caught.value.hint
        with pytest.raises(ChildFailed):
            await it.until(lambda _status: True)
        owner.cancel()


async def test_a_node_that_is_not_up_yet_is_waited_for(tmp_path: Path) -> None:
    it = node(tmp_path, SHOW + STAY)
    async with Owner() as owner:
        await start_all(owner, it)
        waiting = owner.start(it.until(model_ready), name="until")
        done, _ = await asyncio.wait([waiting], timeout=0.3)
        assert not done
        owner.cancel()


def test_a_failed_model_is_an_error_with_its_reason() -> None:
    full = full_status()
    assert full.model is not None
    for state in (ModelState.READY, ModelState.LOADING):
        status = replace(full, model=replace(full.model, state=state))
        assert ready_or_raise(status) == model_ready(status) == (state is ModelState.READY)
    with pytest.raises(MeshdError, match="too little memory"):
        ready_or_raise(
            replace(full, model=replace(full.model, state=ModelState.FAILED, reason="too little memory"))
        )
    assert not ready_or_raise(replace(full, model=None))
