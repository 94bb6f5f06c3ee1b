"""A node that is stopped and continued (SIGSTOP, SIGCONT) comes back as the same peer, over one link."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from meshd.config.forms import HostPort
from meshd.config.tree import LinksConfig
from meshd.daemon.member_node import MemberNode
from meshd.peer.interface import PeerState, PeerStatus

from tests.conformance.run import run
from tests.e2e.bare_node import bare_node

TIMES = 2
BACK_SECONDS = 15.0
LINKS = LinksConfig(listen=HostPort("127.0.0.1", 0), kinds=("tcp",), stun=(), no_mdns=True)


def _child(home: Path, token: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.bare_node", "writer", str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "MESHD_JOIN": token},
    )


async def _sees(member: MemberNode, state: PeerState) -> PeerStatus:
    seen = -1
    async with asyncio.timeout(BACK_SECONDS):
        while not (found := [peer for peer in member.mesh.peers() if peer.state is state]):
            seen = await member.mesh.changed(seen)
    return found[0]


async def _one_path(member: MemberNode) -> PeerStatus:
    """A second link that was dialled meanwhile goes within a heartbeat or two."""
    seen = -1
    async with asyncio.timeout(BACK_SECONDS):
        while len((peer := (await _sees(member, PeerState.CONNECTED))).paths) != 1:
            seen = await member.mesh.changed(seen)
    return peer


def test_a_stopped_node_is_missed_and_comes_back_as_it_was(tmp_path: Path) -> None:
    async def work() -> None:
        async with bare_node(tmp_path / "reader", name="reader", links=LINKS) as member:
            token = member.printed_token()
            assert token
            child = await asyncio.to_thread(_child, tmp_path / "writer", token)
            try:
                first = await _sees(member, PeerState.CONNECTED)
                for time in range(1, TIMES + 1):
                    child.send_signal(signal.SIGSTOP)
                    await _sees(member, PeerState.SUSPENDED)
                    child.send_signal(signal.SIGCONT)
                    back = await _one_path(member)
                    assert back.peer == first.peer
                    assert back.resumes == time
                    assert len(member.mesh.peers()) == 1
            finally:
                child.kill()
                await asyncio.to_thread(child.communicate)

    run(work(), seconds=100)
