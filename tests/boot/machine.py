"""A machine that systemd starts as process 1, in namespaces, over the files of another root.

What is written stays in a folder, so that the machine can be switched off and on again. It has no network but
loopback, or that of a namespace made for it, which stays when it is off.
"""

import contextlib
import os
import platform
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

SYSTEMD = Path("/lib/systemd/systemd")
BOOT_SECONDS = 90.0
END_SECONDS = 60.0
RUN_SECONDS = 180.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOME = "/root"
_NAMESPACES = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--fork"]
_ENTERED = ["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--wdns=/", "--"]
# Everything but what systemd does itself. $1: the folder; the rest: files of this machine and their places.
_START = """
set -e
folder=$1 root=$1/root systemd=$2 path=$3 lower=$4; shift 4
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$folder/upper,workdir=$folder/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
for place in run tmp dev; do mount -t tmpfs -o mode=755 tmpfs "$root/$place"; done
chmod 1777 "$root/tmp"
# nodes of its own: systemd changes the mode of its console
node() { mknod -m 666 "$root/dev/$1" c "$2" "$3"; }
node null 1 3; node zero 1 5; node full 1 7; node random 1 8; node urandom 1 9; node tty 5 0; node console 1 3
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"; ln -s pts/ptmx "$root/dev/ptmx"
while [ $# -gt 0 ]; do
    if [ -d "$1" ]; then mkdir -p "$root$2"; else mkdir -p "$(dirname "$root$2")"; touch "$root$2"; fi
    mount --bind "$1" "$root$2"; mount -o remount,bind,ro "$root$2"; shift 2
done
cd "$root"; mkdir -p .old; pivot_root . .old; umount -l /.old
mount --make-rshared /  # as systemd does where it is not in a container: credentials need it
exec env -i "PATH=$path" container=meshd-test "$systemd" --system --unit=multi-user.target \
    --log-target=console --show-status=no
"""


def skip_reason() -> str:
    """Return why no machine can be started here; empty if one can."""
    if platform.system() != "Linux" or os.geteuid() != 0:
        return "needs root on Linux"
    lacking = [name for name in ("unshare", "nsenter", "pivot_root") if shutil.which(name) is None]
    if lacking or not SYSTEMD.exists():
        return f"systemd is not installed here: no {', '.join(lacking) or SYSTEMD}"
    tried = (
        "mount -t cgroup2 cgroup2 /mnt; mount -t tmpfs tmpfs /mnt; mkdir /mnt/u /mnt/w /mnt/root; "
        "mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/u,workdir=/mnt/w /mnt/root"
    )
    done = subprocess.run(
        [*_NAMESPACES, "--net", "sh", "-ec", tried], capture_output=True, text=True, check=False
    )
    return f"no namespaces with mounts can be made here: {done.stderr.strip()}" if done.returncode else ""


@dataclass
class Machine:
    """`folder` holds what it has written over the files of `root`; `mounts` are more files, and their places.

    `program`: the path of meshd there. `network`: the file of a network namespace, instead of loopback alone.
    """

    folder: Path
    program: str
    root: Path = Path("/")
    mounts: Mapping[Path, str] = field(default_factory=dict)
    name: str = "booted"
    network: Path | None = None
    _leader: int = 0
    _outer: "subprocess.Popen[bytes] | None" = None
    _group: Path | None = None

    @property
    def upper(self) -> Path:
        """The folder with what it has written."""
        return self.folder / "upper"

    def prepare(self) -> None:
        """Make what every machine has of its own."""
        for name in ("work", "root", "upper/etc/systemd/system", "upper/var/log/journal"):
            (self.folder / name).mkdir(parents=True)
        machine_id = uuid.uuid5(uuid.NAMESPACE_DNS, self.name).hex
        files = {"machine-id": f"{machine_id}\n", "fstab": "", "hostname": f"{self.name}\n"}
        for name, text in files.items():
            (self.upper / "etc" / name).write_text(text)
        (self.upper / "etc/systemd/system/console-getty.service").symlink_to("/dev/null")

    def boot(self) -> float:
        """Switch it on; return the seconds until systemd has started everything. Raises AssertionError."""
        began = time.monotonic()
        self._group = _own_group()
        words = [str(self.folder), str(SYSTEMD), PATH, str(self.root)]
        words += [str(part) for pair in self.mounts.items() for part in pair]
        enter = f'echo $$ > "{self._group}/cgroup.procs"; exec "$@"'
        alone = ["--net"] if self.network is None else []
        network = [] if self.network is None else ["nsenter", f"--net={self.network}", "--"]
        console = (self.folder / "console").open("ab")
        with console:
            self._outer = subprocess.Popen(
                [
                    "sh",
                    "-c",
                    enter,
                    "sh",
                    *network,
                    *_NAMESPACES,
                    *alone,
                    "--kill-child",
                    "sh",
                    "-c",
                    _START,
                    "sh",
                    *words,
                ],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
            )
        while not self._find_leader():
            assert self._outer.poll() is None and time.monotonic() < began + BOOT_SECONDS, self.console()
            time.sleep(0.02)
        while (state := self.run("systemctl", "is-system-running", "--wait").stdout.strip()) in (
            "",
            "offline",
        ):
            assert self._outer.poll() is None and time.monotonic() < began + BOOT_SECONDS, self.console()
            time.sleep(0.02)
        assert state in ("running", "degraded"), f"{state}: {self.console()}"
        return time.monotonic() - began

    def _find_leader(self) -> bool:
        """Find process 1 of the machine, once it is systemd."""
        assert self._outer is not None
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split()
            if children and Path(f"/proc/{children[0]}/comm").read_text().strip() == "systemd":
                self._leader = int(children[0])
        return bool(self._leader)

    def power_off(self) -> None:
        """Switch it off as its user would: units are stopped, then everything ends."""
        assert self._outer is not None
        self.run("systemctl", "poweroff", "--no-block")
        self._outer.wait(END_SECONDS)
        self._forget()

    def pull_the_plug(self) -> None:
        """End all of its processes at once."""
        if self._outer is not None:
            self._outer.kill()
            self._outer.wait()
        self._forget()

    def _forget(self) -> None:
        self._outer, self._leader = None, 0
        group, self._group = self._group, None
        if group is not None:
            deadline = time.monotonic() + END_SECONDS
            for folder in sorted((path.parent for path in group.rglob("cgroup.procs")), reverse=True):
                while folder.exists():
                    try:
                        folder.rmdir()
                    except OSError:  # a process of it is still ending
                        assert time.monotonic() < deadline, f"{folder} is in use"
                        time.sleep(0.02)

    @property
    def prefix(self) -> tuple[str, ...]:
        """The words before a program that is to run there, as root; others after each boot."""
        enter = ("nsenter", f"--target={self._leader}", *_ENTERED)
        return (*enter, "env", f"HOME={HOME}", f"PATH={PATH}", "sh", "-c", 'cd && exec "$@"', "sh")

    def run(self, *words: str, user: str = "", text: str = "") -> "subprocess.CompletedProcess[str]":
        """Run a program there, as root or as another user; `text` is its standard input."""
        enter = ["nsenter", f"--target={self._leader}", *_ENTERED]
        become = ["runuser", "-u", user, "--"] if user else []
        home = f"/home/{user}" if user else HOME
        return subprocess.run(
            [*enter, "env", "-i", f"HOME={home}", f"PATH={PATH}", *become, *words],
            input=text,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )

    def done(self, *words: str, user: str = "", text: str = "") -> str:
        """Run a program there that has to succeed; return what it printed."""
        ended = self.run(*words, user=user, text=text)
        assert ended.returncode == 0, f"{words}: {ended.stdout}{ended.stderr}\n{self.console()}"
        return ended.stdout

    def console(self) -> str:
        """Return the end of what its console showed."""
        return (self.folder / "console").read_text(errors="replace")[-4000:]


def _own_group() -> Path:
    """Make a control group for the machine, which it sees as the root of all."""
    mounts = Path("/proc/self/mounts").read_text()
    found = re.search(r"^\S+ (\S+) cgroup2 ", mounts, re.MULTILINE)
    assert found is not None, "no cgroup2 is mounted here"
    group = Path(found[1]) / f"meshd-boot-{os.getpid()}-{time.monotonic_ns()}"
    group.mkdir()
    return group


@contextlib.contextmanager
def switched_on(machine: Machine) -> Iterator[Machine]:
    """Boot a prepared machine for a block, and end it whatever happens."""
    try:
        machine.boot()
        yield machine
    finally:
        machine.pull_the_plug()
