"""Install meshd-native-cuda13 from a folder of wheels into the environment of this meshd.

Our wheel is installed by its file: no index is asked for it, as nobody can say whose package an index has by
that name. NVIDIA's libraries come from the same folder, or else from the index that pip or uv uses.
"""

import importlib.util
import os
import platform
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from meshd import __version__
from meshd.base.errors import UserError
from meshd.build.interface import BuildProgress, ProgressCallback, Stage
from meshd.build.machine import CUDA_IN_PACKAGE, packaged_as
from meshd.build.pin import read_pin
from meshd.build.run import Result, run
from meshd.build.wheel import installed_wheel

NAME = "cuda13"
_FILE = f"meshd_native_{NAME}-{__version__}-*.whl"


async def add_cuda(folder: Path, progress: ProgressCallback) -> Path:
    """Install it; return the folder of programs that has the module now. Raises UserError."""
    if (package := packaged_as()) is not None:
        raise UserError(
            f"nothing can be added to this meshd: it is from a package ({package}), and has no pip",
            hint=CUDA_IN_PACKAGE[package],
        )
    wheel = installed_wheel()
    if wheel is None:
        raise UserError(
            "there is no meshd-native here, whose programs load the module",
            hint="install the file meshd_native-*.whl first; a compiled build gets CUDA with `meshd native "
            "build --backend cuda`",
        )
    file = _find(folder)
    progress(BuildProgress(Stage.UNPACK, f"installing {file.name}"))
    for offline in (True, False):  # the folder may have everything
        result = await _install(file, folder, offline=offline)
        if result.code == 0:
            break
        progress(BuildProgress(Stage.FETCH, "downloading NVIDIA's libraries (about 520 MB)"))
    if result.code != 0:
        shown = "\n".join(line for line in result.tail if "WARNING" not in line)
        raise UserError(f"`{file.name}` could not be installed", hint=_advice(folder, shown))
    wheel = installed_wheel()
    fault = "it is not found" if wheel is None or wheel.cuda is None else wheel.fault(read_pin())
    if wheel is None or fault:
        raise UserError(
            f"`{file.name}` was installed and cannot be used: {fault}", hint="install both wheels again"
        )
    return wheel.bin_dir


def _find(folder: Path) -> Path:
    """Return the wheel in the folder, whole. Raises UserError."""
    if not folder.is_dir():
        raise UserError(f"there is no directory `{folder}`", hint="name the directory with the wheels")
    files = sorted(file for file in folder.glob(_FILE) if platform.machine() in file.name)
    if not files:
        there = sorted(file.name for file in folder.glob("meshd_native_*.whl"))
        has = f"; it has {', '.join(there)}" if there else ""
        raise UserError(
            f"`{folder}` has no `{_FILE}` for {platform.machine()}{has}",
            hint=f"take the file of meshd {__version__} from where you got meshd's wheel",
        )
    try:
        with zipfile.ZipFile(files[-1]) as archive:
            damaged = archive.testzip()
    except (OSError, zipfile.BadZipFile, zlib.error) as error:
        damaged = str(error)
    if damaged is not None:
        raise UserError(f"`{files[-1]}` is not whole: {damaged}", hint="download or copy it again")
    return files[-1]


async def _install(file: Path, folder: Path, *, offline: bool) -> Result:
    options = ["--quiet", "--find-links", str(folder), *(["--no-index"] if offline else []), str(file)]
    with tempfile.TemporaryDirectory(prefix="meshd-add-") as work:
        return await run([*_installer(), *options], env=os.environ, folder=Path(work), log=Path(work) / "log")


def _installer() -> Sequence[str]:
    """Return the command that installs into this environment: uv's have no pip. Raises UserError."""
    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-P", "-m", "pip", "install", "--disable-pip-version-check", "--no-input")
    if (uv := shutil.which("uv")) is not None:
        return (uv, "pip", "install", "--python", sys.executable)
    raise UserError(
        "this Python has no pip, and there is no `uv`",
        hint=f"install `uv`, or run `{sys.executable} -m ensurepip`",
    )


def _advice(folder: Path, tail: str) -> str:
    return (
        f"without network, put the wheels of nvidia-cublas, nvidia-cuda-nvrtc and nvidia-cuda-runtime into "
        f"`{folder}`; the last lines:\n{tail}"
    )
