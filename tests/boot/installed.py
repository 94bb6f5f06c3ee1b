"""This system as a fresh machine: without its users, units and state, and with meshd in /opt for all users.

meshd's environment has the packages of the tests, and llama.cpp as its wheel would bring it.
"""

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import meshd
from meshd.build.interface import LLAMA_BENCH, LLAMA_SERVER, MESH_MODULE, MESH_PROGRAM, RPC_SERVER
from meshd.build.pin import read_pin
from meshd.build.wheel import PACKAGE

from tests.boot.machine import Machine

PYTHON = Path(f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}")
_SITE = f"opt/meshd/lib/{PYTHON.name}/site-packages"
_PROGRAMS = (RPC_SERVER, LLAMA_SERVER, LLAMA_BENCH, MESH_PROGRAM, MESH_MODULE)
_FRESH = ("etc/systemd/system", "etc/systemd/user", "home", "opt", "root", "srv", "var/lib/systemd/linger")
_SCRIPT = "#!/opt/meshd/bin/python\nimport sys\nfrom meshd.cli.main import main\nsys.exit(main())\n"


def lacking() -> str:
    """Return why meshd cannot be installed so; empty if it can."""
    if PYTHON.exists():  # that of a user may be in a directory that services do not see
        return ""
    return f"the packages of the tests are not for the system's Python: there is no {PYTHON}"


def fresh_machine(
    folder: Path, mounts: Mapping[Path, str], programs: Sequence[Path] = (), *, name: str = "booted"
) -> Machine:
    """Prepare it; `programs` are folders with llama.cpp's programs, if it is to have them."""
    packages = [Path(place) for place in sys.path if place.endswith("site-packages")]
    source = Path(meshd.__file__).parents[1]
    mounted = {package: f"/opt/packages/{number}" for number, package in enumerate(packages)}
    mounted |= {source / name: f"/opt/source/{name}" for name in ("meshd", "native", "configs")}
    machine = Machine(folder, "/opt/meshd/bin/meshd", mounts={**mounts, **mounted}, name=name)
    machine.prepare()
    for place in _FRESH:
        (machine.upper / place).mkdir(parents=True, exist_ok=True)
        if sys.platform == "linux":
            os.setxattr(machine.upper / place, "trusted.overlay.opaque", b"y")
    (machine.upper / "root").chmod(0o700)
    _install(machine.upper, len(packages))
    if programs:
        _add_programs(machine.upper / _SITE / PACKAGE, programs)
    for path in (machine.upper / "opt").rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    return machine


def _install(upper: Path, packages: int) -> None:
    """Make an environment as `python -m venv` does, and the script that pip would write."""
    (upper / _SITE).mkdir(parents=True)
    paths = ["/opt/source", *(f"/opt/packages/{number}" for number in range(packages))]
    (upper / _SITE / "paths.pth").write_text("\n".join(paths) + "\n")
    (upper / "opt/meshd/pyvenv.cfg").write_text(f"home = {PYTHON.parent}\n")
    programs = upper / "opt/meshd/bin"
    programs.mkdir()
    (programs / "python").symlink_to(PYTHON)
    (programs / "meshd").write_text(_SCRIPT)
    (programs / "meshd").chmod(0o755)


def _add_programs(package: Path, programs: Sequence[Path]) -> None:
    """Make the package meshd_native."""
    (package / "bin").mkdir(parents=True)
    (package / "__init__.py").touch()
    for name in _PROGRAMS:
        source = next(folder / name for folder in programs if (folder / name).exists())
        shutil.copy(source, package / "bin")
    pin, sizes = read_pin(), {path.name: path.stat().st_size for path in (package / "bin").iterdir()}
    stamp = {"commit": pin.commit, "sources": pin.sources_sha256, "backend": "cpu", "binaries": sizes}
    (package / "stamp.json").write_text(json.dumps(stamp))
