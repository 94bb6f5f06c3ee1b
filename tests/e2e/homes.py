"""Nodes that share nothing: each has a cache and a user's home, as on machines of their own."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from meshd.fleet.fleet import LocalNode
from meshd.store.hash_cache import FileState, HashCache, PieceCache
from meshd.store.model_file import ModelFile

from tests.e2e.models import cache_folder
from tests.e2e.nodes import Fleet, cli

NAME = "Smol-Q4_1"


class Homes:
    """Nodes that share nothing: each has a cache and a user's home, as on machines of their own."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet, self._folder = fleet, folder

    def cache(self, name: str) -> Path:
        """With the shared native builds."""
        mine = self._folder / f"{name}-cache"
        if not mine.exists():
            (mine / "models").mkdir(parents=True)
            (mine / "native").symlink_to(cache_folder() / "native")
        return mine

    def variables(self, name: str) -> dict[str, str]:
        """For its daemon and for verbs that ask it; the hub cannot be reached."""
        home = self._folder / f"{name}-user"
        home.mkdir(parents=True, exist_ok=True)
        hub = {"XDG_CACHE_HOME": str(home), "HF_ENDPOINT": "http://127.0.0.1:9"}
        given = {"MESHD_KEEP_WEIGHTS": "20G"}
        return {"HOME": str(home), "MESHD_CACHE": str(self.cache(name)), **given, **hub}

    def has(self, name: str, *files: Path) -> Path:
        """Put files among the models of a node; one is called NAME."""
        folder = self.cache(name) / "models"
        for file in files:
            shutil.copyfile(file, folder / (f"{NAME}.gguf" if len(files) == 1 else file.name))
        return folder / f"{NAME}.gguf"

    async def start(self, name: str, *options: str, token: str = "", prefix: Sequence[str] = ()) -> LocalNode:
        """A worker of that name."""
        spec = self.fleet.spec(name, "worker", *options, token=token, prefix=tuple(prefix))
        environment = {**spec.environment, **self.variables(name)}
        return await self.fleet.start(replace(spec, cache=self.cache(name), environment=environment))

    async def serve(
        self, name: str, model: Path | str, *options: str, token: str = "", prefix: Sequence[str] = ()
    ) -> LocalNode:
        """A head of that name."""
        words = ("--model", str(model), "--port", "0", *options)
        spec = self.fleet.spec(name, "serve", *words, token=token, prefix=tuple(prefix))
        environment = {**spec.environment, **self.variables(name)}
        return await self.fleet.start(replace(spec, cache=self.cache(name), environment=environment))

    async def joined(self, *givers: str, model: Path | None = None, prefix: Sequence[str] = ()) -> LocalNode:
        """Let `taker` found the mesh, and the others join it, started with `model`; return it connected."""
        taker = await self.start("taker", prefix=prefix)
        token, words = await taker.token(), ("--model", str(model)) if model is not None else ()
        for name in givers:
            await self.start(name, *words, token=token)
        await connected(taker, len(givers))
        return taker

    async def run(self, name: str, *words: str, hub: str = "") -> subprocess.CompletedProcess[str]:
        """One command of that node's user; `hub` is one that can be reached."""
        variables = self.variables(name) | ({"HF_ENDPOINT": hub} if hub else {})
        return await cli(self._folder / name, "model", *words, **variables)

    async def begin(self, name: str, *words: str) -> asyncio.subprocess.Process:
        """One that is killed later."""
        plain = {key: value for key, value in os.environ.items() if not key.startswith("MESHD_")}
        environment = {**plain, **self.variables(name), "MESHD_HOME": str(self._folder / name)}
        argv = (sys.executable, "-m", "meshd", "model", *words)
        nowhere = asyncio.subprocess.DEVNULL
        return await asyncio.create_subprocess_exec(*argv, env=environment, stdout=nowhere, stderr=nowhere)

    async def fetched(self, name: str, least: int) -> None:
        """Wait until so many bytes of a pull are on that node's disk."""
        parts = self.cache(name) / "models/.parts"
        while sum(path.stat().st_blocks * 512 for path in parts.glob("*/*.gguf")) < least:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@asynccontextmanager
async def homes_in(folder: Path) -> AsyncIterator[Homes]:
    """With a fleet of their own, which ends with them."""
    async with Fleet(folder) as fleet:
        yield Homes(fleet, folder)


async def connected(node: LocalNode, peers: int) -> None:
    """Until the node has so many connected peers."""
    await node.until(lambda status: sum(peer.state == "connected" for peer in status.peers) == peers)


def flipped(file: Path, truth: Path, cache: Path, places: Iterable[int]) -> None:
    """Bits of the file turn over, and its node knows nothing of it: as if the disk had done it."""
    with file.open("r+b") as writer:
        for place in places:
            writer.seek(place)
            byte = writer.read(1)
            writer.seek(place)
            writer.write(bytes([byte[0] ^ 1]))
    hashes = HashCache(cache / "weights")
    with truth.open("rb") as reader:
        good = asyncio.run(PieceCache(cache / "none", hashes).read([reader.fileno()], ["x"], lambda _: None))
    state = FileState.at(file)
    PieceCache(cache / "pieces", hashes).save([state], good)

    async def digests() -> None:  # else the node would read them, and know
        model = await ModelFile.open(truth, cache=HashCache(cache_folder() / "weights"))
        index = await model.index()
        hashes.save(state, model.headers[0], [one.digest for one in index.tensors])
        model.close()

    asyncio.run(digests())
