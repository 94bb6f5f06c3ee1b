"""Shells complete meshd's commands with the scripts that it prints; man shows its pages."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest

DEADLINE = 30.0
# what stands on the line, and what it has to be after Tab, or among what is offered
LINES = (
    ("meshd wo", "worker"),
    ("meshd worker --log-f", "--log-format"),
    ("meshd worker --log-format j", "json"),
    ("meshd native build --backend vu", "vulkan"),
    ("meshd model pull --rat", "--rate"),
    ("meshd serve --model wei", "weights.gguf"),
    ("meshd help sto", "stop"),
    ("meshd completion z", "zsh"),
)


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"needs {program}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the shell runs."""
    (tmp_path / "weights.gguf").touch()
    return tmp_path


def run(folder: Path, *argv: str) -> str:
    done = subprocess.run(
        argv, cwd=folder, capture_output=True, text=True, check=False, timeout=DEADLINE, env=_environ(folder)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _environ(folder: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "ZDOTDIR": str(folder), "TERM": "dumb"}


@cache
def printed(shell: str) -> str:
    """Return what `meshd completion` prints, once for all lines."""
    argv = (sys.executable, "-m", "meshd", "completion", shell)
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=DEADLINE).stdout


def script(folder: Path, shell: str, name: str) -> Path:
    file = folder / name
    file.write_text(printed(shell), "utf-8")
    return file


def typed(folder: Path, shell: list[str], line: str, wanted: str) -> str:
    """Return what an interactive shell shows after `line` and Tab; at most until `wanted` is there."""
    terminal, inside = pty.openpty()
    with subprocess.Popen(
        shell,
        cwd=folder,
        env=_environ(folder),
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
    ) as process:
        os.close(inside)
        try:
            _read_until(terminal, "ready> ")
            os.write(terminal, line.encode() + b"\t\t")
            return _read_until(terminal, wanted)
        finally:
            process.kill()
            os.close(terminal)


def _read_until(terminal: int, wanted: str) -> str:
    shown, deadline = b"", time.monotonic() + DEADLINE
    while wanted.encode() not in shown and (left := deadline - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            shown += os.read(terminal, 4096)
    assert wanted.encode() in shown, shown.decode(errors="replace")
    return shown.decode(errors="replace")


@needs("bash")
@pytest.mark.parametrize(("line", "wanted"), LINES)
def test_bash(folder: Path, line: str, wanted: str) -> None:
    file = script(folder, "bash", "meshd.bash")
    (folder / "rc").write_text(f"PS1='ready> '\n. {file}\nbind 'set enable-bracketed-paste off'\n", "utf-8")
    typed(folder, ["bash", "--rcfile", str(folder / "rc"), "-i"], line, wanted)


@needs("zsh")
@pytest.mark.parametrize(("line", "wanted"), LINES)
def test_zsh(folder: Path, line: str, wanted: str) -> None:
    script(folder, "zsh", "_meshd")
    text = f"fpath=({folder} $fpath)\nautoload -U compinit\ncompinit -u\nPS1='ready> '\n"
    (folder / ".zshrc").write_text(text, "utf-8")
    typed(folder, ["zsh", "-i"], line, wanted)


@needs("fish")
@pytest.mark.parametrize(("line", "wanted"), LINES)
def test_fish(folder: Path, line: str, wanted: str) -> None:
    file = script(folder, "fish", "meshd.fish")
    offered = run(folder, "fish", "--no-config", "-c", f"source {file}; complete -C '{line}'")
    assert wanted in [one.partition("\t")[0] for one in offered.splitlines()]


@needs("man")
def test_man_reads_every_page_without_a_warning(folder: Path) -> None:
    run(folder, sys.executable, "-m", "meshd", "man", str(folder / "pages"))
    pages = sorted((folder / "pages").iterdir())
    assert len(pages) > 30
    for page in pages:
        done = subprocess.run(
            ["man", "--warnings", "-l", str(page)],
            capture_output=True,
            text=True,
            check=True,
            timeout=DEADLINE,
        )
        assert done.stderr == ""
        assert "NAME" in done.stdout
        assert "SEE ALSO" in done.stdout or page.name == "meshd.1"
