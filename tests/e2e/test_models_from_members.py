"""Models from members over real daemons: from two at once, killed and continued, lied to, refused."""

import filecmp
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.fleet.node import LocalNode

from tests.e2e.models import cache_folder, smollm2
from tests.e2e.nodes import Fleet, cli, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(600)]

NAME = "Smol-Q4_1"


class Homes:
    """Nodes that share nothing: each has a cache and a user's home, as on machines of their own."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self._fleet, self._folder = fleet, folder

    def cache(self, name: str) -> Path:
        """With the shared native builds."""
        mine = self._folder / f"{name}-cache"
        if not mine.exists():
            (mine / "models").mkdir(parents=True)
            (mine / "native").symlink_to(cache_folder() / "native")
        return mine

    def variables(self, name: str) -> dict[str, str]:
        home = self._folder / f"{name}-user"
        home.mkdir(exist_ok=True)
        return {"HOME": str(home), "MESHD_CACHE": str(self.cache(name)), "XDG_CACHE_HOME": str(home)}

    async def start(self, name: str, *options: str, token: str = "", has: Path | None = None) -> LocalNode:
        if has is not None:
            shutil.copyfile(has, self.cache(name) / "models" / f"{NAME}.gguf")
        spec = self._fleet.spec(name, "worker", *options, token=token)
        environment = {**spec.environment, **self.variables(name)}
        return await self._fleet.start(replace(spec, cache=self.cache(name), environment=environment))

    async def run(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        return await cli(self._folder / name, *words, **self.variables(name))


def same(path: str | Path, other: Path) -> bool:
    """Whether two files have the same bytes."""
    return filecmp.cmp(path, other, shallow=False)


async def _joined(homes: Homes, *has: Path | None) -> list[LocalNode]:
    """`taker` founds the mesh; `giver-0` and so on have these files, and are connected."""
    taker = await homes.start("taker")
    token = await taker.token()
    nodes = [await homes.start(f"giver-{n}", token=token, has=file) for n, file in enumerate(has)]
    await taker.until(lambda status: sum(peer.state == "connected" for peer in status.peers) == len(has))
    return [taker, *nodes]


def test_two_members_give_one_model_at_once(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            homes = Homes(fleet, tmp_path)
            await _joined(homes, smollm2(), smollm2())
            rows = json.loads((await homes.run("taker", "model", "ls", "--json")).stdout)
            pulled = await homes.run("taker", "model", "pull", NAME, "--json")
            assert pulled.returncode == 0, pulled.stderr
            body = json.loads(pulled.stdout)
            assert same(body["paths"][0], smollm2())
            assert [row["name"] for row in rows] == [f"mesh:{NAME}"]
            assert {node["node"] for node in rows[0]["nodes"]} == {"giver-0", "giver-1"}
            assert {one["node"] for one in body["members"] if one["bytes"] > 0} == {"giver-0", "giver-1"}

    play(check())
