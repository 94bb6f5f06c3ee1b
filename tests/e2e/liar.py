"""A worker whose answers are wrong: a proxy before a real rpc-server damages one of them."""

import itertools
import random
import socket
import struct
from collections.abc import Callable
from functools import partial

from meshd.base.errors import RemoteProtocolError
from meshd.rpc.device_check import DeviceCheck

from tests.e2e.threaded_proxy import ThreadedProxy, Way

_SIZE = struct.Struct("<Q")  # before each answer: how many bytes it has
MOST = 1 << 63


def _flipped(rng: random.Random, data: bytes) -> bytes:
    wrong = bytearray(data)
    for _ in range(16):
        wrong[rng.randrange(len(wrong))] ^= 1 << rng.randrange(8)
    return bytes(wrong)


def _said(size: int, data: bytes) -> bytes:
    return _SIZE.pack(size) + data


Damage = Callable[[random.Random, bytes], bytes]
DAMAGES: dict[str, Damage] = {
    "longer": lambda rng, data: _said(len(data) + 8, data + rng.randbytes(8)),
    "shorter": lambda _rng, data: _said(max(len(data) - 1, 0), data[:-1]),
    "empty": lambda _rng, _data: _said(0, b""),
    "says it is huge": lambda _rng, data: _said(MOST, data),
    "says it is large": lambda _rng, data: _said(1 << 32, data),
    "zeros": lambda _rng, data: _said(len(data), bytes(len(data))),
    "ones": lambda _rng, data: _said(len(data), b"\xff" * len(data)),
    "random": lambda rng, data: _said(len(data), rng.randbytes(len(data))),
    "flipped": lambda rng, data: _said(len(data), _flipped(rng, data) if data else b""),
    "twice": lambda _rng, data: 2 * _said(len(data), data),
}


class Liar(ThreadedProxy):
    """Damages answer `number` (from 0) of each connection. A head inspects what comes of it."""

    def __init__(self, target_port: int, *, number: int, damage: Damage, seed: int) -> None:
        self._number, self._damage, self._seed = number, damage, seed
        self.lied = 0
        super().__init__(target_port, self._ways_of_one)

    def _ways_of_one(self) -> tuple[Way, Way]:
        return _pass_on, partial(self._lie, random.Random(self._seed))

    def _lie(self, rng: random.Random, far: socket.socket, near: socket.socket) -> None:
        check = DeviceCheck()
        for number in itertools.count():
            (size,) = _SIZE.unpack(_exactly(far, _SIZE.size))
            data = _exactly(far, size)
            said = _said(size, data)
            if number == self._number:
                self.lied += 1
                said = self._damage(rng, data)
            try:
                near.sendall(check.to_peer(said))
            except RemoteProtocolError:
                near.shutdown(socket.SHUT_RDWR)
                return


def _pass_on(near: socket.socket, far: socket.socket) -> None:
    while data := near.recv(1 << 16):
        far.sendall(data)


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)
