"""The real `meshd relay`: its first line, its state, its end; many pairs, floods, restarts, memory flat."""

import asyncio
import contextlib
import resource
import signal
import socket
import stat
from collections.abc import AsyncIterator, Iterator

import pytest
from meshd.base.tasks import Owner
from meshd.identity.invite import RelayHint, split_place
from meshd.link.interface import DialError, Link
from meshd.wire.stun import Endpoint, StunKind, StunMessage, decode, encode

from tests.conformance.nodes import TestMesh
from tests.conformance.relays import Party, make_party
from tests.conformance.run import run, until
from tests.process.relay_process import Relay, relay

LOOPBACK = "127.0.0.1"
__all__ = ["relay"]  # a fixture
PAIRS = 100
AT_ONCE = 24  # dials; the tests' own process does all the handshakes of both ends
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _many_files() -> Iterator[None]:
    """400 nodes in one process hold more descriptors than the usual limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(hard, 8192)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.asynccontextmanager
async def parties(hint: RelayHint, count: int) -> AsyncIterator[list[Party]]:
    """So many members of one mesh, all connected to the relay."""
    mesh = TestMesh()
    made = [make_party(mesh.node(), [hint]) for _ in range(count)]
    async with Owner() as owner:
        for at in range(0, count, AT_ONCE):
            for party in made[at : at + AT_ONCE]:
                owner.start(party.serve(), name="party")
            await until(lambda at=at: all(map(connected, made[:at])), seconds=20)  # type: ignore[misc]
        await until(lambda: all(map(connected, made)), seconds=20)
        yield made
        owner.cancel()


def connected(party: Party) -> bool:
    return party.client.states()[0].connected


async def pairs_of(made: list[Party]) -> list[tuple[Link, Link]]:
    """A link between each two neighbours."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(near: Party, far: Party) -> tuple[Link, Link]:
        async with gate, asyncio.timeout(60):
            while True:  # as the connector does it: a busy machine may have cost one its place for a moment
                try:
                    return await near.pair(far)
                except DialError:
                    await asyncio.sleep(0.2)

    async with Owner() as owner:
        tasks = [
            owner.start(one(near, far), name="pair") for near, far in zip(made[::2], made[1::2], strict=True)
        ]
    return [task.result() for task in tasks]


async def exchange(mine: Link, theirs: Link, number: int, size: int) -> None:
    """`size` bytes each way, different for each pair."""
    there, back = (
        number.to_bytes(4, "big") * (size // 4),
        (~number & 0xFFFFFFFF).to_bytes(4, "big") * (size // 4),
    )
    async with Owner() as owner:
        owner.start(mine.send([there]), name="there")
        owner.start(theirs.send([back]), name="back")
        first = owner.start(read(theirs, size), name="reads there")
        second = owner.start(read(mine, size), name="reads back")
    assert first.result() == there
    assert second.result() == back


async def read(link: Link, count: int) -> bytes:
    got = bytearray()
    while len(got) < count:
        got += await link.receive()
    return bytes(got)


def test_first_line_state_and_end(relay: Relay) -> None:
    hint = relay.start()
    assert hint.place.startswith(f"{LOOPBACK}:")
    assert stat.S_IMODE(relay.key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(relay.key_file.parent.stat().st_mode) == 0o700
    code, out, err = relay.end()
    assert (code, out) == (0, "")
    assert "Traceback" not in err
    assert sorted(path.name for path in relay.key_file.parent.iterdir()) == ["identity.key", "lock"]
    again = relay.start("--public-host", "relay.example.org", port=relay.port)
    assert again == RelayHint(f"relay.example.org:{split_place(hint.place)[1]}", hint.key)
    assert relay.end(signal.SIGINT)[0] == 130


def test_a_port_that_is_taken_is_an_error(relay: Relay) -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(Exception, match="not a relay URL"):
            relay.start(port=port)
    assert relay.process is not None
    _, err = relay.process.communicate(timeout=20)
    assert relay.process.returncode == 1
    assert f"port `{port}`" in err
    assert "hint: " in err


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_stun_is_answered_at_the_same_port(relay: Relay, kind: int) -> None:
    relay.start()
    question = StunMessage(kind=StunKind.REQUEST, transaction=b"transaction!")
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.settimeout(10)
        sock.connect((LOOPBACK, relay.port))
        for _ in range(2):
            sock.send(encode(question))
            answer = decode(sock.recv(2000))
            assert answer.kind is StunKind.SUCCESS
            assert answer.transaction == question.transaction
            assert answer.mapped == Endpoint(*sock.getsockname())


def test_100_pairs_at_once_and_again_in_the_same_memory(relay: Relay) -> None:
    async def round_of(hint: RelayHint) -> int:
        async with parties(hint, 2 * PAIRS) as made:
            links = await pairs_of(made)
            async with Owner() as owner:
                for number, (mine, theirs) in enumerate(links):
                    owner.start(exchange(mine, theirs, number, 40_000), name="exchange")
            peak = relay.rss()
            async with Owner() as owner:
                for mine, _ in links:
                    owner.start(mine.aclose(), name="close")
        return peak

    hint = relay.start("--open")
    rounds = [run(round_of(hint), seconds=120) / MIB for _ in range(3)]
    shown = ", ".join(f"{mebibytes:.0f}" for mebibytes in rounds)
    assert max(rounds) < 100, shown
    assert rounds[2] - rounds[1] < 15, shown  # the heap settles; what would leak is 600 connections a round


def test_pairs_whose_readers_stop_cost_little(relay: Relay) -> None:
    """Each sender sends until it waits; what the relay holds for them all is bounded."""

    async def work(hint: RelayHint) -> None:
        async with parties(hint, 20) as made:
            links = await pairs_of(made)
            before = relay.rss()

            async def clog(link: Link) -> None:
                taken = 0
                with pytest.raises(TimeoutError):
                    while True:
                        async with asyncio.timeout(1.0):
                            await link.send([bytes(256 << 10)])
                        taken += 256 << 10
                        assert taken < 64 * MIB

            async with Owner() as owner:
                for mine, _ in links:
                    owner.start(clog(mine), name="clog")
            assert relay.rss() - before < 10 * MIB

    run(work(relay.start("--open")))


def test_metrics_are_for_this_machine_alone(relay: Relay) -> None:
    with pytest.raises(Exception, match="not a relay URL"):
        relay.start("--metrics", "0.0.0.0:0")
    assert relay.process is not None
    assert relay.process.wait(20) == 1
    relay.process.communicate()
    relay.start("--metrics", f"{LOOPBACK}:0")
    text = relay.metrics()
    assert "meshd_relay_circuits 0.0\n" in text
    assert "meshd_relay_carried_bytes_total 0.0\n" in text
