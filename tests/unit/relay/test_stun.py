"""The relay's UDP port: where an answer comes from, and what it names."""

import asyncio
import socket
from collections import Counter
from functools import partial

import pytest
from meshd.base.peer_limits import STUN_ANSWERS, STUN_ANSWERS_IN_ALL
from meshd.base.tasks import Owner
from meshd.link.net.stun import Question, ask_udp, bound_socket
from meshd.relay.run import stun_hosts
from meshd.relay.stun import Corner, StunPorts, answer_from
from meshd.wire.stun import Endpoint, StunKind, StunMessage, decode, encode

from tests.conformance.run import until

SEEN = Endpoint("203.0.113.9", 4711)
SQUARE: dict[Corner, Endpoint] = {
    (0, 0): Endpoint("192.0.2.1", 17443),
    (0, 1): Endpoint("192.0.2.1", 17444),
    (1, 0): Endpoint("192.0.2.2", 17443),
    (1, 1): Endpoint("192.0.2.2", 17444),
}


def nobody(_host: str) -> bool:
    return False


@pytest.mark.parametrize("ip", [False, True])
@pytest.mark.parametrize("port", [False, True])
@pytest.mark.parametrize("at", list(SQUARE))
def test_the_answer_comes_from_the_corner_asked_for(at: Corner, ip: bool, port: bool) -> None:
    question = StunMessage(kind=StunKind.REQUEST, transaction=b"transaction!", change_ip=ip, change_port=port)
    found = answer_from(encode(question), SEEN, at, SQUARE)
    assert found is not None
    reply, corner = found
    answer = decode(reply)
    assert corner == ((at[0] + ip) % 2, (at[1] + port) % 2)
    assert answer.mapped == SEEN
    assert answer.origin == SQUARE[corner]
    assert answer.other == SQUARE[1 - at[0], 1 - at[1]]


def test_what_is_no_question_gets_no_answer() -> None:
    assert answer_from(b"x" * 40, SEEN, (0, 0), SQUARE) is None
    indication = StunMessage(kind=StunKind.INDICATION, transaction=b"transaction!")
    assert answer_from(encode(indication), SEEN, (0, 0), SQUARE) is None


async def test_four_sockets_make_a_server_by_rfc_5780() -> None:
    counts: Counter[str] = Counter()
    with socket.create_server(("127.0.0.1", 0)) as server:
        ports = StunPorts(counts, nobody, second="127.0.0.2")
        ports.open([server], "127.0.0.1")
        place = Endpoint("127.0.0.1", server.getsockname()[1])
        async with Owner() as owner:
            await ports.start(owner)
            sock = bound_socket(socket.AF_INET, socket.SOCK_DGRAM, host="127.0.0.1")
            try:
                plain, both = await ask_udp(
                    sock, [Question(server=place), Question(server=place, change_ip=True, change_port=True)]
                )
            finally:
                sock.close()
            owner.cancel()
        await asyncio.sleep(0)
    assert plain is not None
    assert both is not None
    assert (plain.source, both.source.host) == (place, "127.0.0.2")
    assert both.source.port != place.port
    assert counts["stun_answers"] == 2


def took(counts: Counter[str], requests: int) -> bool:
    """Return True if the port has answered or refused so many requests."""
    return counts["stun_answers"] + counts["stun_refused"] == requests


async def test_an_address_gets_no_more_answers_than_its_rate() -> None:
    counts: Counter[str] = Counter()
    request = encode(StunMessage(kind=StunKind.REQUEST, transaction=b"transaction!"))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(type=socket.SOCK_DGRAM) as sock:
        ports = StunPorts(counts, nobody)
        ports.open([server], "")
        sock.connect(("127.0.0.1", server.getsockname()[1]))
        async with Owner() as owner:
            await ports.start(owner)
            # many at a time, so that a busy machine does not take as long as the rate needs to refill
            for number in range(0, int(STUN_ANSWERS.burst) + 200, 50):
                for _ in range(50):
                    sock.send(request)
                await until(partial(took, counts, number + 50))
            owner.cancel()
        await asyncio.sleep(0)
    assert counts["stun_refused"] > 0
    assert counts["stun_answers"] < STUN_ANSWERS.burst + 200


async def test_all_addresses_together_get_no_more_answers_and_a_client_still_gets_its_own() -> None:
    """Forged addresses: each has a share, but what is sent to all of them is bounded."""
    counts: Counter[str] = Counter()
    request = encode(StunMessage(kind=StunKind.REQUEST, transaction=b"transaction!"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = server.getsockname()
        ports = StunPorts(counts, lambda host: host == "127.0.0.1")
        ports.open([server], "")
        began = asyncio.get_running_loop().time()
        async with Owner() as owner:
            await ports.start(owner)
            sent = 0
            for number in range(int(STUN_ANSWERS_IN_ALL.burst / STUN_ANSWERS.burst) + 4):
                with socket.socket(type=socket.SOCK_DGRAM) as sock:
                    sock.bind((f"127.0.1.{number + 1}", 0))
                    for _ in range(int(STUN_ANSWERS.burst / 64)):
                        for _ in range(64):  # what a socket's buffer holds at least
                            sock.sendto(request, place)
                        sent += 64
                        await until(partial(took, counts, sent))
            took_seconds = asyncio.get_running_loop().time() - began
            most = STUN_ANSWERS_IN_ALL.burst + took_seconds * STUN_ANSWERS_IN_ALL.per_second
            assert STUN_ANSWERS_IN_ALL.burst <= counts["stun_answers"] <= most
            refused = counts["stun_refused"]
            assert refused > 0
            with socket.socket(type=socket.SOCK_DGRAM) as sock:
                sock.bind(("127.0.0.1", 0))
                sock.sendto(request, place)
                await until(partial(took, counts, sent + 1))
            assert counts["stun_refused"] == refused
            owner.cancel()
        await asyncio.sleep(0)


def test_a_port_that_is_taken_leaves_nothing_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(type=socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", server.getsockname()[1]))
        ports = StunPorts(Counter(), nobody)
        with pytest.raises(OSError, match="in use"):
            ports.open([server], "")
        ports.close()


@pytest.mark.parametrize(
    ("bound", "second", "hosts", "expected"),
    [
        ("", "", ("10.0.0.1", "8.8.8.8"), ("", "")),
        ("", "", ("8.8.8.8", "10.0.0.1", "1.1.1.1"), ("8.8.8.8", "1.1.1.1")),
        ("", "10.0.0.2", ("10.0.0.1", "10.0.0.2"), ("10.0.0.1", "10.0.0.2")),
        ("", "10.0.0.2", ("10.0.0.2",), ("", "")),
        ("10.0.0.1", "10.0.0.2", (), ("10.0.0.1", "10.0.0.2")),
        ("10.0.0.1", "10.0.0.1", (), ("", "")),
        ("10.0.0.1", "", ("8.8.8.8", "1.1.1.1"), ("", "")),
    ],
)
def test_which_two_addresses(
    bound: str, second: str, hosts: tuple[str, ...], expected: tuple[str, str]
) -> None:
    assert stun_hosts(bound, second, hosts) == expected
