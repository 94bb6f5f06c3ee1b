"""A worker whose neighbour is on another machine: their servers get a connection, and keys to seal it."""

import asyncio
import errno
import os
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import Broken, Refused
from meshd.devices.interface import AwaitedConnection
from meshd.identity.keys import PeerId
from meshd.identity.push_keys import PushKeys
from meshd.peer.interface import MetadataValue, Stream
from meshd.wire.lease import Admit, Grant, Reached
from meshd.worker.push_neighbours import ARRIVAL, SEALED_ARRIVAL, TAKEN
from meshd.worker.sealed_ways import (
    COME,
    MEET_SECONDS,
    NOT_COME,
    OPENER_CONNECTS,
    OTHER_CONNECTS,
    SEALED,
)

from tests.unit.head.calls import Call, Scene, scene
from tests.unit.worker.lent import Other, Server, heard, says

pytestmark = pytest.mark.virtual

TAG, SECRET = b"a tag of 16 byte", bytes(range(32))


class Awaited:
    """A connection that the test lets come, or never."""

    def __init__(self, end: socket.socket | None) -> None:
        self.end, self.closed = end, False

    async def taken(self) -> socket.socket:
        if self.end is None:
            await asyncio.sleep(MEET_SECONDS + 2)
            raise Broken("not in time")
        return self.end

    def close(self) -> None:
        self.closed = True


class Port:
    """The mesh port of the tested worker (implements PlainConnections)."""

    def __init__(self) -> None:
        self.direct = self.reaching = True
        self.ours, self.theirs = socket.socketpair()
        self.fails = self.is_full = self.comes_not = False
        self.connected: list[tuple[PeerId, bytes]] = []
        self.awaited: dict[bytes, Awaited] = {}

    def is_direct(self, _peer: PeerId) -> bool:
        return self.direct

    def reaches(self, _peer: PeerId) -> bool:
        return self.reaching

    async def connect(self, peer: PeerId, tag: bytes) -> socket.socket:
        if self.fails:
            raise Broken("connection refused")
        self.connected.append((peer, tag))
        return self.ours

    def expect(self, _peer: PeerId, tag: bytes) -> AwaitedConnection:
        if self.is_full:
            raise Refused("too many connections are awaited", code="busy")
        awaited = self.awaited[tag] = Awaited(None if self.comes_not else self.ours)
        return awaited

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()

    def has_ended(self) -> bool:
        """Say whether nobody has the connection any more."""
        try:
            return self.theirs.recv(1, socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False


class SealedScene:
    """A worker with a lease, whose server can seal."""

    def __init__(self, it: Scene, call: Call, grant: Grant, port: Port) -> None:
        self.it, self.call, self.grant, self.port = it, call, grant, port
        self.server = Server(it.bench.children[0])

    def arrivals(self) -> list[tuple[int, int, bytes, socket.socket | None]]:
        """Return kind, number, keys and connection of each message to the server."""
        found: list[tuple[int, int, bytes, socket.socket | None]] = []
        while True:
            try:
                data, ends, _, _ = socket.recv_fds(self.server.arrivals_end, 8, 1)
            except BlockingIOError:
                return found
            kind, number = struct.unpack("<II", data)
            keys = self.server.arrivals_end.recv(64) if kind == SEALED_ARRIVAL else b""
            found.append((kind, number, keys, socket.socket(fileno=ends[0]) if ends else None))

    def kinds(self) -> list[int]:
        """Return the kinds alone."""
        found = self.arrivals()
        for *_, end in found:
            if end is not None:
                end.close()
        return [kind for kind, *_ in found]


@asynccontextmanager
async def sealing(folder: Path) -> AsyncIterator[SealedScene]:
    with closing(Port()) as port:
        async with scene(folder, port) as it:
            call = it.call()
            found = SealedScene(it, call, await call.lease(), port)
            with closing(found.server):
                yield found


async def told(one: SealedScene, other: Other, **changes: object) -> Stream:
    """Have the head introduce the other worker; return the stream that asks it."""
    await says(one.call, replace(other.introduction(), seals=True, **changes))  # type: ignore[arg-type]
    await asyncio.sleep(0.1)
    return other.streams[0]


async def is_handed_over(one: SealedScene, number: int, keys: bytes) -> None:
    """Check that the server has it alone, until the lease ends."""
    ((kind, found, given, end),) = one.arrivals()
    assert (kind, found, given) == (SEALED_ARRIVAL, number, keys)
    assert end is not None
    with end:
        end.sendall(b"pushed")
        assert one.port.theirs.recv(100) == b"pushed"
        assert not one.port.has_ended()
        await one.call.release()
        await asyncio.sleep(0.1)
        assert end.recv(1, socket.MSG_DONTWAIT) == b"", "the daemon cuts it when the lease ends"
    assert one.port.has_ended()


def offered(stream: Stream) -> tuple[bytes, bytes, bytes]:
    offer = stream.metadata[SEALED]
    assert isinstance(offer, bytes)
    return offer[:1], offer[1:17], offer[17:]


@pytest.mark.parametrize("reaching", [True, False], ids=["connects", "awaits"])
async def test_who_opens_offers_a_connection_and_uses_what_the_other_confirms(
    tmp_path: Path, reaching: bool
) -> None:
    async with sealing(tmp_path) as one:
        one.port.reaching = reaching
        other = Other(one.it)
        asked = await told(one, other)
        who, tag, secret = offered(asked)
        assert who == (OPENER_CONNECTS if reaching else OTHER_CONNECTS)
        assert (len(tag), len(secret)) == (16, 32)
        assert one.port.connected == ([(other.peer, tag)] if reaching else [])
        assert list(one.port.awaited) == ([] if reaching else [tag])
        assert one.kinds() == [], "not before the other one confirms"
        await asked.write(COME)
        assert await one.call.hears() == Reached(3, "", direct=True)
        assert await heard(asked) == TAKEN
        assert one.it.bench.tunnels == [], "nothing passes the daemons"
        (shown,) = one.it.worker.status.tunnels
        assert (shown.peer, shown.listen, shown.streams) == (other.peer, "sealed", 1)
        keys = PushKeys.derive(secret, tag)
        await is_handed_over(one, 3, keys.opener + keys.other)
        other.over.set()


async def test_each_offer_has_a_tag_and_a_secret_of_its_own(tmp_path: Path) -> None:
    async with sealing(tmp_path) as one:
        others = [Other(one.it), Other(one.it, "another")]
        found = set()
        for number, other in enumerate(others):
            await says(one.call, replace(other.introduction(number), seals=True))
            await asyncio.sleep(0.1)
            found |= {offered(other.streams[0])[1:]}
        assert len(found) == 2
        for other in others:
            other.over.set()


@pytest.mark.parametrize("why", ["refused", "unconfirmed", "silent", "never comes"])
async def test_where_it_fails_results_go_through_the_daemons(tmp_path: Path, why: str) -> None:
    async with sealing(tmp_path) as one:
        one.port.fails = why == "refused"
        one.port.reaching = why != "never comes"
        one.port.comes_not = why == "never comes"
        other = Other(one.it)
        asked = await told(one, other)
        if why in ("unconfirmed", "never comes"):
            await asked.write(COME if why == "never comes" else NOT_COME)
        began = asyncio.get_running_loop().time()
        assert await one.call.hears() == Reached(3, "")
        assert asyncio.get_running_loop().time() - began <= MEET_SECONDS
        assert one.kinds() == [ARRIVAL]
        assert len(one.it.bench.tunnels) == 1
        assert all(awaited.closed for awaited in one.port.awaited.values()) or why != "never comes"
        if why in ("unconfirmed", "silent"):
            assert one.port.has_ended()
        other.over.set()


@pytest.mark.parametrize("why", ["not direct", "the other cannot", "compressed", "too many"])
async def test_nothing_is_offered_where_it_is_of_no_use(tmp_path: Path, why: str) -> None:
    async with sealing(tmp_path) as one:
        one.port.direct = why != "not direct"
        one.port.is_full, one.port.reaching = why == "too many", why != "too many"
        other = Other(one.it)
        said = replace(
            other.introduction(), seals=why != "the other cannot", compressed=5, always=why == "compressed"
        )
        await one.call.says(said)
        assert await one.call.hears() == Reached(3, "")
        assert SEALED not in other.streams[0].metadata
        assert len(one.it.bench.tunnels) == 1
        other.over.set()


async def _asked(one: SealedScene, other: Other, offer: MetadataValue) -> Stream:
    await says(one.call, Admit(other.peer.raw, 2))
    more: Mapping[str, MetadataValue] = {SEALED: offer}
    stream = other.push(one.it, one.grant, ask=1, **more)
    await stream.accepted()
    return stream


@pytest.mark.parametrize("who", [OPENER_CONNECTS, OTHER_CONNECTS], ids=["awaits", "connects"])
async def test_what_an_admitted_neighbour_offers_is_used_when_it_says_so(tmp_path: Path, who: bytes) -> None:
    async with sealing(tmp_path) as one:
        neighbour = Other(one.it)
        stream = await _asked(one, neighbour, who + TAG + SECRET)
        assert await heard(stream) == COME
        assert one.port.connected == ([(neighbour.peer, TAG)] if who == OTHER_CONNECTS else [])
        await asyncio.sleep(1)
        assert one.kinds() == [], "not before the neighbour says so"
        await stream.write(TAKEN)
        await asyncio.sleep(1)
        keys = PushKeys.derive(SECRET, TAG)
        await is_handed_over(one, 2, keys.other + keys.opener)


@pytest.mark.parametrize("why", ["refused", "not reached", "not direct", "never comes", "too many"])
async def test_a_neighbour_hears_that_there_is_no_connection(tmp_path: Path, why: str) -> None:
    async with sealing(tmp_path) as one:
        one.port.fails, one.port.is_full = why == "refused", why == "too many"
        one.port.reaching, one.port.direct = why != "not reached", why != "not direct"
        one.port.comes_not = why == "never comes"
        neighbour = Other(one.it)
        who = OPENER_CONNECTS if why in ("never comes", "too many") else OTHER_CONNECTS
        stream = await _asked(one, neighbour, who + TAG + SECRET)
        assert await heard(stream) == NOT_COME
        neighbour.push(one.it, one.grant)
        await asyncio.sleep(1)
        assert one.kinds() == [ARRIVAL]


@pytest.mark.parametrize(
    "offer",
    [b"", b"\x03" + TAG + SECRET, OPENER_CONNECTS + TAG + SECRET[:-1], 7, "sealed"],
    ids=["empty", "who", "short", "number", "text"],
)
async def test_what_is_no_offer_connects_nothing(tmp_path: Path, offer: MetadataValue) -> None:
    async with sealing(tmp_path) as one:
        neighbour = Other(one.it)
        stream = await _asked(one, neighbour, offer)
        await stream.write(TAKEN)
        neighbour.push(one.it, one.grant)
        await asyncio.sleep(1)
        assert one.kinds() == [ARRIVAL]
        assert (one.port.connected, one.port.awaited) == ([], {})


async def test_who_asks_again_makes_the_offer_before_void(tmp_path: Path) -> None:
    async with sealing(tmp_path) as one:
        one.port.comes_not = True
        neighbour = Other(one.it)
        await _asked(one, neighbour, OPENER_CONNECTS + bytes(16) + SECRET)
        before = one.port.awaited[bytes(16)]
        one.port.comes_not = False
        again = neighbour.push(one.it, one.grant, ask=1, **{SEALED: OPENER_CONNECTS + TAG + SECRET})
        assert await heard(again) == COME
        await asyncio.sleep(MEET_SECONDS + 2)
        assert before.closed


async def test_the_head_hears_whether_a_worker_can_seal(tmp_path: Path) -> None:
    async with sealing(tmp_path) as one:
        assert (await one.it.call().offer()).seals
        peer = one.it.heads["head"].key.peer
        assert one.it.worker.may_seal(peer)
        one.port.direct = False
        assert not one.it.worker.may_seal(peer)
    async with scene(tmp_path) as it:
        assert not (await it.call().offer()).seals, "nothing would use it"
        assert not it.worker.may_seal(peer)
    with closing(Port()) as port:
        async with scene(tmp_path, port, seals=False) as it:
            assert not (await it.call().offer()).seals and not it.worker.may_seal(peer)


async def test_a_connection_that_comes_too_late_is_cut(tmp_path: Path) -> None:
    async with sealing(tmp_path) as one:
        neighbour = Other(one.it)
        stream = await _asked(one, neighbour, OTHER_CONNECTS + TAG + SECRET)
        assert await heard(stream) == COME
        neighbour.push(one.it, one.grant)  # it has settled for a stream meanwhile
        await asyncio.sleep(1)
        assert one.kinds() == [ARRIVAL]
        await stream.write(TAKEN)
        await asyncio.sleep(1)
        assert one.kinds() == []
        assert one.port.has_ended(), "or its server would wait for one that never reads"


async def test_who_has_a_connection_makes_none_again(tmp_path: Path) -> None:
    async with sealing(tmp_path) as one:
        neighbour = Other(one.it)
        await _asked(one, neighbour, b"")
        neighbour.push(one.it, one.grant)
        await asyncio.sleep(1)
        assert one.kinds() == [ARRIVAL]
        for who in (OPENER_CONNECTS, OTHER_CONNECTS):
            neighbour.push(one.it, one.grant, ask=1, **{SEALED: who + TAG + SECRET})
            await asyncio.sleep(1)
        assert (one.port.connected, one.port.awaited) == ([], {})


async def test_nothing_is_confirmed_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_descriptor: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    async with sealing(tmp_path) as one:
        neighbour = Other(one.it)
        monkeypatch.setattr(os, "dup", none_left)
        stream = await _asked(one, neighbour, OTHER_CONNECTS + TAG + SECRET)
        assert await heard(stream) == NOT_COME
        assert one.port.has_ended()
