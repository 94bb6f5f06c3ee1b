"""A plain connection to the mesh port: taken once, by who awaits its tag, and else turned away."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from meshd.base.errors import Broken, Refused
from meshd.base.peer_limits import PLAIN_AWAITED, PLAIN_AWAITED_OF_PEER
from meshd.identity.keys import PeerId
from meshd.link.tcp import plain_visit
from meshd.link.tcp.links import TcpDialer, TcpListener
from meshd.link.tcp.plain_visit import PLAIN, TAG_BYTES, AwaitedConnections
from meshd.wire.address import Candidate
from meshd.wire.dialable import trusted

from tests.conformance.links import serving
from tests.conformance.nodes import TestMesh

TAG = b"a tag of 16 byte"
PEER = PeerId(bytes(range(32)))


@asynccontextmanager
async def listening() -> AsyncIterator[TcpListener]:
    listener = TcpListener(TestMesh().node().now, host="127.0.0.1")
    listener.open()
    async with serving(listener):
        yield listener


async def come(listener: TcpListener, *parts: bytes) -> socket.socket:
    """Connect and send a greeting, part by part."""
    loop = asyncio.get_running_loop()
    end = socket.socket()
    end.setblocking(False)
    await loop.sock_connect(end, ("127.0.0.1", listener.port))
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for part in parts:
        await loop.sock_sendall(end, part)
        await asyncio.sleep(0.05)
    return end


async def is_turned_away(end: socket.socket) -> bool:
    loop = asyncio.get_running_loop()
    with end:
        try:
            async with asyncio.timeout(10):
                return await loop.sock_recv(end, 1) == b""
        except ConnectionError:
            return True


@pytest.mark.parametrize(
    ("cut", "tag"),
    [
        (len(PLAIN) + TAG_BYTES, TAG),
        (1, TAG),
        (len(PLAIN), TAG),
        (len(PLAIN) + 3, TAG),
        (len(PLAIN) + 7, b"8 other\0and more"),  # STUN begins so, and HTTP
        (len(PLAIN) + 7, b"8 otherGET / HT."),
    ],
)
async def test_what_is_awaited_is_given_to_who_awaits_it(cut: int, tag: bytes) -> None:
    async with listening() as listener:
        loop = asyncio.get_running_loop()
        awaited = listener.plain.expect(PEER, tag)
        greeting = PLAIN + tag
        with await come(listener, *filter(None, (greeting[:cut], greeting[cut:]))) as end:
            with await awaited.taken() as taken:
                assert listener.unproven == 0 or await _settles(lambda: listener.unproven == 0)
                await loop.sock_sendall(end, b"there")
                assert await loop.sock_recv(taken, 100) == b"there"
                await loop.sock_sendall(taken, b"back")
                assert await loop.sock_recv(end, 100) == b"back"
                awaited.close()
                await loop.sock_sendall(taken, b"it is not closed any more")
                assert await loop.sock_recv(end, 100) == b"it is not closed any more"
            assert await is_turned_away(end), "nobody else has it"


async def _settles(holds: Callable[[], bool]) -> bool:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
    return True


@pytest.mark.parametrize(
    "greeting",
    [
        PLAIN + bytes(16),
        PLAIN + TAG[:-1] + b"\0",
        PLAIN + TAG + b"more",
        PLAIN[:-1] + b"!" + TAG,
        b"mesh",
        b"m" * 100,
    ],
    ids=["another tag", "nearly", "more", "another version", "half", "other words"],
)
async def test_who_sends_anything_else_is_turned_away(
    greeting: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_visit, "AWAITED_SECONDS", 1.0)
    async with listening() as listener:
        awaited = listener.plain.expect(PEER, TAG)
        end = await come(listener, greeting)
        if greeting != b"mesh":  # which may be the beginning of a good one
            assert await is_turned_away(end)
        end.close()
        with pytest.raises(Broken, match="in time"):
            await awaited.taken()


async def test_a_tag_is_good_for_one() -> None:
    async with listening() as listener:
        awaited = listener.plain.expect(PEER, TAG)
        with await come(listener, PLAIN + TAG) as first, await awaited.taken():
            assert await is_turned_away(await come(listener, PLAIN + TAG))
            assert first.fileno() >= 0


async def test_who_comes_late_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_visit, "AWAITED_SECONDS", 0.0)
    async with listening() as listener:
        awaited = listener.plain.expect(PEER, TAG)
        with pytest.raises(Broken, match="in time"):
            await awaited.taken()
        assert await is_turned_away(await come(listener, PLAIN + TAG))


async def test_what_nobody_takes_is_closed() -> None:
    async with listening() as listener:
        awaited = listener.plain.expect(PEER, TAG)
        end = await come(listener, PLAIN + TAG)
        awaited.close()
        assert await is_turned_away(end)
        assert await is_turned_away(await come(listener, PLAIN + TAG))


async def test_the_port_takes_links_as_well() -> None:
    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    listener = TcpListener(far.now, host="127.0.0.1")
    listener.open()
    async with serving(listener) as (accepted, _):
        listener.plain.expect(PEER, TAG)
        place = trusted([Candidate("127.0.0.1", listener.port)])
        link = await TcpDialer(near.now).dial(far.peer, place)
        assert (await accepted.get()).info.peer == near.peer
        await link.aclose()


async def test_so_many_are_awaited_and_no_more() -> None:
    waiting = AwaitedConnections()
    tags = [bytes([number]) * TAG_BYTES for number in range(PLAIN_AWAITED.most)]
    many = [waiting.expect(PeerId(tag * 2), tag) for tag in tags]
    with pytest.raises(Refused):
        waiting.expect(PEER, TAG)
    many[3].close()
    again = waiting.expect(PEER, TAG)
    assert waiting.find(TAG) is again and waiting.find(tags[3]) is None
    for awaited in (*many, again):
        awaited.close()


async def test_one_peer_has_a_share_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = AwaitedConnections()
    tags = [bytes([number]) * TAG_BYTES for number in range(PLAIN_AWAITED_OF_PEER.most + 2)]
    many = [waiting.expect(PEER, tag) for tag in tags[:-2]]
    with pytest.raises(Refused):
        waiting.expect(PEER, TAG)
    other = waiting.expect(PeerId(bytes(32)), tags[-2])
    assert waiting.find(tags[-2]) is other, "others have theirs"
    many[0].close()
    waiting.expect(PEER, tags[-1])
    with pytest.raises(Refused):
        waiting.expect(PEER, TAG)
    monkeypatch.setattr(plain_visit.Awaited, "is_late", True)
    waiting.expect(PEER, TAG)  # what is late counts no more
