"""A STUN server with two addresses for the bench: RFC 8489 binding over UDP and TCP, RFC 5780 over UDP.

    stun_server.py ADDRESS OTHER-ADDRESS

It listens on ports 3478 and 3479 of both, prints a line when it does, and ends with its standard input. It
is written on its own on purpose: a mistake in meshd's codec would not be answered by the same mistake here.
"""

import ipaddress
import select
import socket
import struct
import sys
from dataclasses import dataclass

PORTS = (3478, 3479)
COOKIE = 0x2112A442
BINDING, ANSWER = 0x0001, 0x0101
CHANGE_REQUEST, RESPONSE_ORIGIN, OTHER_ADDRESS = 0x0003, 0x802B, 0x802C
MAPPED, XOR_MAPPED, SOFTWARE = 0x0001, 0x0020, 0x8022
CHANGE_ADDRESS, CHANGE_PORT = 0x04, 0x02
MAX_CLIENTS = 256

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Question:
    """A binding request."""

    transaction: bytes
    change: int


def parse(data: bytes) -> Question | None:
    """None if it is no binding request."""
    if len(data) < 20:
        return None
    kind, length, cookie = struct.unpack_from("!HHI", data)
    if kind != BINDING or cookie != COOKIE or length % 4 or len(data) < 20 + length:
        return None
    change, place = 0, 20
    while place + 4 <= 20 + length:
        attribute, size = struct.unpack_from("!HH", data, place)
        if attribute == CHANGE_REQUEST and size == 4:
            change = data[place + 7]
        place += 4 + (size + 3) // 4 * 4
    return Question(data[8:20], change)


def answer(question: Question, seen: Place, here: Place, other: Place) -> bytes:
    """Tell the asker how it looks from here, and where else this server lives."""
    attributes = (
        _address(XOR_MAPPED, seen, question.transaction)
        + _address(MAPPED, seen, b"")
        + _address(RESPONSE_ORIGIN, here, b"")
        + _address(OTHER_ADDRESS, other, b"")
    )
    return struct.pack("!HHI", ANSWER, len(attributes), COOKIE) + question.transaction + attributes


def _address(attribute: int, place: Place, transaction: bytes) -> bytes:
    host, port = ipaddress.ip_address(place[0]), place[1]
    packed = host.packed
    if transaction:
        mask = struct.pack("!I", COOKIE) + transaction
        packed = bytes(one ^ two for one, two in zip(packed, mask, strict=False))
        port ^= COOKIE >> 16
    value = struct.pack("!xBH", 1 if host.version == 4 else 2, port) + packed
    return struct.pack("!HH", attribute, len(value)) + value


class Server:
    """Four UDP and four TCP sockets, one thread."""

    def __init__(self, addresses: tuple[str, str]) -> None:
        self._addresses = addresses
        family = socket.AF_INET6 if ":" in addresses[0] else socket.AF_INET
        self._udp: dict[Place, socket.socket] = {}
        self._listening: list[socket.socket] = []
        self._clients: list[socket.socket] = []
        for host in addresses:
            for port in PORTS:
                udp = socket.socket(family, socket.SOCK_DGRAM)
                udp.bind((host, port))
                self._udp[host, port] = udp
                tcp = socket.socket(family, socket.SOCK_STREAM)
                tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tcp.bind((host, port))
                tcp.listen(64)
                self._listening.append(tcp)

    def _other(self, here: Place) -> Place:
        host, port = here
        first, second = self._addresses
        return (second if host == first else first), (PORTS[1] if port == PORTS[0] else PORTS[0])

    def serve(self) -> None:
        """Until standard input ends."""
        while True:
            stdin: list[socket.socket | int] = [0]
            ready, _, _ = select.select(
                [*stdin, *self._udp.values(), *self._listening, *self._clients], [], []
            )
            for one in ready:
                if isinstance(one, int):
                    return
                if one in self._listening:
                    self._clients.append(one.accept()[0])
                    if len(self._clients) > MAX_CLIENTS:
                        self._clients.pop(0).close()
                elif one in self._clients:
                    self._answer_stream(one)
                else:
                    self._answer_datagram(one)

    def _answer_datagram(self, udp: socket.socket) -> None:
        data, seen = udp.recvfrom(2048)
        question = parse(data)
        if question is None:
            return
        host, port = udp.getsockname()[:2]
        other_host, other_port = self._other((host, port))
        source = (
            other_host if question.change & CHANGE_ADDRESS else host,
            other_port if question.change & CHANGE_PORT else port,
        )
        reply = answer(question, seen[:2], source, (other_host, other_port))
        self._udp[source].sendto(reply, seen)

    def _answer_stream(self, tcp: socket.socket) -> None:
        try:
            data = tcp.recv(2048)  # a question of 20 bytes comes in one piece, or not at all
            question = parse(data)
            if question is not None:
                here = tcp.getsockname()[:2]
                tcp.sendall(answer(question, tcp.getpeername()[:2], here, self._other(here)))
                return
        except OSError:
            pass
        self._clients.remove(tcp)
        tcp.close()


if __name__ == "__main__":
    server = Server((sys.argv[1], sys.argv[2]))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    server.serve()
