"""Models from members over real daemons: from two at once, killed and continued, lied to, refused."""

import asyncio
import filecmp
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
from meshd.base.peer_limits import GIVEN_WHILE_SERVING
from meshd.model.weights_index import PIECE_BYTES

from tests.e2e.alone import alone
from tests.e2e.homes import NAME, connected, homes_in
from tests.e2e.models import fine_tune, smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, api_of, play
from tests.hub_server import Hub, serving
from tests.unit.library.models import cached

pytestmark = [pytest.mark.native, pytest.mark.timeout(600)]

SIZE = 98_362_432
TOKENS = 16


def same(path: str | Path, other: Path) -> bool:
    """Return True if two files have the same bytes."""
    return filecmp.cmp(path, other, shallow=False)


def gave(body: Mapping[str, object]) -> dict[str, int]:
    """Return what nodes gave, by node; those that gave nothing are left out."""
    members = body["members"]
    assert isinstance(members, list)
    return {one["node"]: one["bytes"] for one in members if one["bytes"]}


def test_two_members_give_one_model_at_once(tmp_path: Path) -> None:
    async def check() -> None:
        async with homes_in(tmp_path) as homes:
            for name in ("one", "two"):
                homes.has(name, smollm2())
            await homes.joined("one", "two")
            [row] = json.loads((await homes.run("taker", "ls", "--json")).stdout)
            assert (row["name"], row["bytes"], row["source"]) == (f"mesh:{NAME}", SIZE, "mesh")
            assert {node["node"] for node in row["nodes"]} == {"one", "two"}
            pulled = await homes.run("taker", "pull", NAME, "--json")
            assert pulled.returncode == 0, pulled.stderr
            body = json.loads(pulled.stdout)
            assert same(body["paths"][0], smollm2()) and body["resumed_bytes"] == 0
            assert gave(body).keys() == {"one", "two"} and sum(gave(body).values()) == SIZE
            assert f"fetching {NAME} (98.4 MB): 100%" in pulled.stderr
            rows = json.loads((await homes.run("taker", "ls", "--json")).stdout)
            assert [(one["name"], len(one["nodes"])) for one in rows] == [(NAME, 3)]
            assert rows[0]["fingerprint"] == body["fingerprint"], "it was hashed on arrival"
            again = await homes.run("taker", "pull", f"mesh:{body['fingerprint'][:32]}")
            assert again.returncode == 0 and "is on this machine" in again.stderr
            other = await homes.run("one", "show", f"mesh:{NAME}")
            assert other.returncode == 0 and "taker" in other.stdout, other.stderr

    play(check())


def test_a_pull_that_is_killed_three_times_is_continued(tmp_path: Path) -> None:
    """The daemon twice, the command once; what is there is not fetched again."""

    async def check() -> None:
        async with homes_in(tmp_path) as homes:
            for name in ("one", "two"):
                homes.has(name, smollm2())
            taker = await homes.joined("one", "two")
            for number in (1, 2, 3):
                verb = await homes.begin("taker", "pull", NAME, "--rate", "12MB")
                await homes.fetched("taker", number * 3 * PIECE_BYTES)
                assert taker.pid is not None
                if number == 2:
                    verb.kill()
                    await verb.wait()
                    continue
                os.kill(taker.pid, signal.SIGKILL)
                await verb.wait()
                homes.fleet.forget(taker)
                taker = await homes.start("taker")
                await connected(taker, 2)
            pulled = await homes.run("taker", "pull", NAME, "--json")
            assert pulled.returncode == 0, pulled.stderr
            body = json.loads(pulled.stdout)
            assert same(body["paths"][0], smollm2())
            assert body["resumed_bytes"] >= 8 * PIECE_BYTES
            assert sum(gave(body).values()) + body["resumed_bytes"] == SIZE

    play(check())


def in_hub_cache(user: Path) -> Path:
    """Return the model in this user's cache of Hugging Face."""
    [path] = (user / "huggingface/hub").glob("models--*/snapshots/*/*.gguf")
    return path


def test_a_model_of_the_hub_crosses_the_line_once(tmp_path: Path) -> None:
    """Only the list of hashes comes from the hub; a member with another file of that name is found out."""
    hub = Hub({"me/Smol-GGUF": {f"{NAME}.gguf": smollm2().read_bytes()}})
    right, wrong = {f"{NAME}.gguf": smollm2().read_bytes()}, {f"{NAME}.gguf": fine_tune().read_bytes()}

    async def check(member: str, files: dict[str, bytes], sent: int) -> None:
        async with homes_in(tmp_path / member) as homes:
            user = Path(homes.variables("one")["HOME"])
            cached(user / "huggingface/hub", "me/Smol-GGUF", files)
            await homes.joined("one", model=in_hub_cache(user))
            pulled = await homes.run("taker", "pull", "hf:me/Smol-GGUF", hub=hub.url)
            assert pulled.returncode == 0, pulled.stderr
            assert f"fetching {NAME} (98.4 MB): 100%" in pulled.stderr
            assert ("it was removed" in pulled.stderr) == bool(sent) and hub.sent == sent
            path = Path(pulled.stdout.strip())
            assert "huggingface/hub/models--me--Smol-GGUF/snapshots" in str(path) and same(path, smollm2())
            [row] = json.loads((await homes.run("taker", "ls", "--json")).stdout)[:1]
            assert row["name"] == "hf:me/Smol-GGUF:Q4_1"
            assert (row["fingerprint"] is None) == bool(sent), "it was hashed on arrival"

    with serving(hub):
        play(check("honest", right, 0))
        play(check("other", wrong, SIZE))


def test_an_answer_goes_on_while_its_worker_gives_the_model_away(tmp_path: Path) -> None:
    """Giving is bounded then, and the text is the same."""
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with homes_in(tmp_path) as homes:
            file = homes.has("worker", smollm2())
            worker = await homes.start("worker", "--model", str(file))
            token = await worker.token()
            await homes.start("taker", token=token)
            head = await homes.fleet.head(smollm2(), "--device", "none", *SAME_THREADS, token=token)
            api = api_of(await homes.fleet.ready(head))
            loop = asyncio.get_running_loop()
            began = loop.time()
            pull = asyncio.create_task(homes.run("taker", "pull", f"mesh:{NAME}", "--json"))
            while not pull.done():
                assert await api.complete(PROMPT, TOKENS) == reference
            pulled = pull.result()
            assert pulled.returncode == 0, pulled.stderr
            assert gave(json.loads(pulled.stdout)).keys() == {"worker"}
            bounded = GIVEN_WHILE_SERVING
            assert loop.time() - began > (SIZE - 2 * bounded.burst) / bounded.per_second

    play(check())
