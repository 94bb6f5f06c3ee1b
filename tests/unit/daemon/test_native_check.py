"""Native programs that the user names are asked what they are."""

from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.daemon import native_check
from meshd.daemon.native_check import LlamaVersion, check_native, parse_version
from meshd.role.interface import NativeBuild

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
    monkeypatch.setattr(native_check, "SAY_SECONDS", 0.5)
    native = named_programs(tmp_path, version=says())
    (tmp_path / program).write_text("#!/bin/sh\necho the driver is asked\nexec sleep 1000\n")
    with pytest.raises(UserError, match=r"did not end within 0 s: the driver is asked"):
        _check(native, tmp_path)
