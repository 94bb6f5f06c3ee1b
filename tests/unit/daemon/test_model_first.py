"""A node that takes its model from members before it starts: they may come late, or have none."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.admin.models_api import PullReply, PullRequest
from meshd.base.errors import UserError
from meshd.config import Config, NodeConfig, Paths
from meshd.daemon import model_first
from meshd.library.members.pull_state import NobodyHasIt

from tests.conformance.run import run
from tests.unit.daemon.test_models import exchange
from tests.unit.library.members.exchange_scene import NAME, big, scene


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_first, "_LOOK_SECONDS", 0.02)


def pulled(
    folder: Path, has: Callable[[Path], bytes], *, name: str, late: bool
) -> tuple[Path, list[PullReply]]:
    """What comes of it if a member has a model, from the start or once somebody asked for it."""
    shown: list[PullReply] = []

    async def main() -> Path:
        async with scene(folder) as it, exchange(it, folder) as models:
            asking = asyncio.create_task(model_first._pull(models, PullRequest(name=name), shown.append))
            while late and not shown:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
            it.giver("a").has(has(folder))
            [path] = await asking
            return path

    return run(main()), shown


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", [f"mesh:{NAME}", NAME])
def test_it_comes_from_members_that_are_there_or_come(tmp_path: Path, late: bool, name: str) -> None:
    path, shown = pulled(tmp_path, lambda _: big(), name=name, late=late)
    assert path.read_bytes() == big() and path.name == f"{NAME}.gguf"
    assert shown[-1].step == "done" and [one.node for one in shown[-1].holders] == ["a"]


@pytest.mark.parametrize(
    ("name", "seconds"), [("mesh:none", "FOUND_SECONDS"), ("none", "_OR_ELSEWHERE_SECONDS")]
)
def test_nobody_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, seconds: str) -> None:
    monkeypatch.setattr(model_first, seconds, 0.2)

    async def main() -> None:
        async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
            it.giver("a")
            with pytest.raises(NobodyHasIt, match=f"no member of the mesh has `{name}`; asked: a"):
                await model_first._pull(models, PullRequest(name=name), lambda _: None)

    run(main())


def test_another_failure_is_told_at_once(tmp_path: Path) -> None:
    """A name of two models."""

    async def main() -> None:
        async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
            it.giver("a").has(big())
            it.giver("b").has(big()[: len(big()) // 2] + big())
            with pytest.raises(UserError, match="means different models"):
                await model_first._pull(models, PullRequest(name=f"mesh:{NAME}"), lambda _: None)

    run(main())


def test_a_node_without_a_mesh_has_nobody_to_ask(tmp_path: Path) -> None:
    config = Config(paths=Paths(home=tmp_path / "home", cache=tmp_path / "cache"))
    assert not model_first.has_members(config)
    assert model_first.has_members(replace(config, node=NodeConfig(join="mesh1token")))
    with pytest.raises(UserError, match="this node is in no mesh yet") as raised:
        model_first.pull_first(config, PullRequest(name="mesh:any"), "serve", lambda _: None)
    assert "--join" in raised.value.hint and not (tmp_path / "home").exists()
