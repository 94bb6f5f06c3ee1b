"""The command where a user has no home, a stream is closed, or the locale lacks letters.

It runs, or says in one line what is wrong: no traceback.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.e2e.models import cache_folder, native

DEADLINE = 120.0
NO_HOME = "error: this user has no home directory"
NO_STDOUT = "error: cannot write to standard output: bad file descriptor"
VERBS = (
    ("--version",),
    ("worker", "--help"),
    ("config", "show"),
    ("status",),
    ("doctor",),
    ("invite",),
    ("model", "ls"),
    ("worker", "--native-bin", "/nowhere/at/all"),
)
PRINTING = VERBS[:3]
FEW = (("config", "show"), ("status",), ("doctor",))  # one prints, one fails, one looks around


@dataclass(frozen=True, slots=True)
class Odd:
    """An environment: shell redirections, variables, variables that are missing, a program in front."""

    closed: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    nameless: bool = False  # a user id that no user has

    def start(self, tmp_path: Path, *argv: str) -> subprocess.Popen[bytes]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("MESHD_")}
        environ |= {"HOME": str(tmp_path / "zoë"), "MESHD_NO_MDNS": "1", **self.variables}
        for name in self.without:
            environ.pop(name, None)
        front = _nameless() if self.nameless else []
        shell = ["/bin/sh", "-c", f'exec "$@" {self.closed}', "sh"]
        return subprocess.Popen(
            [*front, *shell, sys.executable, "-m", "meshd", *argv],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, tmp_path: Path, *argv: str) -> tuple[int, str, str]:
        with self.start(tmp_path, *argv) as process:
            out, err = process.communicate(timeout=DEADLINE)
        return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")


def _nameless() -> list[str]:
    front = ["unshare", "--user", "--map-user=54321", "--map-group=54321"]
    if not shutil.which("unshare") or subprocess.run([*front, "true"], check=False).returncode:
        pytest.skip("a user id without a name needs Linux, `unshare` and user namespaces")
    return front


NAMELESS = Odd(nameless=True, without=("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"))
ENVIRONMENTS = {
    "no home": NAMELESS,
    "stdin closed": Odd("<&-"),
    "stdout closed": Odd(">&-"),
    "stderr closed": Odd("2>&-"),
    "all closed": Odd("<&- >&- 2>&-"),
    "ascii streams": Odd(variables={"PYTHONIOENCODING": "ascii"}),
    "latin-1 locale": Odd(variables={"LC_ALL": "en_US.ISO-8859-1", "PYTHONUTF8": "0"}),
    "ascii locale": Odd(variables={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
}


STRICTEST = ("all closed", "ascii locale")


def made(name: str, folder: Path) -> Odd:
    """Return the environment of that name, with what it needs in `folder`."""
    odd = ENVIRONMENTS[name]
    if name != "latin-1 locale":
        return odd
    return replace(odd, variables={**odd.variables, "LOCPATH": str(latin_1_locale(folder))})


def latin_1_locale(folder: Path) -> Path:
    """Return a folder for LOCPATH with the locale `en_US.ISO-8859-1`; few systems have one."""
    if not shutil.which("localedef"):
        pytest.skip("a Latin-1 locale needs `localedef` and its sources (Debian: apt-get install locales)")
    locales = folder / "locales"
    locales.mkdir()
    words = ("localedef", "-i", "en_US", "-f", "ISO-8859-1", str(locales / "en_US.ISO-8859-1"))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no Latin-1 locale could be made: {done.stderr.strip()}")
    return locales


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_each_verb_runs_or_says_what_is_wrong(name: str, tmp_path: Path) -> None:
    odd = made(name, tmp_path)
    for argv in VERBS if name in STRICTEST else FEW:
        code, _, err = odd.run(tmp_path, *argv)
        assert code in (0, 1), (argv, err)
        assert "Traceback" not in err and "Error:" not in err, (argv, err)
        first = err.splitlines()[:1]
        if code and argv != ("doctor",) and "2>&-" not in odd.closed:
            assert first and first[0].startswith("error: "), (argv, err)


def test_a_result_that_nobody_can_read_is_a_failure(tmp_path: Path) -> None:
    for argv in PRINTING:
        code, out, err = Odd(">&-").run(tmp_path, *argv)
        assert (code, out) == (1, "")
        assert err.splitlines()[0] == NO_STDOUT


def test_closed_stderr_does_not_make_a_failure(tmp_path: Path) -> None:
    code, out, _ = Odd("2>&-").run(tmp_path, "--version")
    assert code == 0
    assert out.startswith("meshd ")


def test_letters_that_the_terminal_lacks_are_written_as_codes(tmp_path: Path) -> None:
    code, out, err = Odd(variables={"PYTHONIOENCODING": "ascii"}).run(tmp_path, "config", "show")
    assert code == 0, err
    assert "zo\\xeb" in out


def test_without_a_home_help_is_shown_and_the_rest_says_what_to_set(tmp_path: Path) -> None:
    for argv in (("--help",), ("worker", "--help"), ("netcheck", "--help")):
        code, out, err = NAMELESS.run(tmp_path, *argv)
        assert (code, err) == (0, "") and "meshd" in out
    for argv in (("status",), ("model", "ls"), ("worker",)):
        code, out, err = NAMELESS.run(tmp_path, *argv)
        assert (code, out) == (1, "")
        assert err.splitlines()[0] == NO_HOME
        assert "MESHD_HOME and MESHD_CACHE" in err


def test_without_a_home_it_runs_in_the_folders_that_are_named(tmp_path: Path) -> None:
    named = {"MESHD_HOME": str(tmp_path / "state"), "MESHD_CACHE": str(tmp_path / "cache")}
    odd = Odd(nameless=True, without=("HOME",), variables=named)
    code, out, err = odd.run(tmp_path, "config", "show")
    assert code == 0, err
    assert str(tmp_path / "state") in out
    code, _, err = odd.run(tmp_path, "model", "ls")
    assert code == 0, err


def test_the_home_of_nobody_is_an_error_that_names_it(tmp_path: Path) -> None:
    code, _, err = Odd().run(tmp_path, "serve", "--model", "~nosuchuser/model.gguf")
    assert code == 1
    assert "`~nosuchuser` has no known home directory" in err.splitlines()[0]


@dataclass(frozen=True, slots=True)
class Role:
    """A daemon of this role: its arguments, and how the line begins that it prints."""

    argv: tuple[str, ...]
    prints: bytes
    needs_native: bool = False

    def environment(self, folder: Path) -> dict[str, str]:
        if self.needs_native:
            native()
        cache = cache_folder() if self.needs_native else folder / "cache"
        return {"MESHD_HOME": str(folder / "home"), "MESHD_CACHE": str(cache)}


LISTENS = ("--listen", "127.0.0.1:0")
RELAY = Role(("relay", *LISTENS), b"relay://")
WORKER = Role(("worker", *LISTENS, "--stun", "none", "--no-portmap"), b"meshd1", needs_native=True)
ROLES = [pytest.param(RELAY, id="relay"), pytest.param(WORKER, id="worker", marks=pytest.mark.native)]
WITHOUT_STDOUT = ("stdout closed", "all closed")


@pytest.mark.parametrize(
    ("name", "role"),
    [
        *(
            pytest.param(name, RELAY, id=f"{name}-relay")
            for name in ("no home", "stdin closed", "stderr closed", "ascii locale")
        ),
        *(
            pytest.param(name, WORKER, id=f"{name}-worker", marks=pytest.mark.native)
            for name in ("no home", "latin-1 locale")
        ),
    ],
)
def test_a_daemon_starts_and_stops(name: str, role: Role, tmp_path: Path) -> None:
    odd = made(name, tmp_path)
    odd = replace(odd, variables={**odd.variables, **role.environment(tmp_path)})
    with odd.start(tmp_path, *role.argv) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=DEADLINE)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert line.startswith(role.prints), (line, err)
    assert b"Traceback" not in err


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", WITHOUT_STDOUT)
def test_a_daemon_whose_token_nobody_can_read_ends_and_says_so(name: str, role: Role, tmp_path: Path) -> None:
    odd = replace(ENVIRONMENTS[name], variables=role.environment(tmp_path))
    code, out, err = odd.run(tmp_path, *role.argv)
    assert (code, out) == (1, "")
    assert "Traceback" not in err
    assert name == "all closed" or NO_STDOUT in err.splitlines()


@pytest.mark.native
def test_a_directory_without_a_model_is_an_error_that_says_what_to_give(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "notes.txt").write_text("none here")
    odd = Odd(variables=WORKER.environment(tmp_path))
    code, out, err = odd.run(tmp_path, "serve", "--model", str(folder))
    assert (code, out) == (1, "")
    what, hint = [line for line in err.splitlines() if line]
    assert what == f"error: `{folder}` has no model: no file in it ends in `.gguf`"
    assert hint == "hint: give the path of a GGUF file, or a name that `meshd model ls` lists"
