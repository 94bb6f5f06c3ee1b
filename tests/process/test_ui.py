"""`meshd ui` as a process: another user of this machine, who sees all arguments, learns no secret."""

import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from meshd.admin import api
from meshd.admin.request import Request

from tests.process.test_cli import meshd
from tests.unit.admin.fake import UI_URL, FakeControl, R
from tests.unit.admin.fake_server import running

# Stands for a browser: notes what other users could see of it, and what it finds in the file.
BROWSER = """#!/bin/sh
cat /proc/$$/cmdline /proc/$PPID/cmdline > "$SEEN/arguments"
file="${1#file://}"
stat -c %a "$file" > "$SEEN/mode"
cp "$file" "$SEEN/page"
: > "$SEEN/opened"
"""


@dataclass
class Opened(FakeControl):
    """A daemon whose link has been opened once the browser has run."""

    seen: Path = field(default_factory=Path)

    async def answer(self, request: Request[R]) -> R:
        if isinstance(request, api.UiLinkRequest):
            self.link_states = ["opened" if (self.seen / "opened").exists() else "waiting"]
        return await super().answer(request)


@pytest.fixture
def seen(tmp_path: Path) -> Iterator[Path]:
    """The folder of what the browser saw, while a daemon answers."""
    folder = tmp_path / "seen"
    folder.mkdir()
    with running(tmp_path / "home", Opened(seen=folder)):
        yield folder


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_argument_of_a_process_has_the_secret(tmp_path: Path, seen: Path) -> None:
    program = tmp_path / "browser"
    program.write_text(BROWSER, encoding="utf-8")
    program.chmod(0o700)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MESHD_", "SSH_"))}
    home = tmp_path / "home"
    environ = {**plain, "MESHD_HOME": str(home), "BROWSER": str(program), "DISPLAY": ":0", "SEEN": str(seen)}
    ran = meshd(environ, "ui")
    assert ran.returncode == 0, ran.stderr
    assert "secret" not in ran.stdout + ran.stderr
    arguments = (seen / "arguments").read_text(encoding="utf-8")
    assert "file://" in arguments and "secret" not in arguments
    assert (seen / "mode").read_text(encoding="utf-8") == "600\n"
    assert UI_URL in (seen / "page").read_text(encoding="utf-8")
    assert list(home.glob("ui-*")) == []
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
