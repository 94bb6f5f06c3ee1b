"""A plan for a model that is not on the machine: only its header comes, from the hub or from a member."""

import json
from pathlib import Path

import pytest

from tests.e2e.homes import NAME, connected, homes_in
from tests.e2e.nodes import cli, play
from tests.e2e.random_models import random_model
from tests.hub_server import Hub, serving

pytestmark = [pytest.mark.native, pytest.mark.timeout(600)]
QUIET = ("--threads", "1")


def traces(folder: Path) -> list[Path]:
    return [*folder.rglob("*.header"), *folder.rglob("*far*")]


def test_the_plan_is_that_of_the_file(tmp_path: Path) -> None:
    async def check() -> None:
        model = random_model("llama")
        async with homes_in(tmp_path) as homes:
            homes.has("giver", model)
            giver = await homes.start("giver", *QUIET)
            asking = await homes.start("asking", *QUIET, token=await giver.token())
            await connected(asking, 1)

            async def planned(name: str, **variables: str) -> tuple[str, set[int]]:
                """The model, and how many layers the plans place."""
                given = homes.variables("asking") | variables
                done = await cli(asking.spec.home, "plan", "--model", name, "--json", **given)
                assert done.returncode == 0, done.stderr
                assert ("planned from its header" in done.stderr) is (name != str(model))
                reply = json.loads(done.stdout)
                placed = {sum(node["layers"] for node in plan["nodes"]) for plan in reply["plans"]}
                return reply["model"], placed

            _, layers = await planned(str(model))
            assert len(layers) == 1, "all of them, in each plan"
            with serving(Hub({"me/Far-GGUF": {"far-Q8_0.gguf": model.read_bytes()}})) as hub:
                assert await planned("hf:me/Far-GGUF", HF_ENDPOINT=hub.url) == ("far-Q8_0.gguf", layers)
                assert hub.sent <= 8 << 20
            assert await planned(f"mesh:{NAME}") == (f"{NAME}.gguf", layers)
            assert await planned(NAME) == (f"{NAME}.gguf", layers)
            assert not traces(tmp_path), "nothing of it is kept"
            nobody = await cli(asking.spec.home, "plan", "--model", "mesh:other", **homes.variables("asking"))
            assert nobody.returncode == 1 and "no member" in nobody.stderr

    play(check())
