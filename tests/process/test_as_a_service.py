"""Real processes of meshd under a service manager: when they are ready, and with which exit code they end."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from meshd.base.service_manager import FINAL_EXIT_CODE, PACE_SECONDS

from tests.tokens import token

START_SECONDS = 60.0
LOCAL = ("--listen", "127.0.0.1:0")
# a failed start says on stderr that it pauses, and for how long, instead of doing so
PAUSED = "paused for {} s"
RUN = f"""import sys
from types import SimpleNamespace
from meshd.cli import main as m
m.time = SimpleNamespace(sleep=lambda seconds: print({PAUSED!r}.format(seconds), file=sys.stderr))
sys.exit(m.main(sys.argv[1:]))"""


@contextmanager
def service(tmp_path: Path, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """The process, and the socket to which it reports."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reports,
        (tmp_path / "stderr").open("wb") as log,
    ):
        reports.bind(str(tmp_path / "notify"))
        reports.settimeout(START_SECONDS)
        plain = {name: value for name, value in os.environ.items() if not name.startswith("MESHD_")}
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, *words],
            env={
                **plain,
                "MESHD_HOME": str(tmp_path / "home"),
                "MESHD_CACHE": str(tmp_path / "cache"),
                "NOTIFY_SOCKET": str(tmp_path / "notify"),
                "WATCHDOG_USEC": "600000",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
        try:
            yield process, reports
        finally:
            process.kill()
            process.wait()


def until(reports: socket.socket, text: str) -> None:
    while (report := reports.recv(4096).decode()) != text:
        assert report.startswith(("EXTEND_TIMEOUT_USEC=", "WATCHDOG=")), report


def test_a_relay_is_ready_once_it_listens_and_then_feeds_the_watchdog(tmp_path: Path) -> None:
    with service(tmp_path, "relay", *LOCAL) as (process, reports):
        until(reports, "READY=1")
        until(reports, "WATCHDOG=1")
        until(reports, "WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        assert process.wait(START_SECONDS) == 0


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("client", *LOCAL), FINAL_EXIT_CODE, "this node is not in a mesh yet"),
        (("client", "--join", "nonsense"), FINAL_EXIT_CODE, "cannot read the invite"),
        (("client", "--config", "/nonexistent/meshd.toml"), FINAL_EXIT_CODE, "cannot read"),
        (("client", "--grace", "many"), 2, "cannot use `--grace many`"),
        (("serve", "--model", "/nonexistent/m.gguf"), 1, "cannot read model file"),
        (("relay", "--listen", "192.0.2.1:17443"), 1, "192.0.2.1"),
    ],
)
def test_the_exit_code_says_whether_a_restart_may_help(
    tmp_path: Path, words: tuple[str, ...], code: int, why: str
) -> None:
    with service(tmp_path, *words) as (process, reports):
        while not (report := reports.recv(4096).decode()).startswith("STATUS="):
            pass
        assert why in report
        assert process.wait(START_SECONDS) == code
    paused = PAUSED.format(PACE_SECONDS) in (tmp_path / "stderr").read_text()
    assert paused is (code == 1), "only a start that may succeed later takes its time"


def test_an_invite_that_leads_nowhere_stays_for_the_next_start(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "join").write_text(token())
    with service(tmp_path, "client", *LOCAL, "--stun", "none", "--no-mdns") as (process, _):
        assert process.wait(START_SECONDS) == 1
    assert (home / "join").exists()
    assert token() not in (tmp_path / "stderr").read_text()
