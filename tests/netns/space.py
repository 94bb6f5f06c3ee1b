"""Network namespaces by name: made, entered, removed; what a crash left is swept by its name.

A name is `meshdtest-PID-START-NUMBER-LABEL`: the process that made it, told from a later one of the same
number by its start time. So runs side by side do not meet, and the run after a crash can clean up.
Needs root on Linux, iproute2 and nftables (`skip_reason`).
"""

import ctypes
import errno
import itertools
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")

PREFIX = "meshdtest"
FOLDER = Path("/run/netns")  # of iproute2
FILES = Path("/etc/netns")  # NAME/hosts there is /etc/hosts for programs inside (ip-netns(8))
HOSTS = "127.0.0.1 localhost\n::1 localhost\n"
HOW_TO_GET = "apt-get install -y nftables iproute2"
_CLONE_NEWNET = 0x40000000  # sched.h
_AF_NETLINK = 16  # Python has the name on Linux alone
_numbers = itertools.count()


@cache
def skip_reason() -> str:
    """Why the bench cannot run here, with what to do about it; empty when it can."""
    return _lacking() if sys.platform == "linux" else "network namespaces: Linux only"


def _lacking() -> str:
    if os.geteuid() != 0:
        return "network namespaces: needs root (`sudo make test`)"
    for program in ("ip", "nft", "nsenter"):
        if shutil.which(program) is None:
            return f"network namespaces: `{program}` is missing: {HOW_TO_GET}"
    if not Path("/dev/net/tun").exists():
        return "network namespaces: /dev/net/tun is missing"
    try:
        with Namespace("try") as space:
            space.nft("table ip try { chain c { type nat hook postrouting priority srcnat; }; }")
    except CannotError as error:
        return f"network namespaces are not allowed here: {error}"
    return ""


class CannotError(Exception):
    """A program of the system refused."""


class Namespace:
    """Context manager for one namespace, with loopback up."""

    def __init__(self, label: str) -> None:
        pid = os.getpid()
        self.label = label
        self.name = f"{PREFIX}-{pid}-{_start_of(pid)}-{next(_numbers)}-{label}"

    def __enter__(self) -> Self:
        FOLDER.mkdir(exist_ok=True)
        _command(["ip", "netns", "add", self.name])
        try:
            # an address may be used the moment it is given: nobody else has it
            values = {"net/ipv6/conf/default/accept_dad": "0", "net/ipv6/conf/all/accept_dad": "0"}
            self.sysctl(values)
            self.ip("link set lo up")
            (FILES / self.name).mkdir(parents=True, exist_ok=True)
            self.set_names("")
            # nobody answers there, which is found at once; the machine's own server would time out
            (FILES / self.name / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        except BaseException:
            remove(self.name)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        remove(self.name)

    @property
    def path(self) -> Path:
        """The file that stands for it."""
        return FOLDER / self.name

    @property
    def prefix(self) -> tuple[str, ...]:
        """Return the command that runs a program inside (NodeSpec.prefix); the program keeps the pid."""
        return ("ip", "netns", "exec", self.name)

    def set_names(self, lines: str) -> None:
        """Lines of /etc/hosts for programs that are started inside from now on; there is no DNS."""
        (FILES / self.name / "hosts").write_text(HOSTS + lines)

    def ip(self, *lines: str) -> None:
        """Commands of ip(8), one a line, in one call. Raises CannotError."""
        _command(["ip", "-n", self.name, "-batch", "-"], "\n".join(lines) + "\n")

    def nft(self, rules: str) -> None:
        """Load nftables rules. Raises CannotError."""
        _command(["nsenter", f"--net={self.path}", "--", "nft", "-f", "-"], rules)

    def sysctl(self, values: Mapping[str, str]) -> None:
        """Write files below /proc/sys."""

        def write() -> None:
            for name, value in values.items():
                Path("/proc/sys", name).write_text(value)

        self.call(write)

    def call(self, work: Callable[[], T]) -> T:
        """Run `work` inside, in a thread of its own. Sockets that it makes stay inside wherever they go."""
        worker = _Inside(self.path, work)
        worker.start()
        worker.join()
        return worker.result()

    def socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """A socket that lives inside; the caller closes it."""
        return self.call(lambda: socket.socket(family, kind, protocol))

    def listing(self, *words: str) -> str:
        """Return what `ip WORDS` says inside."""
        return _command(["ip", "-n", self.name, *words])

    def nft_listing(self, *words: str) -> str:
        """Return what `nft -j list WORDS` says inside."""
        return _command(["nsenter", f"--net={self.path}", "--", "nft", "-j", "list", *words])

    def forget_flows(self) -> None:
        """Empty the table of connections: every NAT mapping is gone, as after a reboot of a router.

        One netlink message: IPCTNL_MSG_CT_DELETE without a tuple (nfnetlink_conntrack.h).
        """
        delete_all = struct.pack("=IHHII4x", 20, (1 << 8) | 2, 0x0001 | 0x0004, 1, 0)  # request, acknowledged
        with self.socket(_AF_NETLINK, socket.SOCK_RAW, 12) as link:  # NETLINK_NETFILTER
            link.send(delete_all)
            (code,) = struct.unpack_from("=i", link.recv(4096), 16)
            if code:
                raise CannotError(f"conntrack: {errno.errorcode.get(-code, code)}")


class _Inside(threading.Thread, Generic[T]):
    """Network namespaces belong to threads: this one enters and ends, the others stay where they are."""

    def __init__(self, path: Path, work: Callable[[], T]) -> None:
        super().__init__(name="inside a namespace", daemon=True)
        self._path = path
        self._work = work
        self._results: list[T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            enter(self._path)
            self._results.append(self._work())
        except BaseException as error:
            self._error = error  # raised where it was asked for

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._results[0]


def enter(path: Path) -> None:
    """Move the calling thread (setns(2)). Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns {path}")
    finally:
        os.close(descriptor)


def _command(argv: Sequence[str], given: str = "") -> str:
    done = subprocess.run(argv, input=given, capture_output=True, text=True, check=False, timeout=30.0)
    if done.returncode != 0:
        raise CannotError(f"{' '.join(argv[:4])}: {done.stderr.strip()} {given.strip()[:2000]}")
    return done.stdout


def remove(name: str) -> None:
    """End what still runs inside, and the namespace. Nothing happens when it is gone."""
    if (FOLDER / name).exists():
        for pid in pids_inside(name):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False, timeout=30.0)
    shutil.rmtree(FILES / name, ignore_errors=True)


def pids_inside(name: str) -> tuple[int, ...]:
    """Processes whose main thread is in the namespace."""
    done = subprocess.run(
        ["ip", "netns", "pids", name], capture_output=True, text=True, check=False, timeout=30.0
    )
    return tuple(pid for pid in map(int, done.stdout.split()) if pid != os.getpid())


def leftovers() -> tuple[str, ...]:
    """Namespaces of test runs that have ended without removing them."""
    folders = [folder for folder in (FOLDER, FILES) if folder.exists()]
    names = {path.name for folder in folders for path in folder.iterdir()}
    return tuple(sorted(name for name in names if name.startswith(f"{PREFIX}-") and not _maker_lives(name)))


def sweep() -> None:
    """Remove leftovers, and end what runs in them."""
    for name in leftovers():
        remove(name)


def _maker_lives(name: str) -> bool:
    parts = name.split("-", 4)
    return len(parts) == 5 and parts[1].isdecimal() and _start_of(int(parts[1])) == parts[2]


def _start_of(pid: int) -> str:
    """Start time of a process in ticks since boot; empty when there is none (proc(5), stat, field 22)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
