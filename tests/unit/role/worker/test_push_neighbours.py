"""A worker and its neighbours: who may push to its server, to whom that may push, and what is told of it."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import Broken, EndOfStream, Refused
from meshd.identity.keys import PeerId
from meshd.peer.interface import MetadataValue, PeerState, Stream
from meshd.role.worker.push_neighbours import (
    GONE_REACH_SECONDS,
    GONE_SECONDS,
    MAX_NEIGHBOURS,
    REACH_SECONDS,
)
from meshd.role.worker.rpc_server import RpcServer
from meshd.rpc.protocol import PEER_SERVED
from meshd.wire.lease import PUSH_SERVICE, Admit, Grant, Loaded, Neighbour, Reached

from tests.sim.loop import run
from tests.unit.role.calls import Call, Scene, scene
from tests.unit.role.fake_mesh import FakeMesh
from tests.unit.rpc import talk

LEASE = b"a lease of theirs"[:16]


def push(by: FakeMesh, to: Scene, grant: Grant, **more: MetadataValue) -> Stream:
    return by.open_stream(to.bench.mesh.key.peer, PUSH_SERVICE, metadata={"lease": grant.lease_id, **more})


class Other:
    """A worker next to the one that is tested: it notes the streams of service `push` that it is sent."""

    def __init__(self, it: Scene, name: str = "other") -> None:
        self.mesh = it.net.mesh(name)
        self.refusal: str | None = None
        self.asked: list[Stream] = []
        self.over = asyncio.Event()
        self.mesh.handle(PUSH_SERVICE, self._serve, allow=lambda _member, _metadata: self.refusal)

    async def _serve(self, stream: Stream) -> None:
        self.asked.append(stream)
        await self.over.wait()
        stream.write_eof()

    @property
    def peer(self) -> PeerId:
        return self.mesh.key.peer

    def introduction(self, number: int = 3) -> Neighbour:
        return Neighbour(number, self.peer.raw, LEASE)


async def refused(stream: Stream) -> None:
    with pytest.raises(Refused, match="admits this member"):
        await stream.read()


def test_only_who_was_admitted_pushes_and_past_the_filter(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            neighbour, stranger = it.net.mesh("neighbour"), it.net.mesh("stranger")
            call = it.call()
            grant = await call.lease()
            await refused(push(neighbour, it, grant))
            await call.says(Admit(neighbour.key.peer.raw))
            await asyncio.sleep(1)
            await refused(push(stranger, it, grant))
            await refused(push(neighbour, it, Grant(bytes(16))))
            await refused(push(call.head, it, grant))
            it.bench.head_says = talk.hello()
            stream = push(neighbour, it, grant)
            with pytest.raises(EndOfStream):
                await stream.read()
            ((port, secret),) = it.bench.connected
            call.rpc(grant)
            await asyncio.sleep(1)
            _, (same_port, clients) = it.bench.connected
            assert port == same_port
            assert len(secret) == len(clients) == 32 and secret != clients
            what, _ = it.worker.status.refused[0]
            assert what.endswith(
                "another worker's rpc-server sent something that the firewall refuses: "
                "command 14 between servers"
            )
            assert f"`{neighbour.key.peer.short}`" in what
            await call.release()
            await refused(push(neighbour, it, grant))

    run(main())


def test_two_heads_admit_for_themselves(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            neighbour = it.net.mesh("neighbour")
            one, two = it.call("one"), it.call("two")
            mine, theirs = await one.lease(), await two.lease()
            await one.says(Admit(neighbour.key.peer.raw))
            await asyncio.sleep(1)
            await refused(push(neighbour, it, theirs))
            push(neighbour, it, mine)
            await asyncio.sleep(1)
            assert len(it.bench.connected) == 1
            first, second = it.bench.children
            ((port, _),) = it.bench.connected
            server = it.worker._running[mine.lease_id]
            assert isinstance(server, RpcServer)
            assert first is not second and port == server.address[0]

    run(main())


def test_who_asks_is_answered_until_the_lease_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            neighbour = it.net.mesh("neighbour")
            call = it.call()
            grant = await call.lease()
            await call.says(Admit(neighbour.key.peer.raw))
            await asyncio.sleep(1)
            stream = push(neighbour, it, grant, ask=1)
            await stream.accepted()
            await asyncio.sleep(1000)
            assert it.bench.connected == []
            await call.release()
            async with asyncio.timeout(1):
                with pytest.raises(EndOfStream):
                    await stream.read()

    run(main())


def test_a_neighbour_is_asked_then_told_to_the_server_and_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            other, call = Other(it), it.call()
            await call.lease()
            await call.says(other.introduction())
            assert await call.hears() == Reached(3, "")
            (tunnel,) = it.bench.tunnels
            assert (tunnel.asked.peer, tunnel.asked.service, dict(tunnel.asked.metadata)) == (
                other.peer,
                PUSH_SERVICE,
                {"lease": LEASE},
            )
            (child,) = it.bench.children
            assert child.orders() == [f"peer 3 {tunnel.endpoint} {tunnel.asked.client.secret.hex()}"]
            assert len(tunnel.asked.client.secret) == 32
            assert tunnel.asked.watch is not None, "what is pushed is seen"
            assert tunnel.asked.greeting == PEER_SERVED
            with tunnel.asked.watch() as watched:
                assert watched.from_peer(PEER_SERVED) == b"", "it was told already"
            (asked,) = other.asked
            assert dict(asked.metadata) == {"lease": LEASE, "ask": 1}
            await asyncio.sleep(1000)
            await call.says(Loaded())  # the lease goes on
            assert [tunnel.closed for tunnel in it.bench.tunnels] == [False]
            assert [tunnel.peer for tunnel in it.worker.status.tunnels] == [other.peer]
            other.over.set()
            await asyncio.sleep(1)
            assert [tunnel.closed for tunnel in it.bench.tunnels] == [True]
            assert it.worker.status.tunnels == []
            assert child.orders()[1:] == ["no 3"]
            await call.release()

    run(main())


@pytest.mark.parametrize(("version", "always"), [(0, False), (5, False), (5, True)])
def test_the_way_is_compressed_as_the_head_says(tmp_path: Path, version: int, always: bool) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            other, call = Other(it), it.call()
            await call.lease()
            said = replace(other.introduction(), compressed=version, always=always)
            await call.says(said)
            assert await call.hears() == Reached(3, "")
            (tunnel,) = it.bench.tunnels
            assert (tunnel.asked.compressed, tunnel.asked.always) == (version, always)
            other.over.set()

    run(main())


def test_the_end_of_the_lease_ends_the_way(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            other, call = Other(it), it.call()
            await call.lease()
            await call.says(other.introduction())
            await call.hears()
            await call.release()
            assert it.bench.tunnels[0].closed
            with pytest.raises(EndOfStream):
                await other.asked[0].read()
            other.over.set()

    run(main())


def test_a_neighbour_whose_head_spoke_later_is_asked_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            other, call = Other(it), it.call()
            await call.lease()
            other.refusal = "no live lease"
            other.mesh.since = asyncio.get_running_loop().time()
            other.mesh.say(PeerState.SUSPENDED)
            await call.says(other.introduction())
            await asyncio.sleep(1)
            other.mesh.say(PeerState.CONNECTED)
            await asyncio.sleep(1)
            assert it.bench.children[0].orders() == []
            other.refusal = None
            assert await call.hears() == Reached(3, "")
            assert len(it.bench.children[0].orders()) == 1

    run(main())


@pytest.mark.parametrize("why", ["refused", "not connected", "long gone", "unknown"])
def test_who_is_not_reached_in_time_is_no_neighbour(tmp_path: Path, why: str) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            other, call = Other(it), it.call()
            await call.lease()
            if why == "refused":
                other.refusal = "not admitted"
            elif why != "unknown":
                ago = GONE_SECONDS + 1 if why == "long gone" else 0.0
                other.mesh.since = asyncio.get_running_loop().time() - ago
                other.mesh.say(PeerState.CONNECTING)
            peer = bytes(32) if why == "unknown" else other.peer.raw
            began = asyncio.get_running_loop().time()
            await call.says(Neighbour(7, peer, LEASE))
            answer = await call.hears()
            assert isinstance(answer, Reached) and answer.number == 7
            seconds = GONE_REACH_SECONDS if why == "long gone" else REACH_SECONDS
            assert answer.why_not.startswith(f"unreachable for {seconds:.0f} s: not ")
            assert asyncio.get_running_loop().time() - began == pytest.approx(seconds)
            assert it.bench.children[0].orders() == ["no 7"]
            assert it.bench.tunnels == []

    run(main())


@pytest.mark.parametrize("how", ["twice", "many", "many admitted"])
def test_a_head_that_tells_too_much_is_reset(tmp_path: Path, how: str) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            other, call = Other(it), it.call()
            await call.lease()
            if how == "twice":
                said = [other.introduction().encode()] * 2
            elif how == "many":
                said = [other.introduction(number).encode() for number in range(MAX_NEIGHBOURS + 1)]
            else:
                said = [Admit(bytes([number]) * 32).encode() for number in range(MAX_NEIGHBOURS + 1)]
            for message in said:
                await call.messages.send(message)
            with pytest.raises(Broken):
                while True:
                    await call.messages.receive()
            await asyncio.sleep(1)
            assert it.worker.status.children == []
            other.over.set()

    run(main())


def test_a_stock_server_has_no_neighbours(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            other, call = Other(it), it.call()
            assert not (await call.offer()).push
            call = it.call()
            grant = await call.lease()
            await call.says(Admit(other.peer.raw))
            await call.says(other.introduction())
            await asyncio.sleep(20)
            await refused(push(other.mesh, it, grant))
            assert other.asked == []
            await call.release()

    run(main())


def test_a_server_that_takes_no_orders_costs_nothing(tmp_path: Path) -> None:
    """Its end is noticed by others; here it only has closed the pipe."""

    async def main() -> None:
        async with scene(tmp_path) as it:
            other = Other(it)
            assert (await it.call("first").offer()).push
            call: Call = it.call()
            await call.lease()
            it.bench.children[0].die("gone")
            await call.says(other.introduction())
            await call.is_over()
            other.over.set()

    run(main())
