"""Build the page of the mesh, `wheels/mesh`, into `meshd/gateway/mesh`, from which the gateway serves it.

Its packages are pinned by `package-lock.json`. None may run a script of its own when it is installed; they
stay in build/mesh-page, so that building again takes seconds. docs/decisions/0090 has the reasons.
"""

import argparse
import shutil
import sys
from pathlib import Path

from meshd.base.errors import UserError
from meshd.build.pin import read_pin
from meshd.gateway.pages import CHAT_FOLDER

from wheels.chat_page import INSTALL, LICENCES_NAME, OURS, ROOT, check_node, describe, pack, run_in

SOURCE = Path(__file__).with_name("mesh")
MESH_FOLDER = CHAT_FOLDER.with_name("mesh")
MESH_BILL_NAME = "meshd-mesh.cdx.json"
_CHECK = ("node", "node_modules/svelte-check/bin/svelte-check", "--fail-on-warnings")
_BUILD = ("node", "node_modules/vite/bin/vite.js", "build", "--logLevel", "warn")
_BUILD_REMOTE = (*_BUILD, "--config", "vite.remote.config.ts")  # one file, for other networks
_MODULES = "node_modules"
BUILD = ROOT / "build/mesh-page"
MODULES_BUILT = BUILD / _MODULES


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m wheels.mesh_page", description=__doc__)
    parser.add_argument("--build", type=Path, default=BUILD, help="where to build")
    parser.add_argument("--out", type=Path, default=MESH_FOLDER)
    asked = parser.parse_args()
    try:
        packed = make(asked.build, asked.out)
    except UserError as error:
        sys.stderr.write(f"error: {error.what}\nhint: {error.hint}\n")
        return 1
    sys.stdout.write(f"{asked.out} {packed / 1e3:.1f} kB\n")
    return 0


def make(build: Path, out: Path) -> int:
    """Build the page in `build` and pack it into `out`; return its size. Raises UserError."""
    check_node()
    copy_source(build)
    run_in(build, INSTALL)
    run_in(build, _CHECK)
    run_in(build, _BUILD)
    run_in(build, _BUILD_REMOTE)
    size = pack(build / "dist", out, page="/mesh", below="/mesh/")
    licences = (build / "dist" / LICENCES_NAME).read_text(encoding="utf-8")
    describe(licences, out, read_pin(), MESH_BILL_NAME)
    return size


def copy_source(build: Path) -> None:
    """Put the page's source there; installed packages stay."""
    build.mkdir(parents=True, exist_ok=True)
    for entry in build.iterdir():
        if entry.name != _MODULES:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    shutil.copytree(SOURCE, build, dirs_exist_ok=True, ignore=shutil.ignore_patterns(_MODULES, "dist"))
    shutil.copyfile(OURS / "notices.ts", build / "notices.ts")
    shutil.copyfile(ROOT / "LICENSE", build / "LICENSE")


if __name__ == "__main__":
    sys.exit(main())
