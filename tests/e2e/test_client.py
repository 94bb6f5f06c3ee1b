"""`meshd client`: the API of two heads on a third machine's daemon, without a model and without llama.cpp."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.base.errors import Refused
from meshd.fleet.fleet import LocalNode
from meshd.wire.models import API_SERVICE, SERVING_SERVICE

from tests.e2e.alone import alone
from tests.e2e.api_client import Api, Streamed
from tests.e2e.bare_node import bare_node, connected
from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, cli, model_of, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

TOKENS = 96
LONG = 240  # tokens of the answer under which a head ends: it does not end first
KILL_AT = 24  # pieces that have come by then
LOOPBACK = "0100007F"  # as the kernel writes it
CHAT: dict[str, object] = {
    "messages": [{"role": "user", "content": "Name a colour."}],
    "temperature": 0,
    "max_tokens": 12,
}


@dataclass
class Scene:
    """A worker, heads `one` and `two` that both use it, and a client."""

    fleet: Fleet
    worker: LocalNode
    heads: dict[str, LocalNode]
    client: LocalNode
    api: Api

    async def requests(self) -> dict[str, int]:
        """The requests of each head so far."""
        found = {}
        for name, head in self.heads.items():
            api = (await head.status()).api
            assert api is not None
            found[name] = api.requests
        return found

    async def stream_and(self, end: Callable[[LocalNode], object]) -> tuple[Streamed, str]:
        """The answer to a stream during which `end` is called on its head; and that head's name."""
        before, begun, reached = await self.requests(), asyncio.Event(), asyncio.Event()
        loop, events = asyncio.get_running_loop(), {1: begun, KILL_AT: reached}

        def on_piece(streamed: Streamed) -> None:
            if streamed.pieces in events:
                loop.call_soon_threadsafe(events[streamed.pieces].set)

        answer = asyncio.create_task(self.api.stream(PROMPT, LONG, on_piece=on_piece))
        await begun.wait()
        now = await self.requests()
        [gone] = [name for name in now if now[name] > before[name]]
        head = self.heads.pop(gone)
        self.fleet.forget(head)
        await reached.wait()
        end(head)
        return await answer, gone


def kill(head: LocalNode) -> None:
    assert head.pid is not None
    os.kill(head.pid, signal.SIGKILL)


def terminate(head: LocalNode) -> None:
    assert head.pid is not None
    os.kill(head.pid, signal.SIGTERM)


def is_ready(status: Status) -> bool:
    return status.api is not None and status.api.ready


async def start_head(fleet: Fleet, name: str, token: str) -> LocalNode:
    head = await fleet.head(smollm2(), "--ctx-size", "1024", *SAME_THREADS, token=token, name=name)
    await fleet.ready(head)
    return head


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Scene]:
    async with Fleet(folder) as fleet:
        worker = await fleet.worker("worker", model=smollm2())
        token = await worker.token()
        heads = {name: await start_head(fleet, name, token) for name in ("one", "two")}
        spec = fleet.spec("client", "client", "--port", "0", token=token)
        # there is no build of llama.cpp in this cache
        client = await fleet.start(replace(spec, cache=folder / "empty cache"))
        status = await client.until(is_ready)
        here = Scene(fleet, worker, heads, client, api_of(status))
        await both_known(here)
        yield here


async def both_known(here: Scene) -> None:
    """Until the client sends requests to each head: two streams at once go to two heads."""
    while not all((await here.requests()).values()):
        await asyncio.gather(*(here.api.complete(PROMPT, 4) for _ in range(2)))


def listens_at(pid: int) -> set[tuple[str, int]]:
    """Address and port of the TCP sockets that this process listens on (proc_net_tcp)."""
    inodes = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                address, port = fields[1].split(":")
                found.add((address, int(port, 16)))
    return found


async def _answers_as_the_heads_do(here: Scene, reference: str) -> None:
    """Its own list, health and answers; and it has no port but those it needs."""
    one = await here.heads["one"].status()
    name, status = model_of(one).name, await here.client.status()
    assert (status.node.role, status.model, status.children) == ("client", None, ())
    models = await here.api.ask("GET", "/v1/models")
    assert [row["id"] for row in models.body["data"]] == [name]  # type: ignore[attr-defined]
    assert (await here.api.ask("GET", "/health")).body == {"status": "ok", "model": name}
    assert await here.api.complete(PROMPT, TOKENS) == reference
    streamed = await here.api.stream(PROMPT, TOKENS)
    assert (streamed.text, streamed.tokens, streamed.comments) == (reference, TOKENS, [])
    direct = await api_of(one).ask("POST", "/v1/chat/completions", CHAT)
    through = await here.api.ask("POST", "/v1/chat/completions", {**CHAT, "model": name})
    assert through.status == 200 and through.body["choices"] == direct.body["choices"]

    shown = (await cli(here.client.spec.home, "status")).stdout
    assert " client, meshd" in shown and f"api     {here.api.url}  ready" in shown
    assert f"models: {name}" in shown
    assert here.client.pid is not None
    mesh_port = int(status.node.listen[0].rpartition(":")[2])
    api_port = int(here.api.url.rpartition(":")[2])
    assert listens_at(here.client.pid) == {(LOOPBACK, mesh_port), (LOOPBACK, api_port)}
    head = here.heads["one"]
    assert head.pid is not None and len(listens_at(head.pid)) == 2, "members need no port of it"


async def _answers_at_once_go_to_different_heads(here: Scene) -> None:
    before = await here.requests()
    texts = await asyncio.gather(*(here.api.complete(PROMPT, TOKENS) for _ in range(4)))
    assert len(set(texts)) == 1
    now = await here.requests()
    assert {name: now[name] - before[name] for name in now} == {"one": 2, "two": 2}


async def _goes_on_at_the_other_head(here: Scene, end: Callable[[LocalNode], object], reference: str) -> None:
    streamed, gone = await here.stream_and(end)
    assert (streamed.text, streamed.error, streamed.done) == (reference, "", True)
    assert streamed.tokens == LONG
    assert any(f"`{gone}`" in comment for comment in streamed.comments), streamed.comments
    assert await here.api.complete(PROMPT, LONG) == reference


async def _a_head_that_comes_back_is_found(here: Scene, reference: str) -> None:
    """With no head left the client says so; no restart of it is needed."""
    [(last, head)] = here.heads.items()
    here.fleet.forget(head)
    await head.stop()
    await here.client.until(lambda status: not is_ready(status))
    health = await here.api.ask("GET", "/health")
    assert health.status == 503 and f"`{last}`" in str(health.body["reason"])
    assert (await here.api.ask("POST", "/completion", {"prompt": "a"})).status == 503
    back = await here.fleet.start(head.spec)
    await here.fleet.ready(back)
    await here.client.until(is_ready)
    assert await here.api.complete(PROMPT, TOKENS) == reference


@pytest.mark.parametrize("end", [kill, terminate])
def test_a_client_answers_as_its_heads_do_and_goes_on_at_the_other_one(
    tmp_path: Path, end: Callable[[LocalNode], object]
) -> None:
    reference, long = alone(smollm2(), TOKENS), alone(smollm2(), LONG)

    async def check() -> None:
        async with scene(tmp_path) as here:
            if end is kill:
                await _answers_as_the_heads_do(here, reference)
                await _answers_at_once_go_to_different_heads(here)
            await _goes_on_at_the_other_head(here, end, long)
            if end is kill:
                await _a_head_that_comes_back_is_found(here, reference)

    play(check())


def test_members_without_the_role_and_banned_ones_are_refused(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            worker = await fleet.worker("worker", model=smollm2())
            token = await worker.token()
            head = await start_head(fleet, "desk", token)
            lends_only = (await cli(worker.spec.home, "invite", "--role", "work")).stdout.strip()
            start = ("client", "--listen", "127.0.0.1:0")
            refused = await cli(tmp_path / "lends", *start, MESHD_JOIN=lends_only)
            assert refused.returncode == 1 and "lacks the role `use`" in refused.stderr
            homeless = await cli(tmp_path / "homeless", *start)
            assert homeless.returncode == 1 and "meshd client --join INVITE" in homeless.stderr
            async with bare_node(tmp_path / "lends", name="lends") as member:
                peer = await connected(member, "desk")
                for service in (API_SERVICE, SERVING_SERVICE):
                    stream = member.mesh.open_stream(peer, service, metadata={})
                    with pytest.raises(Refused, match="lacks the role `use`"):
                        await stream.accepted()

            uses = (await cli(worker.spec.home, "invite", "--role", "use")).stdout.strip()
            client = await fleet.start(fleet.spec("client", "client", "--port", "0", token=uses))
            api = api_of(await client.until(is_ready))
            answer = asyncio.create_task(api.stream(PROMPT, 500))
            await head.until(lambda status: status.api is not None and status.api.requests > 0)
            banned = await cli(worker.spec.home, "revoke", "client")
            assert banned.returncode == 0, banned.stderr
            streamed = await answer
            assert streamed.error and not streamed.done, "a banned member goes on reading"
            await client.until(lambda status: not is_ready(status))
            assert (await api.ask("GET", "/health")).status == 503

    play(check())
