"""Run the tests of what uses a library with the lowest version of each that pyproject.toml allows.

    python -m tests.lower_bounds [PYTEST ARGUMENT ...]

Makes a virtual environment in a temporary folder, from a package index; that takes minutes. Without arguments
it runs the tests of USES. Ends as pip does if the lower bounds contradict each other or what a library needs,
otherwise as pytest does.
"""

import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
GATEWAY = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("tests/process/test_gateway_*.py"))]
USES = {
    "aiohttp": ("tests/unit/gateway", *GATEWAY),
    "aioice": ("tests/unit/link/ice",),
    "aioquic": ("tests/unit/link/quic", "tests/conformance"),
    "aiortc": ("tests/unit/link/webrtc",),
    "blake3": ("tests/unit/model", "tests/unit/store"),
    "cryptography": ("tests/unit/identity",),
    "httpx2": ("tests/unit/library",),
    "huggingface_hub": ("tests/unit/library",),
    "msgpack": ("tests/unit/wire",),
    "prometheus_client": ("tests/unit/base/test_metrics.py", "tests/process/test_gateway_metrics.py"),
    "rich": ("tests/unit/cli/test_layout.py", "tests/unit/cli/test_output.py"),
    "segno": ("tests/unit/cli/test_layout.py",),
    "shtab": ("tests/process/test_completion.py", "tests/unit/cli/test_shell.py"),
    "structlog": ("tests/unit/base",),
    "zeroconf": ("tests/unit/rendezvous",),
}
"""Tests of the modules that import a library, by its name."""


def required(*, extras: bool) -> list[Requirement]:
    """Return what pyproject.toml requires to run, with `extras` also what it requires to build and test."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = project["optional-dependencies"].values() if extras else ()
    return [
        *map(Requirement, project["dependencies"]),
        *(Requirement(one) for group in groups for one in group),
    ]


def lowest(requirements: Iterable[Requirement]) -> list[str]:
    """Return a pin of each to the lowest version that it allows, as pip reads them.

    Raises ValueError for one without a lower bound.
    """
    pins = []
    for one in requirements:
        bounds = [bound.version for bound in one.specifier if bound.operator in (">=", "==")]
        if len(bounds) != 1:
            raise ValueError(f"`{one}` has no lower bound")
        pins.append(f"{one.name}=={bounds[0]}")
    return pins


def main(*arguments: str) -> int:
    """Run the program described at the top of the file."""
    with tempfile.TemporaryDirectory(prefix="lower-bounds-") as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder, "bin", "python"))
        pins = Path(folder, "pins.txt")
        pins.write_text("\n".join(lowest(required(extras=False))), encoding="utf-8")
        install = (
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--constraint",
            str(pins),
            "--editable",
            ".[dev]",
        )
        installed = subprocess.run(install, cwd=ROOT, check=False).returncode
        if installed:
            return installed
        paths = dict.fromkeys(path for of_one in USES.values() for path in of_one)
        tests = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(arguments or paths))
        return subprocess.run(tests, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
