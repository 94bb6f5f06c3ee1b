"""`meshd relay` as a child of a test."""

import os
import re
import resource
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from meshd.identity.invite import RelayHint, parse_relay_url, split_place

LOOPBACK = "127.0.0.1"


class Relay:
    """A relay's process in a home of its own; `start` may be called again after `end`."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.key_file = home / "relay" / "identity.key"
        self.process: subprocess.Popen[str] | None = None
        self._url = ""
        self.hint: RelayHint

    def start(self, *options: str, port: int = 0) -> RelayHint:
        """Start it; returns where it is."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("MESHD_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "meshd", "relay", "--listen", f"{LOOPBACK}:{port}", *options],
            env={**environ, "MESHD_HOME": str(self._home)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.hint = parse_relay_url(self.process.stdout.readline())
        return self.hint

    @property
    def port(self) -> int:
        return split_place(self.hint.place)[1]

    def metrics(self) -> str:
        """Return the metrics at the port of `--metrics`, which must have been given."""
        assert self.process is not None
        assert self.process.stderr is not None
        while not self._url:
            found = re.search(r"http://\S+", self.process.stderr.readline())
            self._url = found[0] if found else ""
        with urllib.request.urlopen(self._url, timeout=10) as reply:
            text: str = reply.read().decode()
        return text

    def rss(self) -> int:
        """Resident bytes."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()
        return int(fields[1]) * resource.getpagesize()

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Exit code, what else it wrote to stdout, stderr."""
        assert self.process is not None
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, out, err


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Relay]:
    found = Relay(tmp_path / "home")
    yield found
    if found.process is not None and found.process.poll() is None:
        found.process.kill()
        found.process.communicate()
