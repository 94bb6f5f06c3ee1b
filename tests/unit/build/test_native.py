"""meshd.build.native: finding builds, and describing folders that the user names."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.build import native
from meshd.build.interface import LLAMA_BENCH, LLAMA_SERVER, MESH_MODULE, MESH_PROGRAM, RPC_SERVER
from meshd.build.pin import read_pin
from meshd.config.tree import Config
from meshd.daemon.native import find_native
from meshd.rpc.mesh_protocol import VERSION

from tests.unit.build.stored import store_ours, store_upstream


def _config(cache: Path) -> Config:
    return Config(paths=replace(Config().paths, cache=cache))


def test_nothing_is_found_in_an_empty_cache(tmp_path: Path) -> None:
    assert native.find(tmp_path) is None
    assert native.find(tmp_path, "cpu") is None


@pytest.mark.parametrize("first", [store_ours, store_upstream])
def test_both_parts_are_needed(tmp_path: Path, first: Callable[[Path], Path]) -> None:
    first(tmp_path)
    assert native.find(tmp_path) is None
    ours, upstreams = store_ours(tmp_path), store_upstream(tmp_path)
    found = native.find(tmp_path)
    assert found is not None
    pin = read_pin()
    assert (found.pin, found.sources_sha256, found.backend) == (pin.commit, pin.sources_sha256, "cpu")
    assert found.bin_dir == upstreams
    assert found.binaries == {
        **{name: ours / name for name in (MESH_PROGRAM, MESH_MODULE)},
        **{name: upstreams / name for name in (RPC_SERVER, LLAMA_SERVER, LLAMA_BENCH)},
    }


def test_a_part_of_the_programs_is_none(tmp_path: Path) -> None:
    store_upstream(tmp_path)
    (store_ours(tmp_path) / MESH_MODULE).unlink()
    assert native.find(tmp_path) is None


def test_each_backend_has_its_own(tmp_path: Path) -> None:
    store_ours(tmp_path)
    store_upstream(tmp_path, "cuda")
    assert native.find(tmp_path, "cuda") is None
    store_ours(tmp_path, "cuda")
    found = native.find(tmp_path, "cuda")
    assert found is not None and found.backend == "cuda"


def test_auto_takes_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "resolve_backend", lambda backend: "cuda" if backend == "auto" else backend)
    for backend in ("cpu", "cuda"):
        store_ours(tmp_path, backend)
    store_upstream(tmp_path)
    found = native.find(tmp_path)
    assert found is not None and found.backend == "cpu"
    assert native.find(tmp_path, "cuda") is None
    store_upstream(tmp_path, "cuda")
    found = native.find(tmp_path)
    assert found is not None and found.backend == "cuda"


def test_other_sources_are_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_ours(tmp_path)
    store_upstream(tmp_path)
    pin = read_pin()
    for other in (replace(pin, sources_sha256="f" * 64), replace(pin, commit="f" * 40)):
        monkeypatch.setattr(native, "read_pin", lambda other=other: other)
        assert native.find(tmp_path) is None
    monkeypatch.setattr(native, "read_pin", lambda: pin)
    assert native.find(tmp_path) is not None


def test_builds_of_an_older_meshd_are_not_taken(tmp_path: Path) -> None:
    """Whose folders were called otherwise, and whose stamps knew of patches."""
    ours, upstreams = store_ours(tmp_path), store_upstream(tmp_path)
    assert native.find(tmp_path) is not None
    for bin_dir in (ours, upstreams):
        stamp = bin_dir.parent / "stamp.json"
        stamp.write_text(stamp.read_text().replace('"sources"', '"patches"'))
    assert native.find(tmp_path) is None


def test_the_daemon_takes_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not built yet") as caught:
        find_native(_config(tmp_path).paths)
    assert "`meshd native build` once" in (caught.value.hint or "")
    store_ours(tmp_path)
    store_upstream(tmp_path)
    found = find_native(_config(tmp_path).paths)
    assert found.module.is_file()
    assert found.version.protocol == f"mesh {VERSION}"


@pytest.mark.parametrize("built", [True, False])
def test_a_folder_of_the_users_comes_first(tmp_path: Path, built: bool) -> None:
    """Test that what is not in it is our own, if that is built."""
    named, cache = tmp_path / "bin", tmp_path / "cache"
    named.mkdir()
    (named / "llama-server").touch()
    if not built:
        assert native.read_bin_dir(named, cache) is None
        (named / MESH_PROGRAM).touch()
        assert native.read_bin_dir(named, cache) is None
        assert native.read_bin_dir(named, cache, head=False) is not None, "a worker loads no module"
        (named / MESH_MODULE).touch()
        found = native.read_bin_dir(named, cache)
        assert found is not None
        assert {path.parent for path in found.binaries.values()} == {named}
        return
    folder = store_ours(cache)
    store_upstream(cache)
    found = native.read_bin_dir(named, cache)
    assert found is not None
    assert (found.pin, found.sources_sha256, found.backend) == ("unknown", "unknown", "unknown")
    assert found.binaries[LLAMA_SERVER] == named / "llama-server"
    assert found.binaries[MESH_MODULE] == folder / MESH_MODULE
    (named / MESH_MODULE).touch()
    found = native.read_bin_dir(named, cache)
    assert found is not None and found.binaries[MESH_MODULE] == named / MESH_MODULE
    assert found.binaries[MESH_PROGRAM] == folder / MESH_PROGRAM


def test_upstreams_rpc_server_is_known_by_its_older_name(tmp_path: Path) -> None:
    for name in ("rpc-server", MESH_PROGRAM):
        (tmp_path / name).touch()
    found = native.read_bin_dir(tmp_path, tmp_path, head=False)
    assert found is not None and found.binaries[RPC_SERVER] == tmp_path / "rpc-server"
    (tmp_path / "ggml-rpc-server").touch()
    found = native.read_bin_dir(tmp_path, tmp_path, head=False)
    assert found is not None and found.binaries[RPC_SERVER] == tmp_path / "ggml-rpc-server"


def test_a_folder_of_the_users_that_lacks_what_is_needed(tmp_path: Path) -> None:
    store_ours(tmp_path)
    store_upstream(tmp_path)
    with pytest.raises(UserError, match=r"there is no directory `.*none`"):
        native.read_bin_dir(tmp_path / "none", tmp_path)
    named = tmp_path / "bin"
    named.mkdir()
    with pytest.raises(UserError, match="has no `llama-server`"):
        native.read_bin_dir(named, tmp_path)
    assert native.read_bin_dir(named, tmp_path, head=False) is not None, "a worker then uses our own"
    (named / MESH_PROGRAM).touch()
    config = _config(tmp_path)
    found = find_native(replace(config.paths, native_bin=named), head=False)
    assert found.mesh_server == named / MESH_PROGRAM
