"""ICE: which STUN servers are asked, how checks are paced, and what strangers may do."""

import asyncio
import socket

import pytest
from aioice.ice import CandidatePair
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.tasks import Owner
from meshd.link.ice import agent
from meshd.link.ice.agent import MAX_EARLY, IcePath, Pace
from meshd.link.net.udp_sockets import UdpSocket
from meshd.wire.address import Candidate
from meshd.wire.dialable import trusted
from meshd.wire.stun import Endpoint, answer_to

from tests.conformance.run import run

LOOPBACK = "127.0.0.1"


OUTER = Candidate("203.0.113.9", 4242, "udp", "srflx")


async def test_every_stun_server_is_asked_and_a_silent_one_costs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent, "_STUN_SECONDS", 30.0)

    loop = asyncio.get_running_loop()
    with socket.socket(type=socket.SOCK_DGRAM) as silent, socket.socket(type=socket.SOCK_DGRAM) as good:
        for sock in (silent, good):
            sock.setblocking(False)
            sock.bind((LOOPBACK, 0))

        def answer() -> None:
            data, source = good.recvfrom(2048)
            reply = answer_to(data, Endpoint(OUTER.host, OUTER.port))
            assert reply is not None
            good.sendto(reply, source)

        loop.add_reader(good, answer)
        found: asyncio.Queue[Candidate] = asyncio.Queue(4)
        ice = IcePath(controlling=True, user="abcd", password="p" * 22)
        ice.open([LOOPBACK], UdpSocket)
        servers = [(LOOPBACK, silent.getsockname()[1]), (LOOPBACK, good.getsockname()[1])]
        servers.append(("no-such-name.invalid", 3478))
        async with Owner() as owner:
            asking = owner.start(ice.reflexive(servers, found.put_nowait), name="ask")
            assert await found.get() == OUTER
            assert not asking.done()  # nobody had to wait for the silent one
            await loop.sock_recv(silent, 2048)
            asking.cancel()
        assert found.empty()
        loop.remove_reader(good)
        ice.shut()


def test_checks_keep_their_pace() -> None:
    pace = Pace(50)
    moments = [10.0 + pace.wait(10.0) for _ in range(100)]
    assert moments[0] == 10.0
    assert moments[50] == pytest.approx(11.0)
    assert pace.wait(99.0) == 0.0


async def test_what_nobody_reads_is_bounded() -> None:
    ice = IcePath(controlling=True, user="abcd", password="p" * 22)
    for number in range(10 * MAX_EARLY):
        ice.data_received(b"\x16%d" % number, 1)
    assert ice._queue.qsize() == MAX_EARLY
    got: list[bytes] = []
    ice.take_over(got.append)
    assert len(got) == MAX_EARLY
    ice.shut()


@given(st.lists(st.tuples(st.integers(0, 70), st.binary(max_size=80)), max_size=20), st.booleans())
def test_packets_of_strangers_end_nothing(packets: list[tuple[int, bytes]], like_stun: bool) -> None:
    async def work() -> None:
        ice = IcePath(controlling=True, user="abcd", password="p" * 22)
        ice.open([LOOPBACK], UdpSocket)
        (sock,) = ice._protocols
        for first, rest in packets:
            data = bytes([first]) + rest
            if like_stun:
                body = rest[: len(rest) // 4 * 4]
                data = b"\x00\x01" + len(body).to_bytes(2, "big") + b"\x21\x12\xa4\x42" + bytes(12) + body
            sock.datagram_received(data, (LOOPBACK, 9))
        assert not ice._remote_candidates
        ice.shut()

    run(work())


async def test_a_path_gives_way_to_a_better_one_only() -> None:
    ice = IcePath(controlling=False, user="abcd", password="p" * 22)
    ice.open([LOOPBACK], UdpSocket)
    ice.add(trusted(map(Candidate.parse, ("10.0.0.1:7/udp", "198.51.100.7:7/udp/srflx"))))
    near, around = (CandidatePair(ice._protocols[0], one) for one in ice._remote_candidates)
    ice._check_list[:] = [near, around]
    chosen = []
    for pair in (near, around):
        pair.state, pair.nominated = CandidatePair.State.SUCCEEDED, True
    for pair in (around, near, around):
        ice.check_complete(pair)
        chosen.append(ice._nominated[1])
    assert chosen == [around, near, near]
    ice.shut()
