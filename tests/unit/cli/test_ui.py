"""`meshd ui` opens a browser without a secret among its arguments, or prints the link."""

import stat
import webbrowser
from dataclasses import dataclass, field
from pathlib import Path
from typing import SupportsIndex
from urllib.parse import unquote, urlsplit

import pytest
from meshd.cli import ui
from meshd.cli.ui import has_display

from tests.unit.admin.fake import UI_URL, FakeControl

from .shell import meshd, refused


@dataclass
class FakeBrowser:
    """Notes what it is given, and what it finds there; `opens`: then the node hears of it."""

    control: FakeControl
    opens: bool = True
    given: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    modes: list[int] = field(default_factory=list)

    def open(self, url: str) -> bool:
        file = Path(unquote(urlsplit(url).path))
        self.given.append(url)
        self.texts.append(file.read_text(encoding="utf-8"))
        self.modes.append(stat.S_IMODE(file.stat().st_mode))
        self.control.link_states.append("opened" if self.opens else "ended")
        return True


class WaitingList(list[str]):
    """Says `waiting` while nothing else is there."""

    def pop(self, _index: SupportsIndex = 0) -> str:
        return super().pop(0) if self else "waiting"


@pytest.fixture
def browser(daemon: FakeControl, monkeypatch: pytest.MonkeyPatch) -> FakeBrowser:
    """The system's browser, on a screen."""
    daemon.link_states = WaitingList()  # type: ignore[assignment]  # a list of states
    made = FakeBrowser(daemon)
    monkeypatch.setattr(webbrowser, "get", lambda: made)
    monkeypatch.setattr(ui, "_LOOK_SECONDS", 0.01)
    for name in ("SSH_CONNECTION", "SSH_TTY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    return made


def test_a_browser_gets_a_private_file_that_is_gone_afterwards(browser: FakeBrowser, home: Path) -> None:
    ran = meshd("ui")
    assert (ran.code, ran.out) == (0, "opened http://127.0.0.1:8090/mesh in your browser\n")
    [given], [text], [mode] = browser.given, browser.texts, browser.modes
    assert given.startswith("file:///") and "secret" not in given
    assert f'content="0; url={UI_URL}"' in text
    assert mode == 0o600
    assert list(home.glob("*.html")) == []
    assert "secret" not in ran.out + ran.err


def test_a_link_that_no_browser_opens_is_said(browser: FakeBrowser, home: Path) -> None:
    browser.opens = False
    ran = meshd("ui")
    assert ran.code == 1
    assert "no browser has opened the page within a minute" in ran.err and "meshd ui --print" in ran.err
    assert list(home.glob("*.html")) == []


def test_no_browser_at_all_is_said(browser: FakeBrowser, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "get", none)
    refused(meshd("ui"), 1, "no browser was found", "meshd ui --print")
    assert list(home.glob("*.html")) == []


@pytest.mark.parametrize("argv", [("ui", "--print"), ("ui",)])
def test_the_link_is_printed_where_there_is_no_display(
    daemon: FakeControl, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...]
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 1 10.0.0.2 22")
    ran = meshd(*argv)
    assert (ran.code, ran.out) == (0, f"{UI_URL}\n")
    assert "secret" in ran.err  # what it is, for people
    assert daemon.link_states == []


def test_the_link_for_other_devices_stands_beside_the_result(daemon: FakeControl) -> None:
    daemon.lan_url = "http://10.0.0.5:8090/mesh/open?once=secret"
    ran = meshd("ui", "--print")
    assert ran.out == f"{UI_URL}\n"
    assert f"from other devices, with an API key: {daemon.lan_url}\n" in ran.err


@pytest.mark.parametrize(
    ("environ", "platform", "shows"),
    [
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({}, "linux", False),
        ({}, "darwin", True),
        ({"DISPLAY": "localhost:10.0", "SSH_CONNECTION": "a 1 b 22"}, "linux", False),
        ({"SSH_TTY": "/dev/pts/1"}, "darwin", False),
    ],
)
def test_a_display_is_that_of_this_machine(environ: dict[str, str], platform: str, shows: bool) -> None:
    assert has_display(environ, platform) is shows


def test_without_a_daemon_it_says_how_to_start_one() -> None:
    refused(meshd("ui"), 1, "no daemon is running")
