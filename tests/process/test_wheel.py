"""The wheel, installed outside the checkout, has all that an installed meshd needs."""

import email
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from meshd.build.pin import read_pin
from wheels.chat_page import BILL_NAME, LICENCES_NAME, describe
from wheels.mesh_page import MESH_BILL_NAME

from tests.rules.source import ROOT

_LINE = f"\n{'-' * 80}\n\n"
LICENCES = {
    "chat": f"llama.cpp: MIT\n\ntext\n{_LINE}@a/page 1.2.3: Apache-2.0\n\ntext\n",
    "mesh": f"meshd: MIT\n\ntext\n{_LINE}drawer 5.0.0: MIT\n\ntext\n",
}


def _run(*command: str | Path, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "HOME": str(cwd), **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what belongs into it, without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    (source / "wheels").mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "wheels/hatch_build.py"):
        shutil.copy(ROOT / name, source / name)
    for name in ("meshd", "native", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "chat"))
    for page, bill in (("chat", BILL_NAME), ("mesh", MESH_BILL_NAME)):
        folder_of_page = source / "meshd/gateway" / page
        shutil.rmtree(folder_of_page, ignore_errors=True)
        folder_of_page.mkdir()
        describe(LICENCES[page], folder_of_page, read_pin(), bill)
    done = _run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"),
        *("--no-index", "--no-build-isolation", "--wheel-dir", folder, source),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("meshd-*.whl")
    return made


@dataclass(frozen=True, slots=True)
class Installed:
    """A venv with the wheel in it and nothing else; the dependencies are those of the tests."""

    bin: Path
    folder: Path

    def meshd(self, arguments: Sequence[str], **environ: str) -> subprocess.CompletedProcess[str]:
        own = {"MESHD_HOME": str(self.folder), "MESHD_CACHE": str(self.folder)}
        return _run(self.bin / "meshd", *arguments, cwd=self.folder, **own, **environ)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installed")
    venv = folder / "venv"
    done = _run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=folder)
    assert done.returncode == 0, done.stderr
    done = _run(
        *(sys.executable, "-m", "pip", "--python", venv, "--disable-pip-version-check", "install", "--quiet"),
        *("--no-deps", "--no-index", "--no-compile", wheel),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    (site,) = venv.glob("lib/python*/site-packages")
    # a folder named in a .pth file is searched, but its own .pth files (our editable meshd) are not read
    # all folders of packages: those of a venv may lie in another one
    packages = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site / "dependencies.pth").write_text("\n".join([*packages, ""]), encoding="utf-8")
    return Installed(venv / "bin", folder)


def test_it_holds_what_a_native_build_needs_and_nothing_more(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = {f"meshd/native/mesh/{path.name}" for path in (ROOT / "native/mesh").glob("*.cpp")}
    assert sources
    assert (
        sources | {"meshd/native/UPSTREAM.toml", "meshd/configs/meshd.example.toml", "meshd/py.typed"}
        <= names
    )
    page = {f"meshd/gateway/page/{name}" for name in ("index.html", "chat.js", "chat.css")}
    assert {name for name in names if name.startswith("meshd/gateway/page/")} == page
    tops = {name.partition("/")[0] for name in names}
    assert all(top == "meshd" or top.endswith(".dist-info") for top in tops)


def test_it_names_what_the_pages_bundle(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {name.partition(".dist-info/")[2]: archive.read(name) for name in archive.namelist()}
    metadata = email.message_from_bytes(files["METADATA"])
    named = metadata.get_all("License-File") or []
    texts = {f"meshd/gateway/{page}/{LICENCES_NAME}": text for page, text in LICENCES.items()}
    assert sorted(named) == ["LICENSE", *sorted(texts)]
    assert all(files[f"licenses/{name}"].decode() == text for name, text in texts.items())
    bills = [json.loads(text) for name, text in files.items() if name.startswith("sboms/")]
    parts = [part for bill in bills for part in bill["components"]]
    assert sorted(part["name"] for part in parts) == ["@a/page", "drawer", "llama.cpp"]
    expression = set(re.split(r" AND ", metadata["License-Expression"]))
    assert {part["licenses"][0]["expression"] for part in parts} <= expression


def test_it_runs_from_its_own_files(installed: Installed) -> None:
    where = _run(installed.bin / "python", "-c", "import meshd; print(meshd.__file__)", cwd=installed.folder)
    assert Path(where.stdout.strip()).is_relative_to(installed.folder)
    shown = installed.meshd(["--version"])
    here = _run(Path(sys.executable).with_name("meshd"), "--version", cwd=installed.folder)
    ours, *_page = here.stdout.partition("chat page")
    assert shown.returncode == 0 and shown.stdout.startswith(ours), "version, pin and hash of the sources"


def test_no_native_build_is_said_with_what_to_do(installed: Installed) -> None:
    shown = installed.meshd(["native", "info"], PATH=_tools(installed, "cmake", "ninja"))
    assert shown.returncode == 1
    assert shown.stdout == ""
    assert "error: there is no native build" in shown.stderr
    assert "or run `meshd native build` once" in shown.stderr


def _tools(installed: Installed, *names: str) -> str:
    """A PATH where just these programs are, and compilers; none of them is ever run."""
    folder = installed.folder / "-".join(("path", *names))
    folder.mkdir(exist_ok=True)
    for name in ("cc", "c++", *names):
        (folder / name).write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    return str(folder)


def test_what_only_a_build_needs_is_an_extra(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    wanted = metadata.get_all("Requires-Dist") or []
    of_a_build = {one for one in wanted if one.startswith(("cmake", "ninja"))}
    assert len(of_a_build) == 4
    extras = [one.rpartition("extra == ")[2].strip("'") for one in sorted(of_a_build)]
    assert sorted(extras) == ["build", "build", "cuda-build", "cuda-build"]


@pytest.mark.parametrize("verb", ["native build", "native info", "demo", "worker", "serve --model m.gguf"])
def test_without_the_extra_every_verb_that_needs_a_build_names_it(installed: Installed, verb: str) -> None:
    (installed.folder / "m.gguf").write_bytes(b"GGUF")
    shown = installed.meshd(verb.split(), PATH=_tools(installed))
    assert shown.returncode == 1
    assert "pip install '.[build]'" in shown.stderr
    assert "Traceback" not in shown.stderr
    assert not (installed.folder / "downloads").exists(), "it says so before it fetches anything"


def test_it_writes_and_reads_a_configuration(installed: Installed) -> None:
    file = installed.folder / "own.toml"
    assert installed.meshd(["config", "init", str(file)]).returncode == 0
    assert file.read_bytes() == (ROOT / "configs/meshd.example.toml").read_bytes()
    shown = installed.meshd(["config", "show", "--config", str(file)])
    assert shown.returncode == 0, shown.stderr
    assert "[serve]" in shown.stdout
