"""The relay's UDP port: where an answer comes from, and what it names."""

import asyncio
import socket
from collections import Counter

import pytest
from meshd.base.tasks import Owner
from meshd.link.net.stun import Question, ask_udp, bound_socket
from meshd.relay.run import stun_hosts
from meshd.relay.stun import Corner, StunPorts, answer_from
from meshd.wire.stun import Endpoint, StunKind, StunMessage, decode, encode

from tests.conformance.run import run

SEEN = Endpoint("203.0.113.9", 4711)
SQUARE: dict[Corner, Endpoint] = {
    (0, 0): Endpoint("192.0.2.1", 17443),
    (0, 1): Endpoint("192.0.2.1", 17444),
    (1, 0): Endpoint("192.0.2.2", 17443),
    (1, 1): Endpoint("192.0.2.2", 17444),
}


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


def test_four_sockets_make_a_server_by_rfc_5780() -> None:
    async def work() -> None:
        counts: Counter[str] = Counter()
        with socket.create_server(("127.0.0.1", 0)) as server:
            ports = StunPorts(counts, second="127.0.0.2")
            ports.open([server], "127.0.0.1")
            place = Endpoint("127.0.0.1", server.getsockname()[1])
            async with Owner() as owner:
                await ports.start(owner)
                sock = bound_socket(socket.AF_INET, socket.SOCK_DGRAM, host="127.0.0.1")
                try:
                    plain, both = await ask_udp(
                        sock,
                        [Question(server=place), Question(server=place, change_ip=True, change_port=True)],
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

    run(work())


def test_a_port_that_is_taken_leaves_nothing_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(type=socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", server.getsockname()[1]))
        ports = StunPorts(Counter())
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
