"""Native programs that the user names are asked what they are."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.daemon import native as daemon_native
from meshd.daemon.native import LlamaVersion, check_native, check_native_once, parse_version
from meshd.devices.interface import NativeBuild

from tests.conformance.run import run
from tests.unit.daemon.mesh_programs import PIN, described, named_programs, says


def _check(native: NativeBuild, logs: Path, *, head: bool = True) -> NativeBuild:
    return run(check_native(native, pin=PIN, logs=logs, head=head))


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("version: 0.5.0-dev (build 0, commit unknown)", LlamaVersion("0.5.0-dev", "unknown")),
        ("version: 0.5.0 (build 8123, commit 0c1e57098)", LlamaVersion("0.5.0", "0c1e57098")),
        ("version: 5123 (0c1e5709)", LlamaVersion("5123", "0c1e5709")),
        ("version: 0 (unknown)", LlamaVersion("0", "unknown")),
        ("version: 0.5.0 (build 1, commit v0.5.0)", LlamaVersion("0.5.0", "unknown")),
        ("llama-server 5", None),
    ],
)
def test_what_llama_server_says(line: str, version: LlamaVersion | None) -> None:
    assert parse_version(["some log line", line, "built with GNU"]) == version


@pytest.mark.parametrize(
    ("version", "host", "pin"),
    [
        (says(PIN.release, PIN.commit[:7]), "unknown", PIN.commit),
        (says(commit=PIN.commit), PIN.version, PIN.commit),
        (f"version: 8123 ({PIN.commit[:9]})", "unknown", PIN.commit),
        (says(), PIN.version, "unknown"),
        (says(PIN.release), "unknown", "unknown"),
    ],
    ids=["release", "shared", "older words", "shared without git", "static without git"],
)
def test_a_llama_server_of_that_release_is_used(tmp_path: Path, version: str, host: str, pin: str) -> None:
    native = _check(named_programs(tmp_path, version=version, host=host), tmp_path)
    assert native.version.pin == pin


@pytest.mark.parametrize(
    ("version", "host", "what"),
    [
        (says(commit="abcdef123"), "unknown", "is llama.cpp 0.5.0-dev (commit abcdef123)"),
        (says("0.1.0-dev"), "unknown", "is llama.cpp 0.1.0-dev (commit unknown)"),
        ("version: 0 (unknown)", "unknown", "is llama.cpp 0 (commit unknown)"),
        ("error: unknown argument", "unknown", "does not say which llama.cpp it is: error"),
        (says(), "0.20.0", f"has ggml 0.20.0, meshd's module is for {PIN.version}"),
        (says(), "", "does not load meshd's module"),
    ],
    ids=["commit", "release", "before releases", "no version", "its ggml", "no module"],
)
def test_another_llama_server_is_refused(tmp_path: Path, version: str, host: str, what: str) -> None:
    native = named_programs(tmp_path, version=version, host=host)
    with pytest.raises(UserError) as caught:
        _check(native, tmp_path)
    assert str(native.llama_server) in caught.value.what
    assert what in caught.value.what
    assert "omit --native-bin" in (caught.value.hint or "")
    assert _check(native, tmp_path, head=False).llama_server == native.llama_server, "of no use there"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (described(protocol=1), "does not speak version"),
        (described(ggml="0.20.0"), "was made for ggml 0.20.0"),
        ("Segmentation fault", "Segmentation fault"),
        ("[1]", "does not speak version"),
    ],
)
@pytest.mark.parametrize("which", ["server", "module"])
def test_programs_of_ours_that_are_others(tmp_path: Path, which: str, text: str, what: str) -> None:
    server, module = (text if one == which else None for one in ("server", "module"))
    native = named_programs(tmp_path, version=says(), server=server, module=module)
    with pytest.raises(UserError) as caught:
        _check(native, tmp_path)
    named = tmp_path / ("mesh-server" if which == "server" else "libggml-mesh.so")
    assert f"`{named}`" in caught.value.what
    assert what in caught.value.what
    assert "run `meshd native build`" in (caught.value.hint or "")


def test_a_worker_asks_its_own_program_alone(tmp_path: Path) -> None:
    native = named_programs(tmp_path, version="none", module="none")
    assert _check(native, tmp_path, head=False).version.pin == PIN.commit


@pytest.mark.parametrize("program", ["mesh-server", "llama-server"])
def test_a_program_that_fails(tmp_path: Path, program: str) -> None:
    native = named_programs(tmp_path, version=says())
    (tmp_path / program).write_text("#!/bin/sh\necho no such library\nexit 3\n")
    with pytest.raises(UserError, match=r"failed \(exit code 3\): no such library"):
        _check(native, tmp_path)


@pytest.mark.parametrize("program", ["mesh-server", "llama-server"])
def test_a_program_that_does_not_end(tmp_path: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_native, "SAY_SECONDS", 4.0)
    native = named_programs(tmp_path, version=says())
    (tmp_path / program).write_text("#!/bin/sh\necho the driver is asked\nexec sleep 1000\n")
    with pytest.raises(UserError, match=r"did not end within 4 s: the driver is asked"):
        _check(native, tmp_path)


def test_all_programs_are_asked_at_once(tmp_path: Path) -> None:
    """Each waits for the others to be there: asked in turn, none would end."""
    native = named_programs(tmp_path, version=says(commit=PIN.commit))
    for program in (native.llama_server, native.mesh_server):
        script = program.read_text().removeprefix("#!/bin/bash\n")
        met = f"touch {tmp_path}/here.$$; until [ $(ls {tmp_path}/here.* | wc -l) = 4 ]; do sleep 0.01; done"
        program.write_text(f"#!/bin/bash\n{met}\n{script}")
    assert _check(native, tmp_path).version.pin == PIN.commit


def test_of_two_faults_the_first_is_told(tmp_path: Path) -> None:
    native = named_programs(tmp_path, version=says("0.1.0"), server=described(protocol=1))
    with pytest.raises(UserError, match="mesh-server` does not speak version"):
        _check(native, tmp_path)


class Remembering:
    """The programs of a start, and how often one was asked. The scripts pass for programs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **named: str) -> None:
        monkeypatch.setattr(daemon_native, "_BINARIES", (b"#!/bin/bash", b"a module"))
        for name in daemon_native._SEARCHED_FIRST:
            monkeypatch.delenv(name, raising=False)
        self.folder, self.asked, self.machine, self.head = folder, folder / "asked", "since noon", True
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.native = named_programs(self.bin, **({"version": says(commit=PIN.commit)} | named))
        self.native.module.write_bytes(b"a module")
        for program in (self.native.llama_server, self.native.mesh_server):
            program.write_text(program.read_text().replace("\n", f"\necho x >>{self.asked}\n", 1))

    def start(self) -> int:
        """How many programs it asks."""
        self.asked.write_text("")
        passed = TrialCache(self.folder / "native-checks")
        run(
            check_native_once(
                self.native, pin=PIN, logs=self.folder, head=self.head, passed=passed, machine=self.machine
            )
        )
        return len(self.asked.read_text().split())


def test_a_second_start_asks_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Remembering(tmp_path, monkeypatch)
    assert [node.start(), node.start()] == [4, 0]
    node.head = False
    assert [node.start(), node.start()] == [1, 0], "a worker needs one of them"
    node.machine = "since one o'clock"
    assert node.start() == 1


def _touched(node: Remembering) -> None:
    os.utime(node.native.llama_server, ns=(1, 1))


def _replaced(node: Remembering) -> None:
    """By another one of the same size and time."""
    server = node.native.llama_server
    before = server.stat()
    other = server.with_suffix(".new")
    other.write_bytes(server.read_bytes())
    other.chmod(0o700)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(server)


def _other_module(node: Remembering) -> None:
    node.native.module.write_bytes(b"a module of today")


def _other_library(node: Remembering) -> None:
    (node.bin / "libggml-base.so").write_bytes(b"a module")


@pytest.mark.parametrize("change", [_touched, _replaced, _other_module, _other_library])
def test_what_was_changed_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Remembering], None]
) -> None:
    node = Remembering(tmp_path, monkeypatch)
    assert node.start() == 4
    change(node)
    assert [node.start(), node.start()] == [4, 0]


def test_a_library_of_the_program_is_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Remembering(tmp_path, monkeypatch)
    with node.native.llama_server.open("a") as program:
        program.write("# libllama.so.0\n")
    assert [node.start(), node.start()] == [4, 4], (
        "it is somewhere else: that it stays as it is, nobody knows"
    )
    library = tmp_path / "lib" / "libllama.so.0"
    library.parent.mkdir()
    library.write_bytes(b"a module")
    assert [node.start(), node.start()] == [4, 0]
    library.write_bytes(b"a module of today")
    assert [node.start(), node.start()] == [4, 0]
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert node.start() == 4


def test_a_script_is_always_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Remembering(tmp_path, monkeypatch)
    monkeypatch.setattr(daemon_native, "_BINARIES", (b"\x7fELF",))
    assert [node.start(), node.start()] == [4, 4]


def test_a_program_that_does_not_know_its_commit_is_always_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And warned of."""
    node = Remembering(tmp_path, monkeypatch, version=says())
    assert [node.start(), node.start()] == [4, 4]


def test_a_fault_is_found_at_each_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Remembering(tmp_path, monkeypatch, version=says("0.1.0"))
    for _ in range(2):
        with pytest.raises(UserError, match=r"is llama\.cpp"):
            node.start()
