"""Sessions of a head with an rpc-server as llama.cpp has them, in which one thing is broken after the other.

A good frame must pass, and what passes is judged anew (rpc_oracle.py). Commands come from the table of
meshd/rpc: one without a composer here is sent as bytes of its least size.
"""

import random
import struct
from collections import Counter, deque

from meshd.base.errors import RemoteProtocolError
from meshd.rpc import protocol as rpc
from meshd.rpc.firewall import Firewall

from tests.fuzz.rpc_bodies import MOST_ASKED, ROOM, Bodies
from tests.fuzz.rpc_oracle import FEATURES, Broken, World

FRAMES = 40  # of a session, unless it ends before
BROKEN = (0.03, 0.15, 0.5)  # of them; one of these for a session
LENT = 1 << 33
_BUFFERS = 60
_NUMBERS = (0, 1, 2, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 44, 1 << 62)
_NUMBERS64 = (*_NUMBERS, 1 << 63, (1 << 64) - 1, (1 << 64) - 16)
# of an rpc_tensor: where a number begins, and its bytes
_FIELDS = (
    (0, 8),
    (8, 4),
    (12, 8),
    *((20 + 4 * at, 4) for at in range(8)),
    (52, 4),
    (56, 4),
    *((124 + 8 * at, 8) for at in range(11)),
    (212, 8),
    (220, 8),
)
_TENSORS_AT = {  # where the tensors of a body are
    **dict.fromkeys(
        (
            rpc.SET_TENSOR,
            rpc.SET_TENSOR_HASH,
            rpc.GET_TENSOR,
            rpc.INIT_TENSOR,
            rpc.MEMSET_TENSOR,
            rpc.PUSH_TENSOR,
            rpc.TAKE_TENSOR,
            rpc.SET_TENSOR_F16,
            rpc.GET_TENSOR_F16,
            rpc.PUSH_TENSOR_F16,
            rpc.TAKE_TENSOR_F16,
        ),
        (0,),
    ),
    rpc.COPY_TENSOR: (0, 296),
    rpc.GET_ALLOC_SIZE: tuple(range(4, 4 + 11 * 296, 296)),
}


class Found(AssertionError):
    """A frame that passed and must not, or that must and did not."""


class Head:
    """One session: `run` says up to FRAMES frames. `counts` has what became of them."""

    def __init__(self, rng: random.Random, counts: Counter[str]) -> None:
        self._rng = rng
        self._counts = counts
        self._firewall = Firewall(memory=LENT)
        self._world = World(LENT)
        self._pending: deque[tuple[int, int, bytes]] = deque()  # command, bytes of the answer, its request
        offered = rng.choice((0, FEATURES, FEATURES, rng.randrange(FEATURES + 1)))
        self._bodies = Bodies(rng, self._world, offered=offered)
        self._passed = bytearray()
        self._flowing = 0
        self._broken = rng.choice(BROKEN)
        self._misheard = False
        self._lost = False  # a frame lied about its size: what follows it is anything

    def run(self) -> int:
        """How many frames. Raises Found."""
        try:
            self._begin()
            for _ in range(self._rng.randint(1, FRAMES)):
                self._frame(self._command())
                while self._pending and self._rng.random() < 0.7:
                    self._answer()
        except RemoteProtocolError:
            self._counts["refused"] += 1
            if not self._misheard:
                self._stays_refused()
        finally:
            held = self._firewall.held_bytes
        if held > rpc.GRAPH_MOST_BYTES:
            raise Found(f"{held} bytes are held")
        return self._counts["frames"]

    def _command(self) -> int:
        """Mostly one that makes sense now."""
        number = self._rng.choice(_COMMANDS)
        for _ in range(12):
            if self._able(number) or self._rng.random() < 0.01:
                break
            number = self._rng.choice(_COMMANDS)
        return number

    def _begin(self) -> None:
        self._frame(rpc.HELLO, broken=False)
        self._answer()
        while self._pending:
            self._answer()
        for _ in range(self._rng.randint(0, 3)):
            self._frame(rpc.ALLOC_BUFFER, broken=False)
            self._answer()
            self._frame(rpc.BUFFER_GET_BASE, broken=False)
            self._answer()

    def _stays_refused(self) -> None:
        """Nothing goes on after a frame that was refused."""
        try:
            went = self._firewall.from_peer(rpc.REQUEST.pack(rpc.DEVICE_COUNT, 0))
        except RemoteProtocolError:
            return
        if len(went) and not self._flowing:
            raise Found("a frame passes behind one that was refused")

    # Saying.

    def _frame(self, number: int, *, broken: bool | None = None) -> None:
        body = self._bodies.of(number)
        good = self._able(number)
        if broken is None:
            broken = self._rng.random() < self._broken
        size = len(body)
        if broken:
            number, size = self._break(number, body)
        self._counts["frames"] += 1
        self._counts["broken"] += broken
        frame = rpc.REQUEST.pack(number, size) + body
        try:
            went = self._say(frame)
        except RemoteProtocolError as error:
            if good and not broken and not self._lost:
                name = rpc.COMMANDS[number].name
                raise Found(f"a good {name} was refused: {error.what}: {frame[:800].hex()}") from error
            raise
        self._judge(went)
        if good and not broken and not self._lost and len(went) < len(frame):
            raise Found(f"a good {rpc.COMMANDS[number].name} is held back")

    def _say(self, frame: bytes) -> bytes:
        if self._rng.random() < 0.8:
            return bytes(self._firewall.from_peer(frame))
        cut = self._rng.randrange(len(frame))
        return bytes(self._firewall.from_peer(frame[:cut])) + bytes(self._firewall.from_peer(frame[cut:]))

    def _judge(self, went: bytes) -> None:
        """What went on to the server, message by message. Raises Found."""
        self._passed += went
        while True:
            if self._flowing:
                gone = min(self._flowing, len(self._passed))
                del self._passed[:gone]
                self._flowing -= gone
            if self._flowing or len(self._passed) < rpc.REQUEST.size:
                return
            number, size = rpc.REQUEST.unpack_from(self._passed)
            command = rpc.COMMANDS.get(number)
            held = command.held if command is not None and command.held else size
            body = bytes(self._passed[9 : 9 + min(size, held)])
            if len(body) < min(size, held):
                if not self._lost:
                    raise Found(f"command {number} goes on before it is there")
                return
            try:
                self._world.judge(number, body, size)
            except Broken as error:
                shown = bytes(self._passed[:2000]).hex()
                raise Found(f"command {number} of {size} bytes passed, against: {error}: {shown}") from error
            assert command is not None
            self._counts[command.name] += 1
            if command.answer != rpc.NO_ANSWER:
                self._pending.append((number, self._length(command.answer, number, body), body))
            here = min(len(self._passed), 9 + size)
            del self._passed[:here]
            self._flowing = 9 + size - here

    @staticmethod
    def _length(answer: int, number: int, body: bytes) -> int:
        if answer != rpc.BY_REQUEST:
            return answer
        if number in (rpc.GET_TENSOR, rpc.GET_TENSOR_F16):
            return int.from_bytes(body[304:312], "little")
        return int.from_bytes(body[4:8] if number == rpc.SUPPORTED_OPS else body[:4], "little")

    def _able(self, number: int) -> bool:
        """Whether a good one can be composed now."""
        if rpc.COMMANDS[number].feature & ~self._world.features:
            return False
        has = any(start and room >= ROOM for start, room in self._world.buffers.values())
        name = rpc.COMMANDS[number].name
        if number in _TENSORS_AT and number != rpc.GET_ALLOC_SIZE:
            return (
                has
                and ("PUSH" not in name or bool(self._world.neighbours))
                and ("TAKE" not in name or self._world.named)
            )
        match number:
            case rpc.HELLO:
                return not self._world.greeted
            case rpc.BUFFER_GET_BASE | rpc.BUFFER_CLEAR | rpc.FREE_BUFFER:
                return bool(self._world.buffers)
            case rpc.SET_TENSOR_GGUF | rpc.GRAPH_COMPUTE | rpc.GET_ALLOC_SIZE:
                return has
            case rpc.GRAPH_RECOMPUTE:
                return bool(self._world.graphs)
            case rpc.PEER_SESSION:
                return not self._world.named
            case rpc.ALLOC_BUFFER | rpc.ALLOC_BUFFER_AS:
                held = sum(room for _, room in self._world.buffers.values()) + self._world.asked
                return len(self._world.buffers) < _BUFFERS and held + MOST_ASKED <= LENT
        return True

    # Breaking.

    def _break(self, number: int, body: bytearray) -> tuple[int, int]:
        """One thing of the frame; returns its command and the size that it says."""
        rng, size = self._rng, len(body)
        luck = rng.random()
        if luck < 0.6 and size:
            self._set_field(number, body)
        elif luck < 0.72:
            number = rng.choice((*_COMMANDS, 18, 63, 70, 71, 77, 255))
        elif luck < 0.82:
            if rng.random() < 0.5:
                del body[rng.randrange(size + 1) :]
            else:
                body += rng.randbytes(rng.choice((1, 4, 8, 296, 1000)))
            size = len(body)
        elif luck < 0.9:
            self._lost = True
            size = max(0, rng.choice((size - 1, size + 1, *_NUMBERS64)) & ((1 << 64) - 1))
        else:
            for _ in range(rng.randint(1, 4)):
                if body:
                    body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        return number, size

    def _set_field(self, number: int, body: bytearray) -> None:
        """A number of a tensor, of a graph's list or of the frame's end."""
        rng = self._rng
        tensors = _TENSORS_AT.get(number, ())
        if number == rpc.GRAPH_COMPUTE:
            (count,) = struct.unpack_from("<I", body, 4)
            tensors = tuple(range(12 + 8 * count, len(body), 296))
            if rng.random() < 0.2:
                self._put(body, rng.choice((0, 4, 8 + 8 * count)), 4)
                return
        if tensors and rng.random() < 0.75:
            at, width = rng.choice(_FIELDS)
            self._put(body, rng.choice(tensors) + at, width)
            return
        width = rng.choice((4, 8))
        place = rng.randrange(0, max(1, len(body) - width + 1), 4) if len(body) >= width else 0
        if tensors and len(tensors) == 1 and len(body) > 296:
            place = rng.choice(range(296, len(body), 4))
        self._put(body, place, width)

    def _put(self, body: bytearray, at: int, width: int) -> None:
        rng, top = self._rng, 1 << (8 * width)
        here = int.from_bytes(body[at : at + width], "little")
        if rng.random() < 0.5:
            value = here + rng.choice((-16, -4, -1, 1, 4, 16, 32, 1 << 32))
        else:
            values = [*_NUMBERS64, *(start + room for start, room in self._world.buffers.values())]
            value = rng.choice(values)
        if at + width <= len(body):
            body[at : at + width] = (value % top).to_bytes(width, "little")

    # Answering, as a server does.

    def _answer(self) -> None:
        if not self._pending:
            return
        number, length, request = self._pending.popleft()
        body = self._answer_body(number, length, request)
        if self._rng.random() < 0.01 and length not in rpc.TABLES:
            self._counts["broken answers"] += 1
            self._misheard = True  # it is the answers that pass no more
            self._firewall.to_peer(rpc.ANSWER.pack(len(body) + 1) + body + b"\0")
            raise Found(f"an answer to command {number} that is too long went on")
        self._firewall.to_peer(rpc.ANSWER.pack(len(body)) + body)
        self._learn(number, request, body, length)

    def _answer_body(self, number: int, length: int, request: bytes) -> bytes:
        rng = self._rng
        if length in rpc.TABLES:
            return bytes(rpc.TABLES[length][0] * rng.choice((0, 1, 2)))
        match number:
            case rpc.HELLO:
                both = rng.choice((FEATURES, FEATURES, rng.randrange(FEATURES + 1)))
                return b"\x07\0\0\0" + bytes(20) + rpc.EXTENSION_MAGIC + struct.pack("<H", both)
            case rpc.ALLOC_BUFFER:
                self._bodies.given += 1
                handle = 0xABC0 + (self._bodies.given << 16) if rng.random() < 0.95 else 0
                return struct.pack("<QQ", handle, int.from_bytes(request[4:12], "little") if handle else 0)
            case rpc.BUFFER_GET_BASE:
                handle = int.from_bytes(request[:8], "little")
                return struct.pack("<Q", handle if handle >= rpc.HANDLE_SPACE else handle << 8)
            case rpc.ALLOC_BUFFER_AS:
                return request[8:16] if rng.random() < 0.9 else bytes(8)
            case rpc.PEER_CHECK:
                return bytes([rng.random() < 0.8])
        return bytes(length)

    def _learn(self, number: int, request: bytes, body: bytes, length: int) -> None:
        world = self._world
        if length in rpc.TABLES:
            return
        match number:
            case rpc.HELLO:
                theirs = int.from_bytes(body[26:28], "little")
                mine = (
                    int.from_bytes(request[22:24], "little") if request[20:22] == rpc.EXTENSION_MAGIC else 0
                )
                world.features = mine & theirs
                tables = []
                if world.features & rpc.FEATURE_INFO:
                    tables.append((rpc.HELLO, rpc.DEVICES, b""))
                    if world.features & rpc.FEATURE_OPS:
                        tables.append((rpc.HELLO, rpc.WEIGHT_OPS, b""))
                self._pending.extendleft(reversed(tables))
            case rpc.ALLOC_BUFFER:
                handle, size = struct.unpack("<QQ", body)
                world.asked -= int.from_bytes(request[4:12], "little")
                world.asked_count -= 1
                if handle:
                    world.buffers[handle] = (0, size)
            case rpc.BUFFER_GET_BASE:
                handle, (start,) = int.from_bytes(request[:8], "little"), struct.unpack("<Q", body)
                if handle in world.buffers:
                    world.buffers[handle] = (start, world.buffers[handle][1])
            case rpc.ALLOC_BUFFER_AS:
                handle = int.from_bytes(request[16:24], "little")
                if not any(body) and handle in world.buffers:
                    world.forget(handle)
            case rpc.PEER_CHECK:
                neighbour = int.from_bytes(request[:4], "little")
                (world.neighbours.add if body[0] else world.neighbours.discard)(neighbour)


# HELLO and FREE_BUFFER seldom: the one ends the session, the other what there is to break.
_COMMANDS = tuple(
    number
    for number in rpc.COMMANDS
    for _ in range(1 if number in (rpc.HELLO, rpc.FREE_BUFFER, rpc.PEER_SESSION) else 4)
)
