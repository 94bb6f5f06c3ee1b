"""One answer of a real model while the network changes under it: relayed, punched, blocked, punched again."""

import asyncio
import json
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.fleet.fleet import LocalNode

from tests.e2e.alone import alone
from tests.e2e.api_client import Streamed
from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, child_pid, peer_of, play
from tests.netns.nat import Nat, Passes, RouterRules
from tests.netns.programs import relay_on, stun_on
from tests.netns.wan import Line, Way
from tests.netns.world import Host, Router, World

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

TOKENS = 600  # thrice what the whole sequence took at this distance
TRIES = 3  # on a busy machine the changes may outlast the answer
RTT_MS = 20.0
CHANGE_SECONDS = (
    75.0  # a deadline; that it takes 60 s at most is shown on a virtual clock (tests/sim/test_paths.py)
)


def block_udp(router: Router, *, on: bool) -> None:
    """Drop UDP in the router, flows that are there included."""
    inside = f"192.168.{router.number}.0/24"
    passes = Passes.NO_UDP if on else Passes.ALL
    router.load(RouterRules(nat=Nat.PORT_RESTRICTED, outer=router.outer, inner=inside, passes=passes))
    router.forget()


def way_of(status: Status) -> tuple[str, str]:
    """Kind and path of the link to the worker that carries data."""
    link = peer_of(status, "worker").link
    return ("", "") if link is None else (link.kind, link.path)


async def until_direct(head: LocalNode, *, direct: bool) -> str:
    """Wait until the data goes directly, or does not; returns the kind of link."""

    def reached(status: Status) -> bool:
        kind, path = way_of(status)
        return kind != "" and (path != "relayed") == direct

    async with asyncio.timeout(CHANGE_SECONDS):
        return way_of(await head.until(reached))[0]


async def changes(head: LocalNode, routers: Sequence[Router], seen: Streamed) -> list[tuple[str, int]]:
    """Punch, block, and punch again; return each kind of link, and how much of the answer had come."""
    ways = []
    for on, direct in ((False, True), (True, False), (False, True)):
        for router in routers:
            block_udp(router, on=on)
        ways.append((await until_direct(head, direct=direct), seen.pieces))
    return ways


def test_one_answer_through_all_that_a_network_does(world: World, tmp_path: Path) -> None:
    reference = alone(smollm2(), TOKENS)
    line = Line.both(Way(delay_ms=RTT_MS / 4))
    server = world.public("server")
    routers = [world.router(label, Nat.PORT_RESTRICTED, line=line) for label in ("one", "two")]
    worker_host, head_host = (router.host("host") for router in routers)
    for router in routers:
        block_udp(router, on=True)
    with ExitStack() as stack:
        stun = stack.enter_context(stun_on(server))[0]
        url = stack.enter_context(relay_on(server, tmp_path / "relay", name=server.v4[0]))
        links = ("--links", "relay,webrtc,quic", "--relay", url, "--stun", stun, "--no-mdns", "--no-portmap")
        play(_check(tmp_path, reference, routers, (worker_host, head_host), links), seconds=600)


async def _check(
    folder: Path, reference: str, routers: list[Router], hosts: tuple[Host, Host], links: tuple[str, ...]
) -> None:
    _, head_host = hosts
    model = ("--model", str(smollm2()))
    async with Fleet(folder) as fleet:
        prefixes = [tuple(host.space.prefix) for host in hosts]
        worker = await fleet.start(
            fleet.spec("worker", "worker", *model, *links, listen=":17430", prefix=prefixes[0])
        )
        token = await worker.token()
        options = (*model, "--port", "0", "--ctx-size", "8192", *links, *SAME_THREADS)
        head = await fleet.start(
            fleet.spec("head", "serve", *options, listen=":17430", prefix=prefixes[1], token=token)
        )
        status = await fleet.ready(head)
        server = child_pid(status, "llama-server")
        assert way_of(status) == ("relay", "relayed")

        def connect() -> socket.socket:
            assert status.api is not None
            sock = head_host.space.socket(socket.AF_INET, socket.SOCK_STREAM)
            sock.connect(("127.0.0.1", int(status.api.url.rpartition(":")[2].split("/")[0])))
            return sock

        seen = Streamed()

        def on_piece(streamed: Streamed) -> None:
            seen.pieces = streamed.pieces

        for _ in range(TRIES):
            seen.pieces = 0
            async with asyncio.TaskGroup() as group:
                answer = group.create_task(api_of(status, connect).stream(PROMPT, TOKENS, on_piece=on_piece))
                changed = group.create_task(changes(head, routers, seen))
            streamed, ways = answer.result(), changed.result()
            print(json.dumps(ways))  # noqa: T201 - for the reader of a failed run
            kinds = [kind for kind, _ in ways]
            assert kinds[1] == "relay"
            assert {kinds[0], kinds[2]} <= {"webrtc", "quic"}
            assert streamed.done
            assert not streamed.error
            assert streamed.text == reference
            if ways[-1][1] < TOKENS:
                break
            for router in routers:
                block_udp(router, on=True)
            await until_direct(head, direct=False)
        assert ways[-1][1] < TOKENS, "the answer was over before the network had done all"
        assert child_pid(await head.status(), "llama-server") == server
        assert worker.pid is not None
