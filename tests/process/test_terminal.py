"""Commands on a terminal that tmux draws: they give the screen back, and a poor terminal breaks none."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.scenes import living
from tests.process.tmux import MESHD, Tmux, terminal, until

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
WATCH = (*MESHD, "status", "--watch")


@contextlib.contextmanager
def daemon(home: Path, how: str = "") -> Iterator["subprocess.Popen[str]"]:
    """A process that answers as a daemon does."""
    home.mkdir(mode=0o700)
    argv = [sys.executable, "-m", "tests.process.cli_daemon", how]
    environ = {**os.environ, "MESHD_HOME": str(home)}
    with subprocess.Popen(
        argv, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("ready ")
            yield process
        finally:
            process.kill()


def has_ended(screen: str) -> bool:
    return "[ended " in screen


def watched(tmux: Tmux) -> str:
    """Wait until the status stands on the whole screen."""
    screen = tmux.until(lambda screen: "garage" in screen)
    assert tmux.is_alternate() and not tmux.shows_cursor()
    return screen


def given_back(tmux: Tmux, code: int) -> str:
    """Return the screen that the shell has again."""
    screen = tmux.until(has_ended)
    assert f"[ended {code}]" in screen
    assert not tmux.is_alternate() and tmux.shows_cursor()
    assert "garage" not in screen
    return screen


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_watched_screen_is_given_back_whatever_signal_ends_it(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    home = tmp_path / "home"
    with daemon(home), terminal(tmp_path, WATCH, env={"MESHD_HOME": str(home)}) as tmux:
        watched(tmux)
        os.kill(tmux.foreground(), number)
        given_back(tmux, code)


def test_a_watched_screen_is_given_back_with_the_error_when_the_daemon_ends(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with daemon(home) as process, terminal(tmp_path, WATCH, env={"MESHD_HOME": str(home)}) as tmux:
        watched(tmux)
        process.kill()
        assert "error:" in given_back(tmux, 1)


def test_a_watched_screen_fits_the_terminal_whatever_its_size(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with daemon(home), terminal(tmp_path, WATCH, rows=40, env={"MESHD_HOME": str(home)}) as tmux:
        assert "CHILD" in watched(tmux)
        tmux.resize(60, 12)
        screen = tmux.until(lambda screen: "more lines" in screen)
        assert screen.splitlines()[0].startswith("node ") and len(screen.splitlines()) == 12
        tmux.resize(20, 5)
        tmux.until(lambda screen: len(screen.splitlines()) == 5 and "more lines" in screen)
        tmux.resize(130, 40)
        tmux.until(lambda screen: "RESUMES" in screen and "more lines" not in screen)
        tmux.keys("C-c")
        given_back(tmux, 130)


def test_a_stopped_watch_leaves_the_screen_to_the_shell_and_takes_it_again(tmp_path: Path) -> None:
    home = tmp_path / "home"
    argv = ("bash", "--norc", "-ic", f"{sys.executable} -m meshd status --watch; echo back; fg; exit 7")
    with daemon(home), terminal(tmp_path, argv, env={"MESHD_HOME": str(home)}) as tmux:
        watched(tmux)
        tmux.keys("C-z")
        tmux.until(lambda screen: "back" in screen)
        watched(tmux)  # `fg` goes on with it
        tmux.keys("C-c")
        given_back(tmux, 7)


def test_a_terminal_that_goes_ends_the_watch(tmp_path: Path) -> None:
    home, errors = tmp_path / "home", tmp_path / "errors"
    command = f"exec {sys.executable} -m meshd status --watch 2>{errors}"
    environ = {"MESHD_HOME": str(home)}
    with daemon(home), terminal(tmp_path, ("sh", "-c", command), env=environ) as tmux:
        watched(tmux)
        process = tmux.foreground()
        tmux.close_window()
        until(lambda: not living({process}))
        assert "Traceback" not in errors.read_text()


POOR = {
    "narrow": ({}, 20),
    "dumb": ({"TERM": "dumb"}, 80),
    "not UTF-8": ({"LC_ALL": "en_US.ISO-8859-1", "PYTHONIOENCODING": "latin-1"}, 80),
    "without colour": ({"NO_COLOR": "1"}, 80),
    "unknown": ({"TERM": "no-such-terminal"}, 80),
}


@pytest.mark.parametrize("kind", POOR)
@pytest.mark.parametrize(
    "line", ["status", "peers", "plan --model x", "doctor", "invite --qr", "status --nope"]
)
def test_a_poor_terminal_breaks_no_command(tmp_path: Path, line: str, kind: str) -> None:
    variables, columns = POOR[kind]
    home = tmp_path / "home"
    environ = {"MESHD_HOME": str(home), "MESHD_CACHE": str(tmp_path / "cache"), **variables}
    with (
        daemon(home),
        terminal(tmp_path, (*MESHD, *line.split()), columns=columns, rows=60, env=environ) as tmux,
    ):
        screen = tmux.until(has_ended)
        assert "Traceback" not in screen and re.search(r"\[ended [012]\]", screen)


@pytest.mark.parametrize("columns", [60, 120])
def test_what_peers_are_called_moves_and_paints_nothing(tmp_path: Path, columns: int) -> None:
    home = tmp_path / "home"
    argv, environ = (*MESHD, "status"), {"MESHD_HOME": str(home)}
    with daemon(home, "hostile"), terminal(tmp_path, argv, columns=columns, rows=60, env=environ) as tmux:
        screen = tmux.until(has_ended)
        assert screen.startswith("node") and "[red]" in screen and "[ended 0]" in screen
        assert not set("\x1b\x07\u202e\u200b") & set(screen)
