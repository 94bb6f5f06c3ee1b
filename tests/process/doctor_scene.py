"""A small healthy machine on which `meshd doctor` runs, and which a test then breaks.

It has namespaces of its own for mounts and the network, so that what is broken stays there: a home, a cache,
one interface with a default route, and programs of llama.cpp that are played by scripts. Root on Linux.
"""

import functools
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from meshd.identity.keystore import Home, Membership
from meshd.model.layer_work import USUAL
from meshd.process.run import environment

from tests.control_group import small_group
from tests.rules.source import ROOT
from tests.unit.daemon.mesh_programs import PIN, described, says

USER = 65534  # nobody
_AS_USER = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
_NETWORK = """
ip link set lo up
ip link add net0 type veth peer name net1
ip link set net1 up
ip link set net0 multicast on
ip addr add 10.9.8.7/24 dev net0
ip link set net0 up
ip route add default via 10.9.8.1
"""
_PATIENT = """
import sys
from dataclasses import replace
from meshd.cli.main import main
from meshd.doctor import examine, network, services
run = examine.run_checks
examine.run_checks = lambda checks: run([replace(one, seconds=max(one.seconds, {check})) for one in checks])
network._FIREWALL_SECONDS = {check}
services.ANSWER_SECONDS = {answer}
sys.exit(main())
"""
_RIGHT = f"tried {len(USUAL)}"
_TIMES = "".join(f"echo took 0 {tokens} {900_000 + tokens}; " for tokens in (1, 128))


def played(*, trial: str = _RIGHT, listing: str = "echo 'device CPU cpu - 9000 8000 it'") -> str:
    """Return the script of a mesh-server."""
    return (
        f"#!/bin/bash\ncase $1 in --describe) echo '{described()}';; --list-devices) {listing};; "
        f'--try-device) echo "{trial}";; *) {_TIMES} echo timed 1;; esac\n'
    )


def played_llama(*, version: str = says(commit=PIN.commit[:9])) -> str:
    """Return the script of a llama-server."""
    host = "echo host unknown >&$GGML_MESH_REPORT_FD"
    return f'#!/bin/bash\nif [ $1 = --version ]; then echo "{version}"; else {host}; fi\n'


def patient_meshd(*, check: float = 60.0, answer: float = 60.0) -> list[str]:
    """Return the words for Python that run meshd; doctor's bounds are too long for a busy machine to reach.

    `check` and `answer` are the seconds that a check has, at least, and a node for its answer.
    """
    return ["-c", _PATIENT.format(check=check, answer=answer)]


@functools.cache
def _python_of_user() -> str:
    """Return a Python that another user can run; skips the test where there is none."""
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        asked = [*_AS_USER, "sh", "-c", 'test -x "$1" && "$1" -c "import sys"', "sh", python]
        if subprocess.run(asked, capture_output=True, cwd="/", check=False).returncode == 0:
            return python
    pytest.skip("another user can run no Python of this version")


@dataclass(slots=True)
class Machine:
    """`prepare`: lines of a shell that break it, in its namespaces, and `last` the last ones; `front`: what
    starts doctor; `check` and `answer`: bounds of patient_meshd, shorter where something reaches them.
    """

    folder: Path
    prepare: list[str] = field(default_factory=list)
    front: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    last: list[str] = field(default_factory=list)
    network: str = _NETWORK
    check: float = 60.0
    answer: float = 60.0
    has_programs: bool = True
    python: str = sys.executable
    packages: list[str] = field(default_factory=lambda: [path for path in sys.path if "-packages" in path])

    def __post_init__(self) -> None:
        self.home.mkdir(mode=0o700)
        self.cache.mkdir(mode=0o700)
        self.programs.mkdir()
        self.program("mesh-server", played())
        self.program("llama-server", played_llama())
        (self.programs / "libggml-mesh.so").write_text("the module")

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def programs(self) -> Path:
        return self.folder / "bin"

    def program(self, name: str, text: str) -> Path:
        """Put a script among the programs."""
        path = self.programs / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def member(self) -> Membership:
        """Make the home that of a mesh's founder."""
        home = Home(self.home)
        home.load_or_create_identity()
        return home.found_mesh(now=1)

    def file(self, name: str, text: str | bytes = "", mode: int = 0o644) -> Path:
        """Write a file below the machine's folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(mode)
        return path

    def bind(self, here: Path, there: str) -> None:
        """Show a file or folder of this machine at another path."""
        self.prepare.append(f"mount --bind {shlex.quote(str(here))} {there}")

    @contextmanager
    def with_memory(self, limit: int, *, used: str) -> Iterator[None]:
        """Run in a control group with a memory limit, in which a Python ran out of it."""
        with small_group(limit) as group:
            killed = subprocess.run(group.command(used), capture_output=True, check=False)
            assert killed.returncode == -signal.SIGKILL
            self.prepare.append(f"echo $$ > {group.folder}/cgroup.procs")
            yield

    def out_of_container(self) -> None:
        """Hide the mark of a container, if the tests run in one: all else stays as it is."""
        if not Path("/.dockerenv").exists():
            return
        new = self.folder / "root"
        new.mkdir()
        upper, work, root = (new / name for name in ("upper", "work", "root"))
        shown = [name for name in ("proc", "sys", "dev", "tmp", "usr") if Path("/", name).is_dir()]
        self.last = [
            f"mount -t tmpfs none {new}",
            f"mkdir {upper} {work} {root}",
            f"mknod {upper}/.dockerenv c 0 0",  # overlayfs: there is none
            f"mount -t overlay none -o lowerdir=/,upperdir={upper},workdir={work} {root}",
            *(f"mount --rbind /{name} {root}/{name}" for name in shown),
            f'exec chroot {root} "$@"',
        ]

    def as_user(self) -> None:
        """Run as another user, who has home and cache."""
        self.prepare.append(f"chown -R {USER}:{USER} {self.home} {self.cache}")
        for folder in (self.folder, *self.folder.parents):
            if "pytest" in str(folder):
                folder.chmod(0o755)
        self.front = [*_AS_USER, *self.front]
        self.python = _python_of_user()

    def run(self, *words: str, verb: str = "doctor") -> "subprocess.CompletedProcess[str]":
        """Run a verb on this machine."""
        script = "\n".join(["set -e", self.network, *self.prepare, *self.last, 'exec "$@"'])
        command = ["unshare", "--mount", "--net", "sh", "-c", script, "sh", *self.front]
        command += [self.python, *patient_meshd(check=self.check, answer=self.answer)]
        command += [verb, *words, *self.options]
        if self.has_programs and verb == "doctor":
            command += ["--native-bin", str(self.programs)]
        return subprocess.run(
            command, env=self._environ(), cwd="/", capture_output=True, text=True, timeout=120, check=False
        )

    def _environ(self) -> Mapping[str, str]:
        own = {"MESHD_HOME": str(self.home), "MESHD_CACHE": str(self.cache), "MESHD_STUN": "none"}
        own |= {"PYTHONDONTWRITEBYTECODE": "1", "HF_HOME": str(self.folder / "hf"), "HOME": str(self.folder)}
        own["PYTHONPATH"] = os.pathsep.join([*self.packages, str(ROOT)])
        return environment({}) | own | self.variables

    def findings(self, *words: str) -> list[dict[str, str]]:
        """Return what doctor finds."""
        done = self.run("--json", *words)
        assert done.stdout, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        found: list[dict[str, str]] = json.loads(done.stdout)["findings"]
        has_errors = any(one["state"] == "error" for one in found)
        assert done.returncode == int(has_errors)
        return found

    def problems(self, *words: str) -> dict[str, str]:
        """Return the codes of what is not as it should be, each with its text."""
        return {
            one["code"]: one["what"] for one in self.findings(*words) if one["state"] not in ("ok", "info")
        }
