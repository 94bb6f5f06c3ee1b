"""Machines in one or several networks: network namespaces on bridges. Linux, root.

Each namespace is held by nothing but its name, which begins with `mdl`; all are removed at the end.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from types import TracebackType
from typing import Self


@cache
def skip_reason() -> str:
    """Why there can be none here; empty when there can."""
    if shutil.which("ip") is None:
        return "needs ip (Debian: apt-get install iproute2)"
    if os.geteuid() != 0:
        return "needs root: network namespaces on a bridge"
    name = f"mdl{os.getpid()}p"
    done = _run("ip", "netns", "add", name, check=False)
    if done.returncode == 0:
        _run("ip", "netns", "del", name)
    return "" if done.returncode == 0 else f"network namespaces are not allowed here: {done.stderr.strip()}"


def _run(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise OSError(f"`{' '.join(words)}`: {done.stderr.strip()}")
    return done


class Lan:
    """Context manager. Machines are known by words; networks are numbers, and 10.N.0.0/24 and fdN::/64."""

    def __init__(self) -> None:
        self._prefix = f"mdl{os.getpid()}"
        self._spaces: list[str] = []

    def __enter__(self) -> Self:
        self._add("switch")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in reversed(self._spaces):
            _run("ip", "netns", "del", name, check=False)

    def _add(self, machine: str) -> None:
        name = f"{self._prefix}{machine}"
        _run("ip", "netns", "add", name)
        self._spaces.append(name)
        self.run(machine, "ip", "link", "set", "lo", "up")

    def run(self, machine: str, *words: str) -> str:
        """Run a program on a machine, to its end. Raises OSError."""
        return _run(*self.prefix(machine), *words).stdout

    def prefix(self, machine: str) -> tuple[str, ...]:
        """Return the command that runs a program on a machine."""
        return ("ip", "netns", "exec", f"{self._prefix}{machine}")

    def program(self, machine: str, *words: str) -> Sequence[str]:
        """A command line that runs a Python module on a machine, warnings being errors."""
        return [*self.prefix(machine), sys.executable, "-X", "dev", "-W", "error", "-m", *words]

    def plug(self, machine: str, network: int, *, interface: str = "eth0", host: int = 0) -> str:
        """Connect a machine to a network (both are made if need be); returns its IPv4 address."""
        if f"{self._prefix}{machine}" not in self._spaces:
            self._add(machine)
        bridge = f"br{network}"
        if bridge not in self.run("switch", "ip", "-o", "link"):
            self.run("switch", "ip", "link", "add", bridge, "type", "bridge", "mcast_snooping", "0")
            self.run("switch", "ip", "link", "set", bridge, "up")
        host = host or self._spaces.index(f"{self._prefix}{machine}")
        port = f"{machine}{network}"[:15]
        peer = ("peer", "name", interface, "netns", f"{self._prefix}{machine}")
        self.run("switch", "ip", "link", "add", port, "type", "veth", *peer)
        self.run("switch", "ip", "link", "set", port, "master", bridge, "up")
        self.run(machine, "ip", "address", "add", f"10.{network}.0.{host}/24", "dev", interface)
        six = f"fd{network:02}::{host}/64"
        self.run(machine, "ip", "address", "add", six, "dev", interface, "nodad")
        self.run(machine, "ip", "link", "set", interface, "up")
        return f"10.{network}.0.{host}"

    def slow(self, machine: str, network: int, *, down: float = 0, up: float = 0) -> None:
        """Its line to the network brings and takes so many bytes a second; 0: as many as there are."""
        for space, device, rate in (("switch", f"{machine}{network}"[:15], down), (machine, "eth0", up)):
            if rate:
                shape = ("tbf", "rate", f"{int(rate * 8)}bit", "burst", "128kb", "latency", "50ms")
                self.run(space, "tc", "qdisc", "add", "dev", device, "root", *shape)

    def unplug(self, machine: str, interface: str = "eth0") -> None:
        """Take an interface away."""
        self.run(machine, "ip", "link", "del", interface)

    def filter_multicast(self, machine: str) -> None:
        """The machine's own packets to groups go nowhere, nor do those of others come in (a guest Wi-Fi)."""
        rules = (
            "table inet filter { "
            "chain in { type filter hook input priority 0; meta pkttype multicast drop; }; "
            "chain out { type filter hook output priority 0; ip daddr 224.0.0.0/4 drop; "
            "ip6 daddr ff02::fb drop; }; }"
        )
        self.run(machine, "nft", rules)
