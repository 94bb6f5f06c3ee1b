"""A real daemon without a free descriptor, and one whose files may not grow: it lives and goes on."""

import asyncio
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from meshd.admin.socket_path import POINTER_NAME
from meshd.admin.status import Status
from meshd.fleet.fleet import LocalNode
from meshd.identity.keys import KeyPair

from tests.e2e.nodes import Fleet, cli, play
from tests.process.state_files import CASES

pytestmark = [
    pytest.mark.native,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(sys.platform != "linux", reason="sets another process's limits"),
]
SOMEBODY = str(KeyPair.from_seed(bytes(32)).peer)


@contextmanager
def limited(pid: int, what: int, most: int) -> Iterator[None]:
    """While the block runs, as `ulimit` in the shell that started it."""
    before = _limits(pid, what)
    _limits(pid, what, (most, before[1]))
    try:
        yield
    finally:
        _limits(pid, what, before)


def _limits(pid: int, what: int, new: tuple[int, int] | None = None) -> tuple[int, int]:
    """Return the limits that held, soft and hard."""
    if sys.platform == "linux":
        return resource.prlimit(pid, what) if new is None else resource.prlimit(pid, what, new)
    else:
        raise NotImplementedError


def pid_of(node: LocalNode) -> int:
    assert node.pid is not None
    return node.pid


def files_of(home: Path) -> set[str]:
    """Return the files, by the name of their case: all children's are alike, and `node.*` is the test's.

    The pointer to the control socket is written at a start with a long path only, which fails then.
    """
    found = {path.relative_to(home) for path in home.rglob("*") if path.is_file() and path.stem != "node"}
    found.discard(Path(POINTER_NAME))
    logs = {path for path in found if path.parent.name == "logs" and path.stem != "meshd"}
    return {str(path) for path in found - logs} | {f"logs/child{path.suffix}" for path in logs}


async def until_status(node: LocalNode, holds: Callable[[Status], bool]) -> Status:
    async with asyncio.timeout(60):
        while not holds(status := await node.status()):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return status


def unwritten(status: Status) -> set[str]:
    return {warning.what.split("`")[1] for warning in status.warnings if warning.code == "disk"}


def test_a_daemon_may_open_as_many_files_as_the_system_allows(tmp_path: Path) -> None:
    """Whatever the shell gave that started it: links alone can be more than its 256 to 1024."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    allowed = 1 << 20 if hard == resource.RLIM_INFINITY else min(hard, 1 << 20)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            shell = ("/bin/sh", "-c", 'ulimit -Sn 200 && exec "$0" "$@"')
            node = await fleet.start(fleet.spec("worker", "worker", prefix=shell))
            await node.token()
            assert _limits(pid_of(node), resource.RLIMIT_NOFILE) == (allowed, hard)

    assert allowed > 200
    play(check())


def test_a_daemon_that_aborts_leaves_no_core_dump(tmp_path: Path) -> None:
    folder = tmp_path / "started-here"
    folder.mkdir()

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            shell = ("/bin/sh", "-c", f'ulimit -Sc unlimited && cd "{folder}" && exec "$0" "$@"')
            node = await fleet.start(fleet.spec("worker", "worker", prefix=shell))
            await node.token()
            assert _limits(pid_of(node), resource.RLIMIT_CORE)[0] == 1
            os.kill(pid_of(node), signal.SIGABRT)
            fleet.forget(node)

    play(check())
    assert list(folder.iterdir()) == []


def test_files_that_cannot_be_written_are_told_and_written_later(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            node = await fleet.worker("worker")
            await node.token()
            home = node.spec.home
            log = home / "logs" / "meshd.log"
            with limited(pid_of(node), resource.RLIMIT_FSIZE, 0):  # EFBIG, for files alone
                done = await cli(home, "expose", "db", "127.0.0.1:5432", "--to", SOMEBODY)
                assert done.returncode == 0, done.stderr
                found = unwritten(await until_status(node, lambda status: bool(unwritten(status))))
                assert {"tunnels.blob", str(log)} <= found
                refused = await cli(home, "invite")
                assert refused.returncode == 1
                assert "invites" in refused.stderr and "hint" in refused.stderr
            await until_status(node, lambda status: not unwritten(status) - {str(log)})
            assert (await cli(home, "invite")).returncode == 0  # which writes a line of log, too
            assert "state_written" in log.read_text()
            assert (await cli(home, "stop")).returncode == 0
            fleet.forget(node)
            again = await fleet.start(fleet.spec("again", "worker", home="worker"))
            await again.token()
            exposed = json.loads((await cli(home, "expose", "ls", "--json")).stdout)
            assert "db" in str(exposed)
            assert files_of(home) <= {case.name for case in CASES}, "a file without a case in state_files.py"

    play(check())


def test_a_daemon_without_a_free_descriptor_lives_and_serves_again(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            node = await fleet.worker("worker")
            token = await node.token()
            leaver = await fleet.worker("leaver", token=token)
            await until_status(node, lambda status: any(one.state == "connected" for one in status.peers))
            home, pid = node.spec.home, pid_of(node)
            log = home / "logs" / "meshd.log"
            [place] = (await node.status()).node.listen[:1]
            port = int(place.rpartition(":")[2])
            with limited(pid, resource.RLIMIT_NOFILE, 3):  # what is open stays; nothing more can be
                strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
                async with asyncio.timeout(60):
                    while "accept_paused" not in log.read_text():  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
                    assert (await cli(leaver.spec.home, "leave")).returncode == 0  # the book changes
                    fleet.forget(leaver)
                    while "file=book.blob" not in log.read_text():  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
            for stranger in strangers:
                stranger.close()
            status = await until_status(node, lambda status: not unwritten(status))
            assert status.node.pid == pid, "another process answers"
            assert "state_written" in log.read_text()

    play(check())
