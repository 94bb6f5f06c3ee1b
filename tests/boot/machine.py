"""A machine that systemd starts as process 1, in namespaces, over the files of this one.

What is written stays in a folder, so that the machine can be switched off and on again. Its /home, /root and
units are its own; it has no network but loopback. meshd is installed in /opt/meshd, as for all users: an
environment whose packages are those of the tests, with llama.cpp as its wheel would bring it.
"""

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import meshd
from meshd.build.interface import LLAMA_BENCH, LLAMA_SERVER, MESH_MODULE, MESH_PROGRAM, RPC_SERVER
from meshd.build.pin import read_pin
from meshd.build.wheel import PACKAGE

SYSTEMD = Path("/lib/systemd/systemd")
BOOT_SECONDS = 90.0
END_SECONDS = 60.0
RUN_SECONDS = 180.0
PYTHON = Path(f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}")
MESHD = "/opt/meshd/bin/meshd"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MACHINE_ID = "6d657368642d626f6f742d7465737400"
_NAMESPACES = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup", "--fork"]
_OWN_FOLDERS = [
    "etc/systemd/system",
    "etc/systemd/user",
    "home",
    "root",
    "opt",
    "srv",
    "var/lib/systemd/linger",
]
_ENTERED = ["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--wdns=/", "--"]
PROGRAMS = (RPC_SERVER, LLAMA_SERVER, LLAMA_BENCH, MESH_PROGRAM, MESH_MODULE)
# Everything but what systemd does itself. $1: the folder; the rest: files of this machine and their places.
_START = """
set -e
folder=$1 root=$1/root systemd=$2 path=$3; shift 3
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" "$root"
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
    if not PYTHON.exists():  # that of a user may be in a directory that services do not see
        return f"the packages of the tests are not for the system's Python: there is no {PYTHON}"
    tried = (
        "mount -t cgroup2 cgroup2 /mnt; mount -t tmpfs tmpfs /mnt; mkdir /mnt/u /mnt/w /mnt/root; "
        "mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/u,workdir=/mnt/w /mnt/root"
    )
    done = subprocess.run([*_NAMESPACES, "sh", "-ec", tried], capture_output=True, text=True, check=False)
    return f"no namespaces with mounts can be made here: {done.stderr.strip()}" if done.returncode else ""


@dataclass
class Machine:
    """`folder` holds what it has written; `mounts` are files of this machine and their places there.

    `programs` are folders with llama.cpp's programs, if it is to have them.
    """

    folder: Path
    mounts: Mapping[Path, str] = field(default_factory=dict)
    programs: Sequence[Path] = ()
    _leader: int = 0
    _outer: "subprocess.Popen[bytes] | None" = None
    _group: Path | None = None

    def prepare(self) -> None:
        """Make its own files: no units, users or state of this machine; meshd in /opt."""
        upper = self.folder / "upper"
        for name in ("work", "root"):
            (self.folder / name).mkdir(parents=True)
        for name in _OWN_FOLDERS:
            (upper / name).mkdir(parents=True)
            if sys.platform == "linux":
                os.setxattr(upper / name, "trusted.overlay.opaque", b"y")
        (upper / "root").chmod(0o700)
        (upper / "var/log/journal").mkdir(parents=True)
        (upper / "etc/machine-id").write_text(f"{_MACHINE_ID}\n")
        (upper / "etc/fstab").write_text("")
        (upper / "etc/systemd/system/console-getty.service").symlink_to("/dev/null")
        (upper / "etc/hostname").write_text("booted\n")
        packages = [Path(place) for place in sys.path if place.endswith("site-packages")]
        source = Path(meshd.__file__).parents[1]
        mounts = {package: f"/opt/packages/{number}" for number, package in enumerate(packages)}
        mounts |= {source / name: f"/opt/source/{name}" for name in ("meshd", "native", "configs")}
        self.mounts = {**self.mounts, **mounts}
        self._install(upper, len(packages))

    def _add_programs(self, site: Path) -> None:
        """Add the package meshd_native to meshd's environment."""
        package, pin = site / PACKAGE, read_pin()
        (package / "bin").mkdir(parents=True)
        (package / "__init__.py").touch()
        for name in PROGRAMS:
            source = next(folder / name for folder in self.programs if (folder / name).exists())
            shutil.copy(source, package / "bin")
        sizes = {path.name: path.stat().st_size for path in (package / "bin").iterdir()}
        stamp = {"commit": pin.commit, "sources": pin.sources_sha256, "backend": "cpu", "binaries": sizes}
        (package / "stamp.json").write_text(json.dumps(stamp))

    def _install(self, upper: Path, packages: int) -> None:
        site = upper / f"opt/meshd/lib/{PYTHON.name}/site-packages"
        site.mkdir(parents=True)
        paths = ["/opt/source", *(f"/opt/packages/{number}" for number in range(packages))]
        (site / "paths.pth").write_text("\n".join(paths) + "\n")
        (upper / "opt/meshd/pyvenv.cfg").write_text(f"home = {PYTHON.parent}\n")
        programs = upper / "opt/meshd/bin"
        programs.mkdir()
        (programs / "python").symlink_to(PYTHON)
        script = programs / "meshd"
        script.write_text(
            "#!/opt/meshd/bin/python\nimport sys\nfrom meshd.cli.main import main\nsys.exit(main())\n"
        )
        script.chmod(0o755)
        if self.programs:
            self._add_programs(site)
        for path in (upper / "opt").rglob("*"):
            if path.is_dir():
                path.chmod(0o755)

    def boot(self) -> float:
        """Switch it on; return the seconds until systemd has started everything. Raises AssertionError."""
        began = time.monotonic()
        self._group = _own_group()
        words = [str(self.folder), str(SYSTEMD), PATH]
        words += [str(part) for pair in self.mounts.items() for part in pair]
        enter = f'echo $$ > "{self._group}/cgroup.procs"; exec "$@"'
        console = (self.folder / "console").open("ab")
        with console:
            self._outer = subprocess.Popen(
                ["sh", "-c", enter, "sh", *_NAMESPACES, "--kill-child", "sh", "-c", _START, "sh", *words],
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

    def run(self, *words: str, user: str = "", text: str = "") -> "subprocess.CompletedProcess[str]":
        """Run a program there, as root or as another user; `text` is its standard input."""
        enter = ["nsenter", f"--target={self._leader}", *_ENTERED]
        become = ["runuser", "-u", user, "--"] if user else []
        home = f"/home/{user}" if user else "/root"
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
    """Boot it for a block, and end it whatever happens."""
    machine.prepare()
    try:
        machine.boot()
        yield machine
    finally:
        machine.pull_the_plug()
