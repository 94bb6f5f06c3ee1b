"""Test how a daemon ends: by `meshd stop`, signals, what is wrong at its start. Nothing is left of it."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from meshd.identity.invite import Invite, encode_token
from meshd.identity.keys import MeshId
from meshd.wire.address import Candidate

from tests.conformance.nodes import fresh_key
from tests.e2e.models import cache_folder, smollm2
from tests.e2e.nodes import PROMPT, Fleet, api_of, cli, descendants, gone, meshd, parent_of, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

START_SECONDS = 60.0


@contextmanager
def _daemon(home: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """A worker by itself, once it has printed its token; killed if it is still there at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "meshd", "worker", "--listen", "127.0.0.1:0", *words],
        env={"MESHD_HOME": str(home), "MESHD_CACHE": str(cache_folder()), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("meshd1")
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_it_with_its_exit_code(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with _daemon(tmp_path) as process:
        process.send_signal(number)
        assert process.wait(START_SECONDS) == code
        assert process.stdout is not None
        assert process.stdout.read() == "", "stdout carries the token and nothing else"


def test_stop_leaves_neither_process_nor_port_nor_socket(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, [worker] = await fleet.workers(smollm2())
            head = await fleet.head(smollm2(), token=token)
            status = await fleet.ready(head)
            api = api_of(status)
            assert await api.complete(PROMPT, 2)
            for node, ports in ((head, [api.url, *status.node.listen]), (worker, [])):
                pid = node.pid
                assert pid is not None
                shown = await node.status()
                places = [place.rpartition(":")[2] for place in (*ports, *shown.node.listen)]
                assert {tunnel.listen for tunnel in shown.tunnels} <= {"socketpair"}, "nothing listens"
                below = {pid, *descendants(pid)}
                done = await cli(node.spec.home, "stop")
                assert done.returncode == 0, done.stderr
                await gone(below, seconds=0.5)
                for place in places:
                    socket.create_server(("127.0.0.1", int(place))).close()
                assert not [path for path in node.spec.home.rglob("*") if path.is_socket()]
                assert (await cli(node.spec.home, "status")).returncode == 1
                fleet.forget(node)

    play(check())


def test_a_taken_port_names_its_holder(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        done = meshd(tmp_path / "worker", "worker", "--listen", f"127.0.0.1:{port}")
        assert done.returncode == 1
        assert f"port `{port}`" in done.stderr
        assert "pid" in done.stderr
        assert done.stdout == ""
        options = ("--port", str(port), "--listen", "127.0.0.1:0", "--min-workers", "0")
        done = meshd(tmp_path / "head", "serve", "--model", str(smollm2()), *options)
        assert done.returncode == 1
        assert str(port) in done.stderr
        assert "pid" in done.stderr
        for home in ("worker", "head"):
            assert not (tmp_path / home / "membership").exists(), "no mesh was founded in vain"


def test_a_place_for_metrics_that_cannot_be_had_is_told_first(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken = f"127.0.0.1:{holder.getsockname()[1]}"
        for place, what in (("0.0.0.0:9464", "anyone could read the metrics"), (taken, "is taken")):
            done = meshd(tmp_path, "worker", "--listen", "127.0.0.1:0", MESHD_METRICS=place)
            assert done.returncode == 1 and done.stdout == ""
            assert what in done.stderr and 'node.metrics = "127.0.0.1:9464"' in done.stderr
    assert not (tmp_path / "membership").exists(), "no mesh was founded in vain"


def test_a_daemon_that_waits_for_its_inviter_is_stopped(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        invite = Invite(
            mesh=MeshId.of(fresh_key().peer),
            inviter=fresh_key().peer,
            secret=bytes(16),
            expires_at=1 << 33,
            candidates=(Candidate("127.0.0.1", mute.getsockname()[1]),),
        )
        place = {"MESHD_HOME": str(tmp_path), "MESHD_CACHE": str(cache_folder()), "PATH": "/usr/bin:/bin"}
        with subprocess.Popen(
            [sys.executable, "-m", "meshd", "worker", "--listen", "127.0.0.1:0"],
            env={**place, "MESHD_JOIN": encode_token(invite)},
            stderr=subprocess.DEVNULL,
        ) as process:
            mute.settimeout(START_SECONDS)
            knocked, _ = mute.accept()
            with knocked:
                done = meshd(tmp_path, "stop")
                assert (done.returncode, done.stderr) == (0, "")
                assert process.wait(START_SECONDS) == 0


def test_a_daemon_that_cannot_print_its_token_ends(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "meshd", "worker", "--listen", "127.0.0.1:0", "--log-level", "error"],
            env={"MESHD_HOME": str(tmp_path), "MESHD_CACHE": str(cache_folder()), "PATH": "/usr/bin:/bin"},
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=START_SECONDS,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot write to standard output: no space left on device\n")
    assert "Traceback" not in done.stderr


def test_a_second_daemon_of_one_home_is_refused_with_the_first_ones_pid(tmp_path: Path) -> None:
    with _daemon(tmp_path) as first:
        done = meshd(tmp_path, "worker", "--listen", "127.0.0.1:0")
        assert done.returncode == 1
        assert str(first.pid) in done.stderr
        assert first.poll() is None


IDLE_BYTES = 60_000_000


def test_an_idle_worker_is_small(tmp_path: Path) -> None:
    async def check() -> int:
        async with Fleet(tmp_path) as fleet:
            worker = await fleet.worker("worker", model=smollm2())
            token = await worker.token()
            options = ("--model", str(smollm2()), "--min-workers", "2", "--port", "0")
            head = await fleet.start(fleet.spec("head", "serve", *options, token=token))
            status = await worker.until(lambda s: any(peer.state == "connected" for peer in s.peers))
            assert head.pid is not None
            return status.node.rss_bytes

    held = play(check())
    assert held < IDLE_BYTES


def test_the_test_sees_processes_that_are_left() -> None:
    """The checks above look at /proc: they must see a child, and see it gone."""
    with subprocess.Popen(["/bin/sh", "-c", "read x"], stdin=subprocess.PIPE) as child:
        assert parent_of(child.pid) is not None
        with pytest.raises(Exception, match="left"):
            asyncio.run(gone({child.pid}, seconds=0.05))
        child.kill()
    assert parent_of(child.pid) is None
