"""meshd.build.native: what is compiled, with what options, and what is not compiled again."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.build import cache as builds
from meshd.build import compile as compiling
from meshd.build import native
from meshd.build.interface import BuildProgress, NativeInfo, Stage
from meshd.build.pin import mesh_sources, read_pin
from meshd.build.tree import Tree

from tests.unit.build.stored import program

ALL = ["ggml-rpc-server", "llama-server", "llama-bench", "mesh-server", "ggml-mesh"]


@dataclass
class Site:
    """Builds in a cache; the compiler writes what it is asked for, and `sources` are ours."""

    cache: Path
    sources: Path
    compiled: list[list[str]] = field(default_factory=list)
    flags: set[tuple[str, ...]] = field(default_factory=set)

    async def compile_tree(
        self, tree: Tree, *, targets: Sequence[str], flags: Sequence[str], **_how: object
    ) -> None:
        self.compiled.append(list(targets))
        self.flags.add(tuple(flags))
        for name in targets:
            program(tree.build / "bin", "libggml-mesh.so" if name == "ggml-mesh" else name, tree.ours.name)

    def build(self, *, tools: bool = False) -> NativeInfo:
        return asyncio.run(
            native.build(self.cache, backend="cpu", tools=tools, progress=lambda _progress: None)
        )

    def change_sources(self) -> None:
        (self.sources / "inject.cmake").write_text("other")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    sources = tmp_path / "native" / "mesh"
    sources.mkdir(parents=True)
    (sources / "inject.cmake").write_text("one")
    (sources.parent / "UPSTREAM.toml").write_text((mesh_sources().parent / "UPSTREAM.toml").read_text())
    made = Site(tmp_path / "cache", sources)

    async def fill(tree: Tree, *_of: object) -> None:
        tree.source.mkdir(parents=True, exist_ok=True)
        (tree.folder / "origin").write_text(read_pin().commit)

    monkeypatch.setattr("meshd.build.pin._FOLDERS", (sources.parent,))
    monkeypatch.setattr(native, "fill", fill)
    monkeypatch.setattr(compiling, "compile_tree", made.compile_tree)
    for need in ("need_compiler", "need_tools"):
        monkeypatch.setattr(native, need, lambda: None)
    return made


def test_all_is_compiled_at_once_in_one_tree(site: Site) -> None:
    info = site.build()
    assert site.compiled == [ALL]
    assert native.find(site.cache, "cpu") == info
    assert sorted(path.name.partition("-")[0] for path in (site.cache / "native").iterdir()) == [
        "llama",
        "lock",
        "mesh",
        "upstream",
    ]


def test_what_is_there_is_not_compiled_again(site: Site) -> None:
    site.build()
    heard: list[BuildProgress] = []
    asyncio.run(native.build(site.cache, backend="cpu", progress=heard.append))
    assert [progress.stage for progress in heard] == [Stage.DONE]
    assert site.build(tools=True).binaries.keys() >= {"llama-quantize", "llama-server"}
    assert site.compiled == [ALL, ["llama-quantize", "llama-batched-bench"]]


def test_a_change_of_our_sources_compiles_nothing_of_upstreams(site: Site) -> None:
    before = site.build()
    site.change_sources()
    assert native.find(site.cache, "cpu") is None
    after = site.build()
    assert site.compiled == [ALL, ["mesh-server", "ggml-mesh"]]
    assert after.sources_sha256 != before.sources_sha256
    assert after.binaries["llama-server"] == before.binaries["llama-server"]
    assert after.binaries["mesh-server"] != before.binaries["mesh-server"]
    assert len(site.flags) == 1, "other options would compile all of it anew"


def test_our_tests_are_built_without_upstreams_programs(site: Site) -> None:
    folder = asyncio.run(
        native.build_programs(
            site.cache, (*native.OUR_PROGRAMS, "mesh-tests"), progress=lambda _progress: None
        )
    )
    assert (folder / "mesh-tests").is_file()
    assert native.find(site.cache, "cpu") is None
    site.build()
    assert site.compiled == [["mesh-server", "ggml-mesh", "mesh-tests"], ALL[:3]]


def test_sources_that_change_meanwhile_are_not_taken_for_those_before(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def compile_meanwhile(tree: Tree, **how: object) -> None:
        site.change_sources()

    monkeypatch.setattr(compiling, "compile_tree", compile_meanwhile)
    with pytest.raises(UserError, match="changed while they were compiled"):
        site.build()
    assert not list((site.cache / "native").glob("*/stamp.json"))


def test_what_older_versions_built_goes(site: Site) -> None:
    folder = site.cache / "native"
    for name in ("tree-cpu-1", "untouched-cpu-1", "fuzz-cpu-1", "mesh-0123456789ab-cpu-1", "upstream-old-1"):
        (folder / name).mkdir(parents=True)
    program(folder / "0c1e57098-stock-cpu-1" / "bin", "llama-server")
    (folder / "0c1e57098-stock-cpu-1" / "stamp.json").write_text("{}")
    for name in ("follow-1", "fuzz-mesh-cpu-1"):
        (folder / name).mkdir()
    site.build()
    left = {path.name for path in folder.iterdir()}
    pin = read_pin()
    keys = builds.upstream_key(pin, "cpu"), builds.ours_key(pin, "cpu")
    tree = builds.tree_of(site.cache).folder.name
    assert left == {*(key.name for key in keys), tree, "lock", "follow-1", "fuzz-mesh-cpu-1"}
