"""Members that call themselves by another one's id: that id still means its owner, in real daemons."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from meshd.base.errors import Refused
from meshd.daemon.member_node import MemberNode
from meshd.fleet.fleet import LocalNode
from meshd.identity import naming
from meshd.identity.keys import PeerId
from meshd.peer.interface import MetadataValue
from meshd.tunnel.user_tunnels import TUNNEL_SERVICE

from tests.e2e.bare_node import bare_node, connected
from tests.e2e.nodes import Fleet, cli, play
from tests.e2e.test_tunnels import PAGE, all_connected, fetch, refused, said, web_server

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

ASK: Mapping[str, MetadataValue] = {"name": "db", "ask": 1}


async def id_of(node: LocalNode) -> str:
    shown: str = json.loads(await said(node, "status", "--json"))["node"]["id"]
    return shown


async def granted(node: LocalNode, *to: str) -> list[str]:
    """The ids that `meshd expose` grants."""
    shown: list[str] = json.loads(await said(node, "expose", "db", "127.0.0.1:9", "--json", "--to", *to))[
        "exposed"
    ]["to"]
    return shown


async def may_reach(member: MemberNode, owner: PeerId) -> bool:
    """Whether `owner` exposes `db` to this node."""
    try:
        await member.mesh.open_stream(owner, TUNNEL_SERVICE, metadata=ASK).accepted()
    except Refused:
        return False
    return True


def test_a_member_that_calls_itself_by_an_id_is_not_taken_for_that_node(tmp_path: Path) -> None:
    async def check(port: int) -> None:
        async with Fleet(tmp_path) as fleet, contextlib.AsyncExitStack() as stack:
            token, (owner, friend) = await fleet.workers(None, None)
            await all_connected(owner, friend)
            whole = await id_of(friend)
            texts = (whole, whole[:10], whole[:5])
            impostors = [
                await stack.enter_async_context(bare_node(tmp_path / f"bare-{n}", token=token, name=name))
                for n, name in enumerate(texts)
            ]
            for member in impostors:
                await connected(member, "worker-0")
            status = await owner.until(
                lambda status: [peer.state for peer in status.peers] == ["connected"] * (1 + len(texts))
            )

            for text in (whole, whole[:10], whole.upper(), "worker-1"):
                assert await granted(owner, text) == [whole]
            there = await connected(impostors[0], "worker-0")
            assert [await may_reach(member, there) for member in impostors] == [False] * 3
            names = {peer.name for peer in status.peers}
            assert names == {"worker-1", *(f"?{text}" for text in texts)}
            assert "matches 2 nodes" in await refused(owner, "expose", "db", "127.0.0.1:9", "--to", whole[:5])
            assert "no node `worker-7`" in await refused(
                owner, "expose", "db", "127.0.0.1:9", "--to", "worker-7"
            )
            unknown = str(PeerId(bytes(32)))
            assert await granted(owner, unknown) == [unknown]

            await said(friend, "expose", "web", f"127.0.0.1:{port}", "--to", "worker-0")
            for text in (whole, whole[:10]):
                assert json.loads(await said(owner, "ping", text, "--json", "--count", "1"))["peer"] == whole
                listen = await said(owner, "tunnel", "open", text, "web")
                assert await fetch(listen) == PAGE
                assert listen in await said(owner, "tunnel", "close", text, "web")
            assert whole[:10] in await said(owner, "revoke", whole[:10])
            left = await owner.until(lambda status: all(peer.id != whole for peer in status.peers))
            assert len(left.peers) == len(impostors)

    with web_server() as port:
        play(check(port))


def test_a_name_that_looks_like_an_id_is_refused_at_the_start(tmp_path: Path) -> None:
    async def check() -> None:
        for name in ("abcdefghij", "RASPBERRYPI", str(PeerId(bytes(32)))):
            assert naming.looks_like_id(name)
            done = await cli(tmp_path / "home", "worker", "--name", name)
            assert (done.returncode, done.stdout) == (1, "")
            assert f"`{name}` cannot be a node's name" in done.stderr
            assert "hint: add a hyphen" in done.stderr

    play(check())
