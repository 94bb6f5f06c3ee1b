"""`meshd native`: what it prints of a build, and what it asks of one."""

import json
from pathlib import Path

import pytest
from meshd.build.interface import NativeInfo

from .shell import meshd, refused


def test_native_info(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test that a worker's program is shown as its `rpc-server`, whatever it is called."""
    refused(meshd("native", "info"), 1, "run `meshd native build` once")
    refused(meshd("native", "info", "--backend", "cuda"), 1, "run `meshd native build --backend cuda` once")
    places = {name: tmp_path / name for name in ("ggml-rpc-server", "llama-server")}
    places["mesh-server"] = tmp_path / "mesh" / "mesh-server"
    info = NativeInfo("p" * 40, "a" * 64, "cpu", tmp_path, places)
    monkeypatch.setattr("meshd.build.native.find", lambda cache, backend: info)
    body = json.loads(meshd("native", "info", "--json").out)
    assert body == {
        "schema": 1,
        "pin": "p" * 40,
        "patches_sha256": "a" * 64,
        "backend": "cpu",
        "bin_dir": str(tmp_path),
        "binaries": {
            "rpc-server": str(places["mesh-server"]),
            "mesh-server": str(places["mesh-server"]),
            "ggml-rpc-server": str(tmp_path / "ggml-rpc-server"),
            "llama-server": str(tmp_path / "llama-server"),
        },
    }
    shown = meshd("native", "info").out
    assert f"sources   {'a' * 64}\n" in shown
    assert f"binaries  {tmp_path}\n          ggml-rpc-server, llama-server\n" in shown
    assert f"binaries  {tmp_path / 'mesh'}\n          mesh-server\n" in shown and " rpc-server" not in shown


def test_native_info_of_a_folder_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("llama-server", "mesh-server", "libggml-mesh.so"):
        (tmp_path / name).touch()
    monkeypatch.setenv("MESHD_NATIVE_BIN", str(tmp_path))
    body = json.loads(meshd("native", "info", "--json").out)
    assert (body["pin"], body["patches_sha256"], body["bin_dir"]) == ("unknown", "unknown", str(tmp_path))
    assert body["binaries"]["rpc-server"] == str(tmp_path / "mesh-server")


def test_native_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def build(_cache: Path, *, backend: str, source: Path | None, progress: object) -> NativeInfo:
        return NativeInfo("p" * 40, "a" * 64, backend, source or tmp_path, {})

    monkeypatch.setattr("meshd.build.native.build", build)
    given = ("--backend", "cuda", "--source", "/src", "--json")
    body = json.loads(meshd("native", "build", *given).out)
    assert (body["bin_dir"], body["backend"], body["patches_sha256"]) == ("/src", "cuda", "a" * 64)


@pytest.mark.parametrize("verb", ["build", "info"])
def test_there_is_one_native_protocol(verb: str) -> None:
    refused(meshd("native", verb, "--native-protocol", "rpc"), 2, "--native-protocol")
