"""The command as a process: what it imports, how it ends, what it leaves behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from meshd.admin.api import StopRequest
from meshd.base.errors import UserError
from meshd.cli.stop import StoppingDaemon, end_daemon

DEADLINE = 60.0
HEAVY = {
    "asyncio",
    "aiohttp",
    "cryptography",
    "structlog",
    "logging",
    "subprocess",
    "msgpack",
    "blake3",
    "ssl",
    "meshd.daemon",
    "meshd.peer",
}
OF_A_DAEMON = {
    *("cryptography", "msgpack", "aiohttp", "aioquic", "aioice", "aiortc", "av", "zeroconf"),
    *("huggingface_hub", "httpx2", "meshd.daemon", "meshd.peer", "meshd.link.tcp", "meshd.admin.api"),
}
REPORT = """
import sys
from meshd.cli.main import main
code = main(sys.argv[1:])
sys.stderr.write("\\nMODULES " + " ".join(sys.modules))
raise SystemExit(code)
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A home of its own, and nothing of the person who runs the test."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MESHD_")}
    return {**plain, "MESHD_HOME": str(tmp_path / "home"), "MESHD_CACHE": str(tmp_path / "cache")}


def meshd(environ: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "meshd", *argv],
        env=environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def reported(environ: dict[str, str], line: str) -> subprocess.CompletedProcess[str]:
    """Run one command, whose modules stand on stderr behind what it says."""
    return subprocess.run(
        [sys.executable, "-c", REPORT, *line.split()],
        env=environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


@contextlib.contextmanager
def daemon(environ: dict[str, str], how: str = "") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A daemon's process and its child's number."""
    home = Path(environ["MESHD_HOME"])
    home.mkdir(mode=0o700, exist_ok=True)
    argv = [sys.executable, "-m", "tests.process.cli_daemon", how]
    with subprocess.Popen(
        argv, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            word, child = process.stdout.readline().split()
            assert word == "ready"
            yield process, int(child)
        finally:
            process.kill()  # the child ends when its standard input, the pipe from here, does


@pytest.mark.parametrize(
    "line",
    [
        *("--help", "--version", "status --help", "worker --help", "serve --help", "invite --help"),
        *("config show", "status", "peers", "ping x", "stop", "logs"),
    ],
)
def test_small_verbs_import_nothing_heavy(environ: dict[str, str], line: str) -> None:
    ran = reported(environ, line)
    modules = set(ran.stderr.split("MODULES ")[1].split())
    assert "meshd.cli.main" in modules
    assert modules & HEAVY == set()


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("serve --model nosuch", 1),
        ("serve --model ./nosuch.gguf", 1),
        ("serve --model ollama:nosuch", 1),
        ("worker --model nosuch", 1),
        ("serve --bogus", 2),
    ],
)
def test_a_mistake_is_told_before_the_daemon_is_imported(
    environ: dict[str, str], line: str, code: int
) -> None:
    ran = reported(environ, line)
    said, modules = ran.stderr.split("MODULES ")
    assert (ran.returncode, said.startswith("error: ")) == (code, True)
    assert set(modules.split()) & OF_A_DAEMON == set()


def test_the_screen_of_a_node_is_drawn_without_rich() -> None:
    """A worker has to be small: rich takes 5 MB of it."""
    code = "import sys, meshd.cli.node_screen as _; print([name for name in sys.modules if 'rich' in name])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_help_imports_no_verb(environ: dict[str, str]) -> None:
    ran = reported(environ, "--help")
    verbs = {name for name in ran.stderr.split() if name.startswith("meshd.cli.")}
    assert verbs == {f"meshd.cli.{name}" for name in ("layout", "main", "options", "output")}


def test_asking_a_daemon_imports_nothing_heavy_either(environ: dict[str, str]) -> None:
    with daemon(environ):
        ran = reported(environ, "status --json")
        assert json.loads(ran.stdout)["node"]["name"] == "desk"
        assert set(ran.stderr.split()) & HEAVY == set()


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("--help", 0),
        ("--version", 0),
        ("config show", 0),
        ("status", 1),
        ("worker --config /nonexistent", 1),
        ("serve", 2),
        ("", 2),
        ("ui", 1),
        ("worker --bogus", 2),
    ],
)
def test_exit_codes_and_streams(environ: dict[str, str], line: str, code: int) -> None:
    ran = meshd(environ, *line.split())
    assert ran.returncode == code
    assert (ran.stdout == "") == (code != 0)
    assert (ran.stderr == "") == (code == 0)
    assert "Traceback" not in ran.stderr


def test_interrupted_is_130(environ: dict[str, str]) -> None:
    with daemon(environ):
        argv = [sys.executable, "-m", "meshd", "status", "--watch", "--json"]
        with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watching:
            assert watching.stdout is not None and watching.stderr is not None
            assert watching.stdout.readline().startswith(b'{"schema": 1, "node"')
            watching.send_signal(signal.SIGINT)
            assert watching.wait(DEADLINE) == 130
            assert watching.stderr.read() == b""


def test_a_reader_that_goes_ends_it_quietly(environ: dict[str, str]) -> None:
    logs = Path(environ["MESHD_HOME"]) / "logs"
    logs.mkdir(parents=True)
    (logs / "meshd.log").write_text("x" * 100 + "\n" * 200_000)
    argv = [sys.executable, "-m", "meshd", "logs", "--lines", "1000000"]
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as talking:
        assert talking.stdout is not None and talking.stderr is not None
        talking.stdout.read(10)
        talking.stdout.close()
        assert talking.wait(DEADLINE) == 1
        assert talking.stderr.read() == b""


@pytest.mark.parametrize(
    "verb", ["--version", "--help", "config show", "config show --json", "status --help"]
)
def test_a_full_disk_behind_stdout_is_one_line(environ: dict[str, str], verb: str) -> None:
    with Path("/dev/full").open("wb") as full:
        argv = [sys.executable, "-m", "meshd", *verb.split()]
        ran = subprocess.run(argv, env=environ, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr.startswith("error: cannot write to standard output: no space left on device\n\nhint: ")
    assert "Traceback" not in ran.stderr and "Exception" not in ran.stderr


@pytest.mark.parametrize("verb", ["stop", "leave"])
def test_stop_returns_when_daemon_and_children_are_gone(environ: dict[str, str], verb: str) -> None:
    with daemon(environ) as (process, child):
        ran = meshd(environ, verb)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout == (
            "left the mesh, and stopped the node\n"
            if verb == "leave"
            else f"stopped desk (process {process.pid})\n"
        )
        assert process.poll() == 0
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)
        assert not (Path(environ["MESHD_HOME"]) / "control.sock").exists()
        assert meshd(environ, "stop").returncode == 1


STARTS = (
    "import sys; from pathlib import Path; from meshd.identity.keystore import Home\n"
    "with Home(Path(sys.argv[1])).lock(daemon=True):\n"
    "    print('held', flush=True)\n"
    "    sys.stdin.read()\n"
)


def test_a_daemon_that_starts_is_named_and_stopped(environ: dict[str, str]) -> None:
    argv = [sys.executable, "-c", STARTS, environ["MESHD_HOME"]]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        for verb in ("status", "leave", "invite"):
            ran = meshd(environ, verb)
            assert (ran.returncode, ran.stdout) == (1, "")
            assert f"(process {process.pid}) is starting" in ran.stderr
        ran = meshd(environ, "stop")
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout == f"stopped a daemon that was still starting (process {process.pid})\n"
        assert process.wait(DEADLINE) == -signal.SIGTERM
        assert meshd(environ, "stop").returncode == 1


def test_stop_names_a_daemon_that_does_not_end(environ: dict[str, str]) -> None:
    with daemon(environ, "deaf") as (process, _):
        ran = meshd(environ, "stop", "--timeout", "1")
        assert (ran.returncode, ran.stdout) == (1, "")
        assert f"the daemon (process {process.pid}) has not ended within 1 s" in ran.stderr


def test_stop_names_a_child_that_is_left(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon may take its time to end; only the wait for its child is cut short."""
    wait = StoppingDaemon.wait
    with daemon(environ, "orphan") as (process, child):
        monkeypatch.setattr(
            StoppingDaemon, "wait", lambda it, deadline: wait(it, 0.0 if it.pid == child else deadline)
        )
        with pytest.raises(UserError, match=f"children of the daemon are still running: {child}$"):
            end_daemon(Path(environ["MESHD_HOME"]), StopRequest(), DEADLINE)
        assert process.poll() == 0


def test_a_process_that_nobody_has_reaped_counts_as_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process, StoppingDaemon(process.pid) as watched:
        assert watched.wait(time.monotonic() + DEADLINE)
        assert process.wait(DEADLINE) == 0
    with StoppingDaemon(process.pid) as gone:
        assert gone.wait(time.monotonic())


def test_a_process_that_lives_is_waited_for() -> None:
    argv = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as process, StoppingDaemon(process.pid) as watched:
        assert not watched.wait(time.monotonic())
        assert process.stdin is not None
        process.stdin.close()
        assert watched.wait(time.monotonic() + DEADLINE)


def test_without_pidfd_the_number_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as process:
        with StoppingDaemon(process.pid) as watched:
            assert not watched.wait(time.monotonic())
        assert process.stdin is not None
        process.stdin.close()
        process.wait(DEADLINE)
        with StoppingDaemon(process.pid) as watched:
            assert watched.wait(time.monotonic())
