"""A node whose model is fetched: one daemon from its start, seen, stopped, continued, and then serving."""

import asyncio
import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from meshd.admin.status import Status
from meshd.fleet.fleet import LocalNode
from meshd.model.weights_index import PIECE_BYTES

from tests.e2e.alone import alone
from tests.e2e.homes import NAME, Homes, homes_in
from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, cli, gone, model_of, play
from tests.hub_server import Hub, serving

pytestmark = [pytest.mark.native, pytest.mark.timeout(600)]

SIZE = 98_362_432
TOKENS = 16
ASKED = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()


def got(url: str, data: bytes | None = None) -> tuple[int, str]:
    """The status and the body of an answer."""
    try:
        with urlopen(Request(url, data, {"Content-Type": "application/json"}), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refusal:
        return refusal.code, refusal.read().decode()


async def fetching(node: LocalNode, least: int) -> Status:
    """Its status once so many bytes are here, and its API is open."""

    def check(status: Status) -> bool:
        now = status.fetching
        return (
            now is not None and now.step == "fetching" and now.done_bytes >= least and status.api is not None
        )

    return await node.until(check)


async def stopped(homes: Homes, node: LocalNode, pid: int) -> None:
    """Wait for the end of a node that was asked to stop."""
    await gone({pid})
    homes.fleet.forget(node)


async def start(homes: Homes, token: str) -> LocalNode:
    return await homes.serve("head", f"mesh:{NAME}", "--min-workers", "0", *SAME_THREADS, token=token)


def test_a_head_is_a_node_while_its_model_comes(tmp_path: Path) -> None:
    """Stopped twice, by `meshd stop` and Ctrl-C; what came is not fetched again."""
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with homes_in(tmp_path) as homes:
            file = homes.has("giver", smollm2())
            giver = await homes.start("giver", "--model", str(file), "--max-upload", "3MB")
            token = await giver.token()

            # 1. Everything of the node is there but its role.
            head = await start(homes, token)
            status = await fetching(head, 2 * PIECE_BYTES)
            now, first = status.fetching, status.node.pid
            assert now is not None and now.total_bytes == SIZE and now.bytes_s > 0
            assert [one.node for one in now.sources] == ["giver"] and status.model is None
            assert status.api is not None and not status.api.ready
            code, body = await asyncio.to_thread(got, f"{status.api.url}/health")
            said = json.loads(body)
            assert (code, said["status"]) == (503, "fetching") and 0 < said["progress"] < 1
            assert re.search(
                rf"fetching {NAME} from giver: [\d.]+ MB of 98.4 MB, [\d.]+ MB/s", said["reason"]
            )
            code, body = await asyncio.to_thread(got, f"{status.api.url}/v1/chat/completions", ASKED)
            assert code == 503 and json.loads(body)["error"]["code"] == "model_fetching"
            code, page = await asyncio.to_thread(got, status.api.url)
            assert code == 200 and "<html" in page
            shown = await cli(head.spec.home, "status")
            assert f"mesh:{NAME}  fetching" in shown.stdout and "from giver" in shown.stdout
            listed = await homes.run("head", "ls", "--json")
            assert json.loads(listed.stdout)[0]["pull"]["step"] == "fetching", listed.stderr

            # 2. `meshd stop` ends it soon; Ctrl-C does, too.
            done = await cli(head.spec.home, "stop", "--timeout", "10")
            assert done.returncode == 0, done.stderr
            await stopped(homes, head, first)
            head = await start(homes, token)
            status = await fetching(head, 2 * PIECE_BYTES)
            os.kill(status.node.pid, signal.SIGINT)
            await stopped(homes, head, status.node.pid)

            # 3. The third start fetches the rest, and serves in the same process.
            head = await start(homes, token)
            began = await fetching(head, 4 * PIECE_BYTES)
            ready = await homes.fleet.ready(head)
            assert ready.node.pid == began.node.pid and ready.fetching is None
            assert model_of(ready).name == NAME
            assert await api_of(ready).complete(PROMPT, TOKENS) == reference
            log = (head.spec.home / "node.log").read_text()
            assert "Traceback" not in log and log.count("model_fetched") == 1

    play(check())


def test_a_worker_lends_once_its_model_is_here(tmp_path: Path) -> None:
    async def check() -> None:
        async with homes_in(tmp_path) as homes:
            file = homes.has("giver", smollm2())
            giver = await homes.start("giver", "--model", str(file), "--max-upload", "20MB")
            worker = await homes.start("worker", "--model", NAME, token=await giver.token())
            status = await worker.until(lambda now: now.fetching is not None and now.fetching.total_bytes > 0)
            assert status.fetching is not None and giver.pid is not None
            os.kill(giver.pid, signal.SIGSTOP)  # else the model may be here before a command has started
            try:
                shown = await cli(worker.spec.home, "status")
            finally:
                os.kill(giver.pid, signal.SIGCONT)
            assert "nothing yet: it fetches its model" in shown.stdout
            there = await worker.until(lambda now: now.fetching is None)
            assert there.node.pid == status.node.pid
            taken = json.loads((await homes.run("worker", "ls", "--json")).stdout)
            assert SIZE in [row["bytes"] for row in taken]

    play(check())


def test_a_download_is_stopped_and_continued(tmp_path: Path) -> None:
    reference = alone(smollm2(), TOKENS)
    hub = Hub({"me/Smol-GGUF": {"Smol-Q4_K_M.gguf": smollm2().read_bytes()}}, pause=0.005)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            variables = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}
            options = ("--model", "hf:me/Smol-GGUF", "--port", "0", "--min-workers", "0", *SAME_THREADS)
            spec = fleet.spec("head", "serve", *options)
            spec = replace(spec, environment={**spec.environment, **variables})
            head = await fleet.start(spec)
            status = await fetching(head, 10 << 20)
            assert status.fetching is not None and status.fetching.source == "download"
            assert status.api is not None
            code, body = await asyncio.to_thread(got, f"{status.api.url}/health")
            assert code == 503 and "downloading Smol-Q4_K_M.gguf" in json.loads(body)["reason"]
            await asyncio.wait_for(head.stop(), 15)
            fleet.forget(head)
            hub.pause = 0.0
            ready = await fleet.ready(await fleet.start(spec))
            assert await api_of(ready).complete(PROMPT, TOKENS) == reference

    with serving(hub):
        play(check())
    begun_at = [int(one.get("Range", "bytes=0-")[6:-1]) for one in hub.headers_of("/bytes/")]
    assert len(begun_at) == 2 and begun_at[1] >= 10 << 20, begun_at


def test_a_name_that_the_hub_does_not_have_founds_no_mesh(tmp_path: Path) -> None:
    hub = Hub({"me/Smol-GGUF": {"Smol-Q4_K_M.gguf": b""}})

    async def check() -> None:
        variables = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HOME": str(tmp_path)}
        words = ("serve", "--model", "hf:me/Nope-GGUF", "--port", "0", "--listen", "127.0.0.1:0")
        done = await cli(tmp_path / "home", *words, **variables)
        assert done.returncode == 1 and done.stdout == "", "no token"
        assert "error: there is no repository `me/Nope-GGUF`" in done.stderr, done.stderr
        assert "is not on this machine: downloading it from Hugging Face" in done.stderr
        assert not (tmp_path / "home/membership").exists()

    with serving(hub):
        play(check())
