"""The page of the mesh at real nodes: what it shows of a request, and each action once, with its effect."""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.mesh_page import MeshPage, mesh_page
from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, Fleet, api_of, model_of, play
from tests.hub_server import Hub, serving
from tests.unit.library.models import tiny

pytestmark = [pytest.mark.native, pytest.mark.timeout(600)]
TOKENS = 200
# It asks no server of others what network it is in.
ALONE = ("--stun", "none", "--no-portmap", "--no-mdns")


def words(state: dict[str, Any]) -> str:
    return "\n".join(event["text"] for event in state["events"])


async def invites(page: MeshPage) -> None:
    """An invite is made, listed and banned."""
    made = await page.act("invite", expires_s=600, uses=1, roles=["use"])
    assert made["token"].startswith("meshd1")
    listed = (await page.act("invite_list"))["invites"]
    assert made["id"] in [invite["id"] for invite in listed if invite["state"] == "valid"]
    assert made["token"] not in str(listed)
    await page.act("invite_revoke", id=made["id"])
    bans = (await page.act("ban_list"))["bans"]
    assert [ban["kind"] for ban in bans] == ["invite"]
    await page.act("unban", id=bans[0]["id"])
    assert (await page.act("ban_list"))["bans"] == []


async def models(page: MeshPage) -> None:
    """The model is planned for and listed, and is not removed while it is used."""
    plan = await page.act("plan", model=str(smollm2()), streams=1)
    assert plan["head"] == "head" and plan["plans"][plan["choice"]]["generate_tok_s"] > 0
    listed = (await page.act("models"))["models"]
    used = [model for model in listed if any(node["path"] == str(smollm2()) for node in model["nodes"])]
    assert len(used) == 1
    status, answer = await page.post("model_remove", model=str(smollm2()))
    assert status == 400 and "meshd does not remove it" in answer["error"]["message"], answer
    assert smollm2().exists()


def test_a_head_shows_its_requests_and_does_what_the_page_asks(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            head = await fleet.head(smollm2(), "--min-workers", "0")
            api = api_of(await fleet.ready(head))
            async with mesh_page(head) as page, aclosing(page.states()) as states:
                # What is shown while a request runs.
                await page.until(lambda state: True, states)  # it is watched before there is a token
                answer = asyncio.ensure_future(api.stream(PROMPT, TOKENS))
                state = await page.until(
                    lambda state: any(r["tokens"] > 20 for r in state["requests"]), states
                )
                [request] = state["requests"]
                assert (request["phase"], request["key"]) == ("answering", "")
                assert request["tok_s"] > 0 and PROMPT not in str(state)
                await answer
                after = await page.until(lambda state: not state["requests"])
                assert after["status"]["node"]["name"] == "head" and after["status"]["storage"]
                assert sum(after["history"]["requests"]) >= 1
                assert sum(after["history"]["tok_s"]) * after["history"]["step_s"] >= TOKENS / 2
                assert "(ready)" in words(after) and "founded a mesh" in words(after), words(after)
                assert {"invite", "why", "plan", "unban"} <= set(after["can"])
                assert not {"pause", "load", "stop"} & set(after["can"])
                # What it does.
                await invites(page)
                await models(page)
                assert (await page.act("why"))["answers"]
                lines = (await page.act("logs", lines=500))["lines"]
                assert any("api_listening" in line for line in lines)
                assert (await page.act("fits"))["models"]
                status, answered = await page.post("pause")
                assert (status, answered["error"]["code"]) == (400, "user")

    play(check())


def test_a_worker_without_an_api_is_paused_by_its_page(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            worker = await fleet.start(fleet.spec("worker", "worker", *ALONE, listen="0.0.0.0:0"))
            await worker.token()
            async with mesh_page(worker) as page:
                state = await page.until(lambda state: True)
                assert state["requests"] == [] and {"pause", "resume", "drain"} <= set(state["can"])
                await page.act("pause")
                await page.until(lambda state: state["status"]["node"]["paused"])
                assert (await worker.status()).node.paused
                await page.act("resume")
                await page.until(lambda state: not state["status"]["node"]["paused"])
                await page.act("drain")
                await page.until(lambda state: state["status"]["node"]["paused"])
                await page.act("resume")
                found = await page.act("netcheck")
                assert found["daemon"] and found["servers"] == [] and found["direct"]
                assert await page.act("capacity") and await page.act("member_models")
                assert await page.act("expose_list") == {"exposed": []}
                status, answered = await page.post("ping", peer="nobody")
                assert status == 400 and "nobody" in answered["error"]["message"]

    play(check())


def test_a_model_is_downloaded_checked_listed_and_removed_from_the_page(tmp_path: Path) -> None:
    """The first two transfers are damaged, and not kept."""
    name = "hf:me/Tiny-GGUF:Q8_0"
    hub = Hub({"me/Tiny-GGUF": {"tiny-Q8_0.gguf": tiny()}}, corruptions=2)

    async def check(url: str) -> None:
        async with Fleet(tmp_path) as fleet:
            spec = fleet.spec("worker", "worker", *ALONE, listen="0.0.0.0:0")
            hugging_face = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hf")}
            own = {**spec.environment, **hugging_face, "HOME": str(tmp_path)}
            worker = await fleet.start(replace(spec, environment=own))
            await worker.token()
            async with mesh_page(worker) as page:

                async def pulled() -> dict[str, Any]:
                    reply = await page.act("pull", name=name, background=True, download=True)
                    while reply["step"] not in ("done", "failed"):
                        await asyncio.sleep(0.1)
                        reply = await page.act("pull_progress", id=reply["id"])
                    return reply

                refused = await pulled()
                assert refused["step"] == "failed" and "arrived damaged, twice" in refused["error"]
                reply = await pulled()
                assert (reply["step"], reply["source"], reply["error"]) == ("done", "download", "")
                assert files() == [(str(path), tiny()) for path in reply["paths"]]
                listed = (await page.act("models"))["models"]
                assert name in [model["name"] for model in listed]
                assert (await page.act("model_remove", model=name))["removed"]
                assert files() == []

    def files() -> list[tuple[str, bytes]]:
        return [(str(path), path.read_bytes()) for path in (tmp_path / "hf").rglob("*.gguf")]

    with serving(hub):
        play(check(hub.url))


def test_a_lost_worker_and_the_answer_that_goes_on_are_told(tmp_path: Path) -> None:
    """Also what happened before the page was opened."""
    options = ("--device", "none", "--set", "serve.continue_answers=100")

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, workers = await fleet.workers(smollm2(), smollm2())
            head = await fleet.head(smollm2(), *options, token=token)
            status = await fleet.ready(head)  # with both, or with the one that came first
            used = next(part.node for part in model_of(status).split if part.layers)
            [lost] = [worker for worker in workers if worker.spec.name == used]
            [other] = [worker for worker in workers if worker is not lost]
            # In one watch: the answer may go on before another one has begun.
            async with mesh_page(head) as page, aclosing(page.states()) as states:
                await page.until(lambda state: True, states)
                answer = asyncio.ensure_future(api_of(status).stream(PROMPT, 2 * TOKENS))
                await page.until(lambda state: any(r["tokens"] > 20 for r in state["requests"]), states)
                stopping = asyncio.ensure_future(lost.stop())
                waits = await page.until(
                    lambda state: any(r["phase"] == "waiting" for r in state["requests"]), states
                )
                await stopping
                fleet.forget(lost)
                assert waits["requests"][0]["tok_s"] is None
                assert (await answer).error == ""
                told = words(await page.until(lambda state: "continues" in words(state)))
                before, _, after = told.partition(f"an answer was interrupted: worker {used} is lost")
                assert f"{used} connected over" in before and "(ready)" in before, told
                assert "(ready)" in after and "an interrupted answer continues" in after, told
            async with mesh_page(other) as page:
                told = words(await page.until(lambda state: True))
                assert "head uses this machine" in told and f"{used} disconnected" in told, told

    play(check())
