"""A name that was given once stays the node's, until another one is given."""

from pathlib import Path

import pytest
from meshd.config.load import keep_name, load, with_kept_name
from meshd.config.tree import host_name
from meshd.identity.keystore import Home
from meshd.identity.naming import NAME_BLOB


def started(home: Home, *, option: str = "", file: Path | None = None) -> tuple[str, str]:
    """A start of a daemon: its name, and where that came from."""
    options = {"node.name": option} if option else {}
    loaded = with_kept_name(load(options=options, environ={"MESHD_HOME": str(home.path)}, file=file))
    keep_name(home, loaded.config.node.name)
    assert {one.setting.name: one.value for one in loaded.values}["node.name"] == loaded.config.node.name
    return loaded.config.node.name, loaded.origin("node.name")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_a_name_that_was_given_is_there_at_the_next_start(home: Home) -> None:
    assert started(home, option="garage") == ("garage", "option --name")
    assert started(home) == ("garage", f"kept in {home.path}")
    assert started(home, option="attic") == ("attic", "option --name")
    assert started(home)[0] == "attic"


def test_what_is_given_wins_over_what_is_kept(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "meshd.toml"
    file.write_text('[node]\nname = "cellar"\n')
    started(home, option="garage")
    assert started(home, file=file) == ("cellar", f"file {file}")


def test_the_name_of_the_host_is_kept_only_in_place_of_another(home: Home) -> None:
    assert started(home) == (host_name(), "default")
    assert home.read_blob(NAME_BLOB) is None  # another name of the host is the node's as well
    started(home, option="garage")
    started(home, option=host_name())
    assert started(home)[0] == host_name()


@pytest.mark.parametrize("blob", [b"", b"\xff", b"two words", b"aaaaaaaaaaaa"])
def test_a_note_that_is_no_name_is_no_note(home: Home, blob: bytes) -> None:
    home.write_blob(NAME_BLOB, blob)
    assert started(home) == (host_name(), "default")
