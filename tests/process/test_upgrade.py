"""Two real nodes that meet at a relay: a direct link, arranged over it, takes over beneath a stream."""

import asyncio
import random
from pathlib import Path

from meshd.base.tasks import Owner
from meshd.config.forms import HostPort
from meshd.config.tree import LinksConfig
from meshd.daemon.member_node import MemberNode
from meshd.identity.invite import relay_url
from meshd.identity.keys import PeerId
from meshd.link.interface import LinkKind
from meshd.peer.interface import Stream

from tests.conformance.run import run
from tests.e2e.bare_node import SINK, bare_node, connected
from tests.process.relay_process import Relay, relay, until_open

__all__ = ["relay"]  # a fixture

DATA = random.Random(1).randbytes(8 << 20)
PIECE = 64 << 10


async def _uses(member: MemberNode, peer: PeerId, kind: LinkKind) -> None:
    seen = -1
    async with asyncio.timeout(40):
        while True:
            (status,) = [other for other in member.mesh.peers() if other.peer == peer]
            if any(path.selected and path.link.kind is kind for path in status.paths):
                return
            seen = await member.mesh.changed(seen)


def test_a_relayed_stream_becomes_direct_without_a_pause(relay: Relay, tmp_path: Path) -> None:
    hint = relay.start("--open", "--metrics", "127.0.0.1:0")
    links = LinksConfig(
        listen=HostPort("127.0.0.1", 0),
        kinds=("relay", "quic"),
        relays=(relay_url(hint),),
        stun=(),
        no_mdns=True,
    )

    async def work() -> None:
        got = bytearray()
        whole = asyncio.Event()

        async def sink(stream: Stream) -> None:
            while len(got) < len(DATA):
                data = await stream.read()
                got.extend(data)
                stream.consumed(len(data))
            whole.set()

        async with bare_node(tmp_path / "one", name="one", links=links) as one:
            one.mesh.handle(SINK, sink, allow=lambda _member, _metadata: None)
            token = one.printed_token()
            assert token
            await until_open(relay)
            async with bare_node(tmp_path / "two", name="two", token=token, links=links) as two:
                peer = await connected(two, "one")
                stream = two.mesh.open_stream(peer, SINK, metadata={}, bulk=True)
                half = len(DATA) // 2

                async def send(begin: int, end: int) -> None:
                    for at in range(begin, end, PIECE):
                        await stream.write(DATA[at : at + PIECE])

                async with Owner() as owner:
                    owner.start(send(0, half), name="send")
                    await _uses(two, peer, LinkKind.QUIC)
                await send(half, len(DATA))
                async with asyncio.timeout(40):
                    await whole.wait()
                assert bytes(got) == DATA
                (status,) = [other for other in two.mesh.peers() if other.peer == peer]
                assert status.resumes == 0
                assert status.why_not_direct == ""

    run(work(), seconds=100)
