"""Binaries that the user names, played by scripts: faults are reported at the start."""

import asyncio
import sys
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.daemon.native_check import check_native
from meshd.role.interface import NativeBuild
from meshd.wire.native import NativeVersion

from tests.conformance.run import run

UNKNOWN = NativeVersion("7.0.0", "unknown", "stock", "unknown")
SERVER = """
import socket, sys
def main(argv):
    listener = socket.create_server((argv[argv.index("--host") + 1], int(argv[argv.index("--port") + 1])))
    while True:
        client, _ = listener.accept()
        with client:
            if client.recv(33, socket.MSG_WAITALL):
                client.sendall(ANSWER)
"""
LISTS = "import sys; print('Available devices:', '  RPC0: a device', sep=chr(10))"
REPORTS = (
    f"import os; os.write(int(os.environ['GGML_RPC_REPORT_FD']), b'worker 127.0.0.1:1 patched\\n')\n{LISTS}"
)
STAMPED = NativeVersion("7.0.0", "0c1e57098", "cdd189b23d80", "cpu")


def _script(path: Path, text: str) -> Path:
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(0o700)
    return path


def _answers(answer: bytes) -> str:
    return f"{SERVER}\nANSWER = {answer!r}\nmain(sys.argv)"


def _hello(major: int, minor: int, caps: bytes = bytes(24)) -> bytes:
    return (28).to_bytes(8, "little") + bytes((major, minor, 2, 0)) + caps


PATCHED = bytes(20) + b"MD\x3f\0"


def _check(
    folder: Path,
    server: str,
    head: str | None = LISTS,
    *,
    patched: bool = False,
    version: NativeVersion = UNKNOWN,
) -> NativeBuild:
    native = NativeBuild(
        _script(folder / "ggml-rpc-server", server),
        _script(folder / "llama-server", head or ""),
        patched=patched,
        version=version,
    )
    return run(check_native(native, protocol="7.1.0", logs=folder, head=head is not None))


@pytest.mark.parametrize("minor", [0, 1])
def test_a_build_that_can_take_part_tells_its_protocol(tmp_path: Path, minor: int) -> None:
    assert _check(tmp_path, _answers(_hello(7, minor))).version.rpc == f"7.{minor}.2"


def test_a_worker_needs_no_llama_server(tmp_path: Path) -> None:
    assert _check(tmp_path, _answers(_hello(7, 0)), head=None).version.rpc == "7.0.2"


@pytest.mark.parametrize("head", [REPORTS, None], ids=["head", "worker"])
def test_programs_without_a_stamp_say_that_they_have_patches(tmp_path: Path, head: str | None) -> None:
    native = _check(tmp_path, _answers(_hello(7, 0, PATCHED)), head=head)
    assert native.patched
    assert native.version.patches == "unknown"


def test_what_the_programs_say_counts_and_a_stamp_tells_which_patches(tmp_path: Path) -> None:
    native = _check(tmp_path, _answers(_hello(7, 0, PATCHED)), REPORTS, patched=True, version=STAMPED)
    assert native.patched
    assert native.version.patches == STAMPED.patches
    native = _check(tmp_path, _answers(_hello(7, 0)), patched=True, version=STAMPED)
    assert not native.patched
    assert native.version.patches == "stock"


@pytest.mark.parametrize(
    ("caps", "head", "with_patches", "without"),
    [
        (PATCHED, LISTS, "ggml-rpc-server", "llama-server"),
        (bytes(24), REPORTS, "llama-server", "ggml-rpc-server"),
    ],
    ids=["stock head", "stock worker"],
)
def test_programs_of_two_builds_are_not_used_together(
    tmp_path: Path, caps: bytes, head: str, with_patches: str, without: str
) -> None:
    with pytest.raises(UserError) as caught:
        _check(tmp_path, _answers(_hello(7, 0, caps)), head)
    assert f"{with_patches}` has meshd's patches" in caught.value.what
    assert f"{without}` does not" in caught.value.what
    assert "a single build" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("server", "what"),
    [
        (_answers(_hello(6, 0)), "speaks RPC protocol 6.0.2, this meshd speaks 7.1.0"),
        (_answers(_hello(7, 2)), "speaks RPC protocol 7.2.2, this meshd speaks 7.1.0"),
        (_answers(b"HTTP/1.1 400 Bad Request"), "does not answer HELLO"),
        (_answers((3).to_bytes(8, "little") + b"123"), "does not answer HELLO"),
        (_answers(b""), "does not answer HELLO"),
        ("raise SystemExit('libggml-rpc.so is not there')", "libggml-rpc.so is not there"),
    ],
    ids=["older", "newer", "another protocol", "short", "silent", "broken"],
)
def test_an_rpc_server_that_cannot_take_part(tmp_path: Path, server: str, what: str) -> None:
    with pytest.raises(UserError) as caught:
        _check(tmp_path, server)
    assert what in caught.value.what
    assert str(tmp_path / "ggml-rpc-server") in caught.value.what
    assert "-DGGML_RPC=ON" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("says", "what"),
    [
        ("print('error: invalid argument: --rpc'); raise SystemExit(1)", "was built without RPC"),
        (
            "raise SystemExit('error while handling argument \"--rpc\": RPC not supported in this build')",
            "was built without RPC",
        ),
        ("print('Available devices:')", "was built without RPC"),
        ("raise SystemExit('RPC server version mismatch: 7.0.2')", "different version of the RPC protocol"),
        ("raise SystemExit('no such library')", "cannot list devices (exit code 1); last lines: no such"),
    ],
    ids=["option unknown", "not supported", "no device", "other version", "broken"],
)
def test_a_llama_server_that_cannot_use_workers(tmp_path: Path, says: str, what: str) -> None:
    with pytest.raises(UserError) as caught:
        _check(tmp_path, _answers(_hello(7, 0)), head=says)
    assert what in caught.value.what
    assert str(tmp_path / "llama-server") in caught.value.what
    assert "meshd native build" in (caught.value.hint or "")


def test_nothing_is_left_running(tmp_path: Path) -> None:
    async def main() -> None:
        before = {task.get_name() for task in asyncio.all_tasks()}
        native = NativeBuild(
            _script(tmp_path / "ggml-rpc-server", _answers(_hello(6, 0))), Path("none"), False, UNKNOWN
        )
        with pytest.raises(UserError):
            await check_native(native, protocol="7.0.0", logs=tmp_path, head=True)
        assert {task.get_name() for task in asyncio.all_tasks()} == before

    run(main())
    assert not list(tmp_path.glob("*.pid"))
