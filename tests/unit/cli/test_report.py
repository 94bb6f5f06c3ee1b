"""`meshd report`: the file, with a daemon that answers, without one, and where things are broken."""

import re
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.report import document
from meshd.report.document import Section, write_report
from meshd.report.secrets import Places

from tests.process.cli_daemon import hostile_status
from tests.unit.admin.fake import NETCHECK, FakeControl
from tests.unit.admin.why_replies import why_reply

from .shell import meshd, refused

TITLES = (
    *("versions", "installation", "machine", "GPUs", "settings", "doctor", "services", "status", "network"),
    *("time of a token", "disks", "logs"),
)


@pytest.fixture(autouse=True)
def here(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory; no server is asked, and no hub's token is the user's."""
    del home
    monkeypatch.setenv("MESHD_STUN", "none")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def written(*options: str) -> str:
    """Return the text of a report."""
    ran = meshd("report", *options)
    assert ran.code == 0, ran
    return Path(ran.out.removesuffix("\n")).read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    """Return one section of a report."""
    found = re.search(rf"^== {title} ==\n((?:  .*\n|\n)*)", text + "\n", re.MULTILINE)
    assert found, text
    return found[1]


def test_the_file_is_private_and_its_name_says_what_it_is(here: Path) -> None:
    ran = meshd("report")
    [file] = here.iterdir()
    assert ran.out == f"{file.name}\n"
    assert re.fullmatch(r"meshd-report-([\w.-]+-)?\d{8}-\d{6}\.txt", file.name)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for words in ("nothing was sent", "secrets: 0 places", "addresses: ", "left out: ", *TITLES):
        assert words in ran.err, words
    assert re.findall(r"^== (.*) ==$", file.read_text(), re.MULTILINE) == list(TITLES)


def test_a_file_that_is_there_is_not_touched(here: Path) -> None:
    (here / "mine.txt").write_text("mine")
    (here / "link.txt").symlink_to(here / "elsewhere.txt")
    for name in ("mine.txt", "link.txt"):
        refused(meshd("report", name), 1, f"`{name}` already exists", "meshd report FILE")
    assert (here / "mine.txt").read_text() == "mine" and not (here / "elsewhere.txt").exists()


def test_a_place_that_cannot_be_written_is_an_error(here: Path) -> None:
    refused(meshd("report", "none/x.txt"), 1, "cannot write `none/x.txt`", "meshd report FILE")
    assert list(here.iterdir()) == []


def test_with_a_daemon_it_has_its_status(daemon: FakeControl) -> None:
    daemon.why_reply = why_reply()
    text = written("report.txt")
    status = section(text, "status")
    assert "name: desk" in status and "remote: 192.168.1.5:17430" in status
    assert "anna" not in status, "the name of an API key"
    network = section(text, "network")
    assert NETCHECK.public_v4 is not None and NETCHECK.public_v4 not in text
    assert "public_v4: ip4-1" in network and "gateway: 192.168.1.1" in network
    assert "measured" in section(text, "time of a token")


def test_without_one_each_part_says_so() -> None:
    text = written("report.txt")
    for title in ("status", "network", "time of a token"):
        assert "not available: no daemon is running" in section(text, title)
    assert "native_missing" in section(text, "doctor")
    assert "links.stun = []  (environment MESHD_STUN)" in section(text, "settings")


def test_a_hostile_member_cannot_forge_a_section_or_move_the_cursor(daemon: FakeControl) -> None:
    daemon.state = hostile_status(daemon.state)
    peers = tuple(replace(peer, last_error="\n== logs ==\n  mine") for peer in daemon.state.peers)
    daemon.state = replace(daemon.state, peers=peers)
    text = written("report.txt")
    assert re.findall(r"^== (.*) ==$", text, re.MULTILINE) == list(TITLES)
    assert all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("broken", ["[node\n", 'colour = "red"\n', "\xff"])
def test_a_broken_configuration_is_shown_as_such(
    here: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    (here / "m.toml").write_text(f'join = "planted-0123456789"\n{broken}', encoding="latin-1")
    monkeypatch.setenv("MESHD_CONFIG", "m.toml")
    text = written("report.txt")
    assert "not usable: " in section(text, "settings") and "config_unusable" in section(text, "doctor")
    assert "planted" not in text


def test_secrets_of_settings_are_not_shown(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "m.toml").write_text(
        '[node]\njoin = "planted-0123456789"\n'
        '[serve]\nllama_args = ["--chat-template", "planted words", "-t", "4"]\n'
    )
    monkeypatch.setenv("MESHD_CONFIG", "m.toml")
    settings = section(written("report.txt"), "settings")
    assert "node.join = [hidden]" in settings
    assert "serve.llama_args = --chat-template … -t 4" in settings


def test_a_home_that_is_no_directory_is_told(home: Path) -> None:
    home.write_text("a file")
    text = written("report.txt")
    assert "cannot be read: not a directory" in section(text, "logs")
    assert "home_unwritable" in section(text, "doctor")


def test_the_name_of_the_file_has_no_name_of_a_person(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "zoltan")
    monkeypatch.setenv("MESHD_NAME", "zoltan-desktop")
    assert "zoltan" not in written()
    [file] = here.iterdir()
    assert file.name.startswith("meshd-report-desktop-")


def test_in_a_directory_that_is_gone_it_says_so(here: Path) -> None:
    here.rmdir()
    refused(meshd("report"), 1, "the current directory is gone")


def test_no_line_of_a_section_begins_another() -> None:
    lines = ["why: x\n== logs ==\n  mine", "\x1b[2J"]
    text = write_report(
        [Section("s", lambda: lines)], Places(homes=(), environs=[{"HF_HOME": "/nonexistent"}]), (), now=1e9
    ).text
    assert section(text, "s") == "  why: x\\n== logs ==\\n  mine\n  \\x1b[2J\n\n"


def test_a_section_that_fails_or_hangs_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from threading import Event

    def fail() -> list[str]:
        raise ZeroDivisionError

    def hang() -> list[str]:
        Event().wait()
        return []

    sections = [Section("fails", fail), Section("hangs", hang, 0.1), Section("works", lambda: ["fine"])]
    text = write_report(sections, Places(homes=(), environs=[{"HF_HOME": "/nonexistent"}]), (), now=1e9).text
    assert "not available: " in section(text, "fails")
    assert section(text, "hangs") == "  cut off after 0 s\n\n" and "fine" in section(text, "works")


def test_without_a_search_for_secrets_nothing_is_written(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_places: Places) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(document, "find_secrets", broken)
    ran = meshd("report")
    assert (ran.code, ran.out) == (1, "") and "error: cannot search for the secrets" in ran.err
    assert list(here.iterdir()) == []


def test_a_report_is_bounded() -> None:
    words = "8.8.8.8 " * 20
    sections = [Section(f"s{number}", lambda: (words for _ in range(10**5)), 30.0) for number in range(40)]
    report = write_report(sections, Places(homes=(), environs=[{"HF_HOME": "/nonexistent"}]), (), now=1e9)
    assert len(report.text.encode()) < document.MOST_BYTES + 10_000
    assert "left out for their size" in report.text and "were cut off" in report.text
