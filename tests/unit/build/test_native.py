"""meshd.build.native: finding builds, and describing folders that the user names."""

from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.build import native
from meshd.build.interface import LLAMA_BENCH, LLAMA_SERVER, RPC_SERVER
from meshd.build.pin import read_pin
from meshd.config import Config, NativeConfig
from meshd.daemon.role_runtime import find_native
from meshd.wire.native import STOCK_PATCHES

from tests.unit.build.stored import store


def test_nothing_is_found_in_an_empty_cache(tmp_path: Path) -> None:
    assert native.find(tmp_path) is None
    assert native.find(tmp_path, "cpu") is None


def test_patched_and_stock_are_kept_apart(tmp_path: Path) -> None:
    store(tmp_path, "cpu", patched=False)
    assert native.find(tmp_path, "cpu") is None
    stock = native.find(tmp_path, "cpu", patched=False)
    assert stock is not None
    assert not stock.patched
    store(tmp_path, "cpu")
    found = native.find(tmp_path, "cpu")
    assert found is not None
    assert found.patches_sha256 == read_pin().patches_sha256


def test_auto_takes_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "resolve_backend", lambda backend: "cuda" if backend == "auto" else backend)
    store(tmp_path, "cpu")
    found = native.find(tmp_path)
    assert found is not None
    assert found.backend == "cpu"
    assert native.find(tmp_path, "cuda") is None
    store(tmp_path, "cuda")
    found = native.find(tmp_path)
    assert found is not None
    assert found.backend == "cuda"


def test_a_folder_of_the_users_is_stock(tmp_path: Path) -> None:
    for name in ("rpc-server", "llama-server"):
        (tmp_path / name).touch()
    info = native.read_bin_dir(tmp_path)
    assert info.patches_sha256 == STOCK_PATCHES
    assert info.binaries == {
        RPC_SERVER: tmp_path / "rpc-server",
        LLAMA_SERVER: tmp_path / "llama-server",
    }
    (tmp_path / "ggml-rpc-server").touch()
    (tmp_path / "llama-bench").touch()
    info = native.read_bin_dir(tmp_path)
    assert info.binaries[RPC_SERVER].name == "ggml-rpc-server"
    assert info.binaries[LLAMA_BENCH].name == "llama-bench"


def test_a_folder_of_ours_keeps_its_patches(tmp_path: Path) -> None:
    assert native.read_bin_dir(store(tmp_path, "cpu")).patches_sha256 == read_pin().patches_sha256


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no directory `.*nowhere`"):
        native.read_bin_dir(tmp_path / "nowhere")


def test_a_worker_needs_no_llama_server(tmp_path: Path) -> None:
    (tmp_path / "rpc-server").touch()
    with pytest.raises(UserError, match="has no `llama-server`"):
        native.read_bin_dir(tmp_path)
    assert native.read_bin_dir(tmp_path, head=False).binaries == {RPC_SERVER: tmp_path / "rpc-server"}
    rpc = NativeConfig(protocol="rpc")
    config = replace(Config(native=rpc), paths=replace(Config().paths, native_bin=tmp_path))
    assert find_native(config, head=False).rpc_server == tmp_path / "rpc-server"


def test_a_folder_without_what_is_needed(tmp_path: Path) -> None:
    (tmp_path / "llama-bench").touch()
    with pytest.raises(UserError, match="has no `ggml-rpc-server`"):
        native.read_bin_dir(tmp_path)
