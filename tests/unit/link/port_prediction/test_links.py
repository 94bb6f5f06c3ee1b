"""Many open sockets and one that tries ports, on this machine: who is answered, and what is left alone."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import pytest
from meshd.base.errors import Broken
from meshd.base.tasks import Owner
from meshd.link.net.stun import bound_socket
from meshd.link.port_prediction import links
from meshd.link.port_prediction.links import OpenPorts, Seal, probe
from meshd.wire.address import Candidate
from meshd.wire.dialable import Dialable, trusted
from meshd.wire.stun import Endpoint, StunKind, StunMessage, decode, encode

LOOPBACK = "127.0.0.1"
SEAL = Seal(b"attempt".ljust(16), b"k" * 32)
OTHER = Seal(b"attempt".ljust(16), b"x" * 32)
COUNT = 8


@contextlib.contextmanager
def one_port() -> Iterator[tuple[socket.socket, Endpoint]]:
    with bound_socket(socket.AF_INET, socket.SOCK_DGRAM, host=LOOPBACK) as sock:
        yield sock, Endpoint(LOOPBACK, sock.getsockname()[1])


def dialled(place: Endpoint) -> Dialable:
    return trusted([Candidate(place.host, place.port, "udp")])[0]


@contextlib.asynccontextmanager
async def searching(
    target: Endpoint, seal: Seal = SEAL
) -> AsyncIterator[tuple[OpenPorts, asyncio.Task[socket.socket]]]:
    ports = OpenPorts(host=LOOPBACK)
    try:
        async with Owner() as owner:
            task = owner.start(ports.search(dialled(target), COUNT, seal, 20.0), name="search")
            await asyncio.sleep(0)
            yield ports, task
            task.cancel()
    finally:
        ports.close()


async def openings(sock: socket.socket) -> list[Endpoint]:
    """Where the openings came from: the ports that a NAT would show."""
    found: dict[Endpoint, None] = {}
    loop = asyncio.get_running_loop()
    while len(found) < COUNT:
        data, place = await loop.sock_recvfrom(sock, 2000)
        assert decode(data, key=b"k" * 32).username[:1] == b"o"
        found[Endpoint(place[0], place[1])] = None
    return list(found)


async def test_a_port_that_is_hit_answers_and_both_sides_know(monkeypatch: pytest.MonkeyPatch) -> None:
    with one_port() as (sock, here):
        async with searching(here) as (ports, task):
            there = await openings(sock)
            dead = [1025, 1026, 1027]
            found = await probe(sock, dialled(Endpoint(LOOPBACK, 1)), iter([*dead, there[3].port]), SEAL)
            assert found == there[3]
            chosen = ports.keep(await task)
            assert Endpoint(LOOPBACK, chosen.getsockname()[1]) == found
            with chosen:
                await asyncio.get_running_loop().sock_sendto(chosen, b"first word", (LOOPBACK, here.port))
                data = b""
                while data != b"first word":  # behind answers to the last words of the search
                    data = await asyncio.get_running_loop().sock_recv(sock, 2000)


async def test_an_opening_that_comes_through_is_as_good_as_an_answer() -> None:
    with one_port() as (sock, here):
        async with searching(here) as (ports, task):
            found = await probe(sock, dialled(Endpoint(LOOPBACK, 1)), iter([1025] * 50), SEAL)
            with ports.keep(await task) as chosen:
                assert chosen.getsockname()[1] == found.port


async def test_the_first_word_of_the_link_says_that_the_choice_was_made() -> None:
    """The word that ends the search may be lost: what follows it is left for the link."""
    with one_port() as (sock, here):
        async with searching(here) as (ports, task):
            there = await openings(sock)
            sock.sendto(b"\xc0 not stun", (LOOPBACK, there[5].port))
            with ports.keep(await task) as chosen:
                assert chosen.getsockname()[1] == there[5].port
                assert chosen.recv(100) == b"\xc0 not stun"


async def test_nobody_else_ends_a_search() -> None:
    loop = asyncio.get_running_loop()
    with one_port() as (sock, here), one_port() as (stranger, _):
        async with searching(here) as (ports, task):
            there = await openings(sock)
            place = (LOOPBACK, there[0].port)
            stranger.sendto(SEAL.request(b"c"), place)  # right, but from elsewhere
            stranger.sendto(b"\xc0 noise", place)
            sock.sendto(OTHER.request(b"c"), place)  # from the right place, with another key
            plain = StunMessage(kind=StunKind.REQUEST, transaction=bytes(12), username=b"c" + bytes(16))
            sock.sendto(encode(plain), place)
            other_attempt = Seal(bytes(16), b"k" * 32)
            sock.sendto(other_attempt.request(b"c"), place)
            sock.sendto(SEAL.request(b"p"), place)  # the last one is answered: the others have been read
            data = await loop.sock_recv(sock, 2000)
            while decode(data).kind is not StunKind.SUCCESS:
                data = await loop.sock_recv(sock, 2000)
            assert not task.done()
            sock.sendto(SEAL.request(b"c"), place)
            ports.keep(await task).close()
            with pytest.raises(BlockingIOError):
                stranger.recv(2000)


async def test_answers_of_strangers_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "LINGER_SECONDS", 0.02)

    with one_port() as (sock, here), one_port() as (stranger, place):
        request = StunMessage(kind=StunKind.REQUEST, transaction=bytes(12))
        stranger.sendto(OTHER.answer(request, here), (LOOPBACK, here.port))
        stranger.sendto(OTHER.request(b"o"), (LOOPBACK, here.port))
        stranger.sendto(b"\xc0 noise", (LOOPBACK, here.port))
        with pytest.raises(Broken, match=r"2 ports of `127\.0\.0\.1` were tried; none answered"):
            await probe(sock, dialled(Endpoint(LOOPBACK, 1)), iter([place.port, 1025]), SEAL)


async def test_a_search_has_its_time() -> None:
    with one_port() as (_, here):
        ports = OpenPorts(host=LOOPBACK)
        with pytest.raises(TimeoutError):
            await ports.search(dialled(here), COUNT, SEAL, 0.02)
        ports.close()


async def test_too_few_files_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    def scarce(*given: int, host: str) -> socket.socket:
        nonlocal made
        made += 1
        if made > 20:
            raise OSError(24, "too many open files")
        return bound_socket(*given, host=host)

    monkeypatch.setattr(links, "bound_socket", scarce)

    with one_port() as (_, here):
        ports = OpenPorts(host=LOOPBACK)
        with pytest.raises(Broken, match="only 20 sockets"):
            await ports.search(dialled(here), 256, SEAL, 1.0)
        ports.close()


@pytest.mark.parametrize("turns", range(8))
async def test_cancelled_anywhere_it_leaves_nothing(turns: int) -> None:
    with one_port() as (sock, here):
        async with searching(here) as (_, task):
            trying = asyncio.get_running_loop().create_task(
                probe(sock, dialled(Endpoint(LOOPBACK, 1)), iter(range(2000, 9000)), OTHER)
            )
            for _ in range(turns):
                await asyncio.sleep(0)
            trying.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await trying
            task.cancel()


async def test_without_a_server_nothing_is_learned() -> None:
    ports = OpenPorts(host=LOOPBACK)
    with pytest.raises(Broken, match="no STUN server"):
        await ports.learn([])
    ports.close()
