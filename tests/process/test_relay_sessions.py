"""Nodes that only a relay connects: they join through it, and their session outlives the relay."""

import asyncio
import random
import signal
from pathlib import Path

from meshd.base.tasks import Owner
from meshd.config import HostPort, LinksConfig
from meshd.identity.relay_url import relay_url
from meshd.peer.interface import Stream

from tests.conformance.run import run
from tests.e2e.bare_node import SINK, bare_node, connected
from tests.process.relay_process import Relay, relay

__all__ = ["relay"]  # a fixture

DATA = random.Random(1).randbytes(6 << 20)
PIECE = 64 << 10
KILLED_AFTER = 2 << 20  # bytes that have arrived


def test_a_stream_goes_on_after_the_relay_was_killed_and_came_back(relay: Relay, tmp_path: Path) -> None:
    hint = relay.start("--open", "--metrics", "127.0.0.1:0")
    links = LinksConfig(
        listen=HostPort("127.0.0.1", 0), kinds=("relay",), relays=(relay_url(hint),), stun=(), no_mdns=True
    )

    async def work() -> None:
        got = bytearray()
        enough, whole = asyncio.Event(), asyncio.Event()

        async def sink(stream: Stream) -> None:
            while len(got) < len(DATA):
                data = await stream.read()
                got.extend(data)
                stream.consumed(len(data))
                if len(got) >= KILLED_AFTER:
                    enough.set()
            whole.set()

        async with bare_node(tmp_path / "one", name="one", links=links) as one:
            one.mesh.handle(SINK, sink, allow=lambda _member, _metadata: None)
            token = one.printed_token()
            assert token
            await until_open(relay)
            async with bare_node(tmp_path / "two", name="two", token=token, links=links) as two:
                peer = await connected(two, "one")
                stream = two.mesh.open_stream(peer, SINK, metadata={}, bulk=True)

                async def send() -> None:
                    for at in range(0, len(DATA), PIECE):
                        await stream.write(DATA[at : at + PIECE])

                async with Owner() as owner:
                    owner.start(send(), name="send")
                    await enough.wait()
                    relay.end(signal.SIGKILL)
                    assert not whole.is_set()
                    assert relay.start("--open", port=relay.port) == hint
                    await whole.wait()
                assert bytes(got) == DATA
                (state,) = [other for other in two.mesh.peers() if other.peer == peer]
                assert state.resumes >= 1

    run(work(), seconds=100)


async def until_open(relay: Relay) -> None:
    """Until the mailbox of the token is open: the figures of the relay say so."""
    async with asyncio.timeout(20):
        while "meshd_relay_boxes 1\n" not in await asyncio.to_thread(relay.figures):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
