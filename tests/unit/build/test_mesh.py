"""meshd.build.mesh: what is built of native/mesh is found beside a stock build, by its sources."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.build import mesh
from meshd.build.interface import LLAMA_SERVER, MESH_MODULE, MESH_PROGRAM, RPC_SERVER
from meshd.build.machine import cpu_kind
from meshd.build.pin import read_pin
from meshd.build.tree import Tree
from meshd.config import Config, NativeConfig
from meshd.daemon.role_runtime import find_native
from meshd.rpc.mesh_protocol import VERSION
from meshd.wire.native import STOCK_PATCHES

from tests.unit.build.stored import store


def _programs(cache: Path) -> Path:
    folder = mesh.folder_of(cache)
    folder.mkdir(parents=True)
    for name in (MESH_PROGRAM, MESH_MODULE):
        (folder / name).touch()
    return folder


def _config(cache: Path) -> Config:
    return Config(native=NativeConfig(protocol="mesh"), paths=replace(Config().paths, cache=cache))


def test_both_parts_are_needed(tmp_path: Path) -> None:
    assert mesh.find(tmp_path) is None
    folder = _programs(tmp_path)
    assert mesh.find(tmp_path) is None
    store(tmp_path, "cpu", patched=True)
    assert mesh.find(tmp_path) is None, "a patched llama-server is another program"
    store(tmp_path, "cpu", patched=False)
    found = mesh.find(tmp_path)
    assert found is not None
    assert (found.pin, found.patches_sha256, found.backend) == (read_pin().commit, STOCK_PATCHES, "cpu")
    assert found.binaries[MESH_PROGRAM] == folder / MESH_PROGRAM
    assert found.binaries[MESH_MODULE] == folder / MESH_MODULE
    assert found.binaries[RPC_SERVER].is_file() and found.binaries[LLAMA_SERVER].is_file()


def test_each_backend_has_its_own(tmp_path: Path) -> None:
    _programs(tmp_path)
    store(tmp_path, "cuda", patched=False)
    assert mesh.find(tmp_path, "cuda") is None
    mesh.folder_of(tmp_path, "cuda").mkdir()
    for name in (MESH_PROGRAM, MESH_MODULE):
        (mesh.folder_of(tmp_path, "cuda") / name).touch()
    found = mesh.find(tmp_path, "cuda")
    assert found is not None and found.backend == "cuda"


def test_a_part_of_the_programs_is_none(tmp_path: Path) -> None:
    store(tmp_path, "cpu", patched=False)
    (_programs(tmp_path) / MESH_MODULE).unlink()
    assert mesh.find(tmp_path) is None


def test_other_sources_are_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "inject.cmake").write_text("one")
    monkeypatch.setattr(mesh, "sources", lambda: folder)
    before = mesh.folder_of(tmp_path)
    assert before.name.endswith(f"-cpu-{cpu_kind()}")
    (folder / "inject.cmake").write_text("two")
    assert mesh.folder_of(tmp_path) != before


def test_sources_that_change_meanwhile_are_not_taken_for_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "inject.cmake").write_text("one")

    async def untouched(*_args: object, **_options: object) -> Tree:
        return Tree(tmp_path / "tree")

    async def compile_meanwhile(*_args: object) -> None:
        (folder / "inject.cmake").write_text("two")

    monkeypatch.setattr(mesh, "sources", lambda: folder)
    monkeypatch.setattr(mesh, "untouched", untouched)
    monkeypatch.setattr(mesh, "_compile", compile_meanwhile)
    for need in ("need_compiler", "need_tools"):
        monkeypatch.setattr(mesh, need, lambda: None)
    with pytest.raises(UserError, match="changed while they were compiled"):
        asyncio.run(mesh.build_programs(tmp_path, mesh.PROGRAMS, progress=lambda _progress: None))
    assert not list((tmp_path / "native").glob("mesh-*"))


def test_the_daemon_takes_it_by_its_protocol(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not built yet") as caught:
        find_native(_config(tmp_path))
    assert "`meshd native build` once" in (caught.value.hint or "")
    _programs(tmp_path)
    store(tmp_path, "cpu", patched=False)
    native = find_native(_config(tmp_path))
    assert native.mesh is not None and native.can_push and not native.patched
    assert native.version.protocol == f"mesh {VERSION}"


@pytest.mark.parametrize("built", [True, False])
def test_a_folder_of_the_users_comes_first(tmp_path: Path, built: bool) -> None:
    """What is not in it is our own, if that is built."""
    named, cache = tmp_path / "bin", tmp_path / "cache"
    named.mkdir()
    (named / "llama-server").touch()
    if not built:
        assert mesh.read_bin_dir(named, cache) is None
        (named / MESH_PROGRAM).touch()
        assert mesh.read_bin_dir(named, cache) is None
        assert mesh.read_bin_dir(named, cache, head=False) is not None, "a worker loads no module"
        (named / MESH_MODULE).touch()
        found = mesh.read_bin_dir(named, cache)
        assert found is not None
        assert {path.parent for path in found.binaries.values()} == {named}
        return
    folder = _programs(cache)
    store(cache, "cpu", patched=False)
    found = mesh.read_bin_dir(named, cache)
    assert found is not None
    assert (found.pin, found.patches_sha256, found.backend) == ("unknown", STOCK_PATCHES, "unknown")
    assert found.binaries[LLAMA_SERVER] == named / "llama-server"
    assert found.binaries[MESH_MODULE] == folder / MESH_MODULE
    (named / MESH_MODULE).touch()
    found = mesh.read_bin_dir(named, cache)
    assert found is not None and found.binaries[MESH_MODULE] == named / MESH_MODULE
    assert found.binaries[MESH_PROGRAM] == folder / MESH_PROGRAM


def test_a_folder_of_the_users_that_lacks_what_is_needed(tmp_path: Path) -> None:
    store(tmp_path, "cpu", patched=False)
    _programs(tmp_path)
    with pytest.raises(UserError, match="there is no directory"):
        mesh.read_bin_dir(tmp_path / "none", tmp_path)
    named = tmp_path / "bin"
    named.mkdir()
    with pytest.raises(UserError, match="has no `llama-server`"):
        mesh.read_bin_dir(named, tmp_path)
    assert mesh.read_bin_dir(named, tmp_path, head=False) is not None, "a worker then uses our own"
    (named / MESH_PROGRAM).touch()
    config = _config(tmp_path)
    native = find_native(replace(config, paths=replace(config.paths, native_bin=named)), head=False)
    assert native.mesh is not None and native.mesh.server == named / MESH_PROGRAM
    assert native.device_program == named / MESH_PROGRAM
