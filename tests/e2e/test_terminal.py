"""Show real nodes to a new user on terminals of 80 and 120 columns, from the first start to the last.

With MESHD_SCREENS the screens are kept in that folder, as pictures on a dark and on a light background.
"""

import contextlib
import os
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from meshd.identity.invite import parse_token

from tests.e2e.models import cache_folder, cache_without_models, native, smollm2
from tests.process.scenes import living
from tests.process.tmux import MESHD, Tmux, keep_pictures, terminal, until

pytestmark = [
    pytest.mark.native,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux"),
]
GREEN, RED, YELLOW = "\x1b[32m", "\x1b[31m", "\x1b[33m"
LOGGED = re.compile(r"\barea=")  # in each line of the log
SLOWLY = ("--max-upload", "20MB")  # so that a load can be looked at
READY_SECONDS = 240.0


@dataclass(frozen=True, slots=True)
class Desk:
    """A person's terminals of one size, and the folder of their nodes' homes."""

    folder: Path
    columns: int

    def environ(self, home: str) -> dict[str, str]:
        return {
            "HOME": str(self.folder),
            "MESHD_HOME": str(self.folder / home),
            "MESHD_CACHE": str(cache_without_models(self.folder)),
            "MESHD_SPLIT": "always",
            "MESHD_NO_LOCAL": "1",
        }

    @contextlib.contextmanager
    def opened(self, home: str, *words: str, rows: int = 40, **variables: str) -> Iterator[Tmux]:
        """Run `meshd WORDS` in a terminal inside."""
        environ = {**self.environ(home), **variables}
        with terminal(self.folder, (*MESHD, *words), columns=self.columns, rows=rows, env=environ) as tmux:
            yield tmux

    def ran(self, home: str, line: str, *, code: int = 0, rows: int = 50) -> str:
        """Return the screen that a command leaves, with its colours."""
        with self.opened(home, *line.split(), rows=rows) as tmux:
            screen = tmux.until(lambda screen: "[ended " in screen, seconds=READY_SECONDS)
            assert f"[ended {code}]" in screen
            return self.kept("-".join(re.findall(r"(?:^| )-*([a-z]+)", line)), tmux)

    def kept(self, name: str, tmux: Tmux) -> str:
        """Keep a picture of the screen, and return it with its colours; no line of it is broken badly."""
        for line in tmux.screen(joined=True).splitlines():
            # what the terminal itself had to break is a path or an invite, which nobody else may break
            assert len(line) <= self.columns or max(map(len, line.split())) > self.columns // 2, line
        screen = tmux.screen(colours=True)
        if (folder := os.environ.get("MESHD_SCREENS")) is not None:
            keep_pictures(Path(folder), f"{name}-{self.columns}", screen, self.columns)
        return screen


def labels(screen: str) -> list[str]:
    """The first words of the lines that have a label."""
    return [found[1] for line in screen.splitlines() if (found := re.match(r"(\w[\w:]{1,6}) +\S", line))]


def token_on(screen: str) -> str:
    """The invite, which stands between empty lines."""
    lines = screen.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("meshd1"))
    return "".join(lines[first : lines.index("", first)])


def in_order(screen: str, *words: str) -> bool:
    places = [screen.find(word) for word in words]
    return -1 not in places and places == sorted(places)


@pytest.mark.parametrize("columns", [80, 120])
def test_the_first_minutes_of_a_new_user(tmp_path: Path, columns: int) -> None:
    native()
    desk = Desk(tmp_path, columns)
    listen = ("--listen", "127.0.0.1:0")
    with desk.opened("garage", "worker", "--name", "garage", *listen) as worker:
        # A worker says what it is and lends, prints the invite, and waits.
        screen = worker.until(lambda screen: "waiting for a node" in screen)
        assert in_order(screen, "node  ", "mesh  ", "log  ", "invite  ", "meshd1", "meshd serve", "waiting")
        token = token_on(screen)
        assert parse_token(token).candidates
        desk.kept("worker-waits", worker)
        head_words = ("serve", "--name", "desk", "--model", str(smollm2()), "--port", "0", "--device", "none")
        with desk.opened("desk", *head_words, *listen, *SLOWLY, MESHD_JOIN=token) as head:
            # A head shows how far the load is, then where to chat.
            head.until(lambda screen: re.search(r"━ .*\d%", screen) is not None, seconds=READY_SECONDS)
            desk.kept("serve-loads", head)  # or what follows it: a load is short
            desk.ran("desk", "status")
            screen = head.until(
                lambda screen: "serving;" in screen and "ready  " in screen, seconds=READY_SECONDS
            )
            assert in_order(
                screen, "node  ", "garage connected", "loaded in", "ready  ", "http://", "serving;"
            )
            assert f"{GREEN}ready" in desk.kept("serve-is-ready", head)
            worker.until(lambda screen: "lends " in screen.splitlines()[-1])
            desk.kept("worker-lends", worker)
            # The other commands.
            look_around(desk)
            # Ctrl-C ends it; the worker sees it go.
            head.keys("C-c")
            assert "[ended 130]" in head.until(lambda screen: "[ended " in screen)
            assert not LOGGED.search(head.screen())
            desk.kept("serve-has-ended", head)
        screen = worker.until(lambda screen: "desk away" in screen and "let go" in screen)
        assert screen.splitlines()[-1].startswith("waiting for a node")
        desk.kept("worker-waits-again", worker)
        assert not LOGGED.search(screen)
        assert LOGGED.search((tmp_path / "garage/logs/meshd.log").read_text())
        # The window is closed: the daemon and its children go.
        daemon = worker.foreground()
        worker.close_window()
        until(lambda: not living({daemon}))
        assert "the terminal has gone" in (tmp_path / "garage/logs/meshd.log").read_text()


def look_around(desk: Desk) -> None:
    """Look at the nodes as a new user would."""
    status = desk.ran("desk", "status")
    assert f"{GREEN}ready" in status and f"{GREEN}connected" in status
    with desk.opened("desk", "status", "--watch") as watch:
        watch.until(lambda screen: "garage" in screen)
        assert watch.is_alternate()
        desk.kept("status-watch", watch)
        watch.keys("C-c")
        watch.until(lambda screen: "[ended 130]" in screen)
        assert not watch.is_alternate() and watch.shows_cursor()
    desk.ran("garage", "status")
    desk.ran("desk", "peers")
    assert "garage" in desk.ran("desk", f"plan --model {smollm2()}")
    assert "█" in desk.ran("garage", "invite --qr")
    desk.ran("garage", "invite ls")
    assert f"{GREEN}ok" in desk.ran("garage", "doctor", code=0)
    desk.ran("desk", "capacity")
    desk.ran("desk", "model ls")
    desk.ran("desk", "netcheck", code=1)
    desk.ran("desk", "ping garage --count 2")
    assert f"{RED}error:" in desk.ran("desk", "serve --model nosuch.gguf", code=1)
    assert f"{RED}error:" in desk.ran("desk", "stauts", code=2)


def test_verbose_prints_the_log_as_it_is_elsewhere(tmp_path: Path) -> None:
    native()
    desk = Desk(tmp_path, 120)
    with desk.opened("garage", "worker", "-v", "--listen", "127.0.0.1:0") as worker:
        screen = worker.until(lambda screen: "meshd1" in screen and "meshd serve" in screen)
        assert LOGGED.search(screen)
        os.kill(worker.foreground(), signal.SIGTERM)
        assert "[ended 0]" in worker.until(lambda screen: "[ended " in screen)


def test_what_keeps_a_node_from_starting_is_said_on_a_clean_line(tmp_path: Path) -> None:
    native()
    desk = Desk(tmp_path, 80)
    screen = desk.ran("garage", "worker --device CUDA9 --listen 127.0.0.1:0", code=1)
    assert f"{RED}error:" in screen and "hint:" in screen
    assert screen.splitlines()[0].startswith(RED) and "checking" not in screen
    assert cache_folder().is_dir()
