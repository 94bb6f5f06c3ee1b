"""STUN servers, a home router and neighbours in the network, each of which answers anything."""

import asyncio
import random
import socket
from collections.abc import Callable

import pytest
from meshd.base.errors import RemoteProtocolError
from meshd.link.net.stun import Question, ask_udp, bound_socket, tcp_mapping
from meshd.portmap.interface import GatewayRoute, HomeRouter, NotMapped
from meshd.portmap.pcp import NatPmpRouter, PcpRouter
from meshd.portmap.upnp import UpnpRouter
from meshd.rendezvous.book import MAX_BOOK_PEERS
from meshd.rendezvous.mdns_records import MAX_SEEN, MDNS_NONCE_BYTES, Neighbours, Sign
from meshd.wire.portmap import Granted, Wish
from meshd.wire.stun import Endpoint, StunKind, StunMessage, decode, encode

from tests.fuzz.mutate import flip
from tests.hostile.draw import HOSTS, Draw, Pool, drawn_seed
from tests.hostile.words import Speech, catalogue
from tests.unit.identity.cast import FOUNDER, GUEST, MESH, STRANGER
from tests.unit.portmap.gateways import HERE, Igd, Table, igd, listening, natpmp, pcp

ROUTE = GatewayRoute(HERE, HERE)
WISH = Wish(proto="tcp", internal_port=17430, external_port=17430, lifetime=7200)
ROUNDS = 60  # asked at once in each of them
AT_ONCE = 8
SECONDS = 0.3  # a server that says nothing that can be read is given up after that
SURE_SECONDS = 30.0  # one that answers rightly is not
STUN = next(word for word in catalogue() if word.kind is StunMessage)


def _rng() -> random.Random:
    return random.Random(drawn_seed())


# STUN.


def _stun_speech(rng: random.Random) -> Speech:
    """Made once: it takes so long that with a new one for each answer nearly all of them came too late."""
    return Speech(rng, Draw(rng, Pool()), [STUN])


def _stun_answers(rng: random.Random, speech: Speech, request: bytes) -> list[bytes]:
    """True ones, of other transactions, broken ones and any other message; many or none."""
    asked = decode(request)
    found = []
    for _ in range(rng.choice((0, 1, 3, 20))):
        good = encode(
            StunMessage(
                kind=StunKind.SUCCESS,
                transaction=asked.transaction if rng.random() < 0.7 else rng.randbytes(12),
                mapped=Endpoint(rng.choice(HOSTS), rng.randrange(65536)),
            )
        )
        luck = rng.random()
        found.append(
            good if luck < 0.3 else flip(rng, good, (request,)) if luck < 0.7 else speech.say(STUN.name)
        )
    return found


def test_a_stun_server_tells_an_address_or_nothing() -> None:
    rng = _rng()
    speech = _stun_speech(rng)

    async def ask(port: int) -> int:
        sock = bound_socket(socket.AF_INET, socket.SOCK_DGRAM, host=HERE)
        try:
            question = Question(server=Endpoint(HERE, port))
            answers = await ask_udp(sock, [question] * 4, seconds=SECONDS)
        finally:
            sock.close()
        return sum(answer is not None for answer in answers)

    async def main() -> None:
        told = 0
        async with listening(lambda data: _stun_answers(rng, speech, data)) as port:
            for _ in range(ROUNDS // 4):
                told += sum(await asyncio.gather(*(ask(port) for _ in range(AT_ONCE))))
        assert told, "no answer was taken: only the door is tested"

    asyncio.run(main())


def test_a_stun_server_over_tcp_is_hung_up_on() -> None:
    rng = _rng()
    speech = _stun_speech(rng)
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        serving.add(task)
        try:
            request = await reader.read(1500)
            for answer in _stun_answers(rng, speech, request):
                writer.write(answer)
            await writer.drain()
            if rng.random() < 0.5:
                await reader.read()
        except (OSError, RemoteProtocolError):
            pass
        finally:
            writer.close()
            serving.discard(task)

    async def main() -> None:
        server = await asyncio.start_server(serve, HERE, 0)
        async with server:
            place = Endpoint(HERE, server.sockets[0].getsockname()[1])
            for _ in range(ROUNDS):
                async with tcp_mapping(
                    0, [place], family=socket.AF_INET, seconds=SECONDS, grace=0
                ) as mapping:
                    assert len(mapping.answers) <= 1
            await asyncio.gather(*(task for task in serving if task))  # the client has hung up on each

    asyncio.run(main())


# A home router.


class _Moods:
    """The moods of what is near: each round of lies is followed by one of the truth."""

    lies = True


def _broken(
    rng: random.Random, answer: Callable[[bytes], list[bytes]], moods: _Moods
) -> Callable[[bytes], list[bytes]]:
    def answers(question: bytes) -> list[bytes]:
        good = answer(question)
        if not moods.lies:
            return good
        found = []
        for _ in range(rng.choice((1, 1, 2, 20))):
            luck = rng.random()
            if luck < 0.3:
                found += good
            elif luck < 0.9:
                found += [flip(rng, one, (question,)) for one in good]
            else:
                found.append(rng.randbytes(rng.choice((0, 1, 8, 60, 1400))))
        return found

    return answers


async def _try(router: HomeRouter, seconds: float) -> int:
    """Everything that is asked of a router; how often it answered so that it can be read."""
    held: list[Granted] = []

    async def all_of_it() -> None:
        await router.probe()
        held.append(await router.map(WISH))
        assert 0 < held[0].external_port < 65536
        await router.pulse(held)
        await router.unmap(held[0])

    try:
        async with asyncio.timeout(seconds):
            await all_of_it()
    except (NotMapped, TimeoutError):
        pass
    return len(held)


async def _rounds(make: Callable[[], HomeRouter], moods: _Moods) -> None:
    """Whatever it was told before, a node maps with a router that answers rightly."""
    for _ in range(ROUNDS // AT_ONCE):
        moods.lies = True
        await asyncio.gather(*(_try(make(), SECONDS) for _ in range(AT_ONCE)))
        moods.lies = False
        assert await _try(make(), SURE_SECONDS) == 1, "a good answer is not taken"


@pytest.mark.parametrize("language", ["pcp", "natpmp"])
async def test_a_router_maps_or_does_not(language: str) -> None:
    rng, table, moods = _rng(), Table(), _Moods()
    answer = pcp(table) if language == "pcp" else natpmp(table)
    async with listening(_broken(rng, answer, moods)) as port:

        def make() -> HomeRouter:
            if language == "pcp":
                return PcpRouter(ROUTE, secret=b"s" * 16, port=port)
            return NatPmpRouter(ROUTE, port=port)

        await _rounds(make, moods)


class _Lying(Igd):
    """A UPnP router whose HTTP, description and answers are broken in places."""

    rng = random.Random(1)
    moods = _Moods()

    def search_answer(self, data: bytes) -> list[bytes]:
        good = Igd.search_answer(self, data)
        is_good = not self.moods.lies or self.rng.random() < 0.8
        return good if is_good else [flip(self.rng, one, (data,)) for one in good]

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if not self.moods.lies or self.rng.random() < 0.6:
                await Igd.converse(self, reader, writer)
                return
            await reader.readuntil(b"\r\n\r\n")
            text = flip(self.rng, self.description.encode(), (b"<a>" * 500, b"\xff\xfe", b"&lol;"))
            size = self.rng.choice((len(text), len(text) + 1, 0, 1 << 40, -1))
            head = f"HTTP/1.1 {self.rng.choice((200, 500, 999))} X\r\nContent-Length: {size}\r\n\r\n".encode()
            writer.write(flip(self.rng, head, ()) + text)
            await writer.drain()
        except (OSError, EOFError, asyncio.LimitOverrunError):
            pass  # a node that has waited long enough hangs up, sometimes before it has asked
        finally:
            writer.close()


async def test_a_router_that_speaks_upnp_is_never_followed_elsewhere() -> None:
    moods = _Lying.moods = _Moods()
    _Lying.rng = _rng()
    router = _Lying(Table())
    async with igd(router) as port:

        def make() -> HomeRouter:
            return UpnpRouter(ROUTE, name="meshd", random_port=lambda: 5000, ssdp_port=port)

        await _rounds(make, moods)


# Neighbours.


def test_neighbours_tell_few_private_places_of_those_that_are_known() -> None:
    rng, neighbours = _rng(), Neighbours(MESH, FOUNDER.peer)
    known = (GUEST.peer, STRANGER.peer)
    neighbours.know(known)
    own = ("192.168.77.9", "fd00::9")
    refused = 0
    for number in range(5_000):
        who = rng.choice((FOUNDER, GUEST, STRANGER))
        text = Sign.of(
            MESH, who.peer, nonce=rng.randbytes(MDNS_NONCE_BYTES), udp_port=rng.randrange(1, 65536)
        ).encode()
        if rng.random() < 0.5:
            text = flip(rng, text, ())
        hosts = rng.choices((*HOSTS, "192.168.77.1", "\0", "x" * 99), k=rng.randrange(20))
        where = (rng.choice(("eth0", "wlan0")), f"name {rng.randrange(2 * MAX_SEEN)}")
        try:
            neighbours.saw(where, text, hosts=hosts, port=rng.randrange(65536), own=own, now=float(number))
        except RemoteProtocolError:
            refused += 1
        for peer, candidates in neighbours.tell(float(number)):
            assert peer in known
            assert all(one.is_private or one.is_link_local for one in candidates)
            assert not any(one.is_loopback for one in candidates)
        assert len(neighbours._seen) <= MAX_SEEN <= MAX_BOOK_PEERS * 4
    assert 0 < refused < 5_000
