"""A worker whose answers are wrong: llama-server ends with an error or answers, and never by a signal.

Wrong numbers in a tensor are not found: what a worker computes only it knows.
"""

import http.client
import itertools
import random
from collections.abc import Callable
from pathlib import Path

from meshd.rpc import mesh_protocol as wire

from tests.e2e.mesh_rig import CountedPair
from tests.e2e.mesh_server_scene import LOST, MARKS, ends_without_a_context, unready_head
from tests.e2e.models import smollm2
from tests.hostile.draw import drawn_seed
from tests.soak import counts

pytestmark = MARKS


def _flipped(rng: random.Random, data: bytes) -> bytes:
    wrong = bytearray(data)
    for _ in range(16 if data else 0):
        wrong[rng.randrange(len(wrong))] ^= 1 << rng.randrange(8)
    return bytes(wrong)


def _said(header: tuple[int, ...], data: bytes, size: int | None = None) -> bytes:
    _size, *rest = header
    return wire.HEADER.pack(len(data) if size is None else size, *rest) + data


Damage = Callable[[random.Random, tuple[int, ...], bytes], bytes]
DAMAGES: dict[str, Damage] = {
    "longer": lambda rng, header, data: _said(header, data + rng.randbytes(8)),
    "shorter": lambda _rng, header, data: _said(header, data[:-1]),
    "empty": lambda _rng, header, _data: _said(header, b""),
    "says it is huge": lambda _rng, header, data: _said(header, data, (1 << 32) - 1),
    "says it is large": lambda _rng, header, data: _said(header, data, wire.PIECE_BYTES),
    "zeros": lambda _rng, header, data: _said(header, bytes(len(data))),
    "ones": lambda _rng, header, data: _said(header, b"\xff" * len(data)),
    "random": lambda rng, header, data: _said(header, rng.randbytes(len(data))),
    "flipped": lambda rng, header, data: _said(header, _flipped(rng, data)),
    "flipped header": lambda rng, header, data: _flipped(rng, _said(header, b"")) + data,
    "twice": lambda _rng, header, data: 2 * _said(header, data),
}
ANSWERS = 12  # a load has fewer, and then each token one
DRAWN = counts(16, ANSWERS * len(DAMAGES))
# a WELCOME of anything, and one that is nearly right; a buffer that there may be; a result that never ends
ALWAYS = [(0, "random", 1), (0, "flipped", 1), (1, "ones", 1), (ANSWERS - 1, "says it is large", 1)]


class Liar:
    """Damages answer `number` (from 0) of a connection; PROGRESS is none."""

    def __init__(self, number: int, damage: Damage, seed: int) -> None:
        self._number, self._damage, self._rng = number, damage, random.Random(seed)
        self._seen = 0
        self.lied = False

    def change(self, said: bytes) -> bytes:
        """Change one message."""
        header = wire.HEADER.unpack_from(said)
        if header[1] == wire.PROGRESS:
            return said
        self._seen += 1
        if self._seen - 1 != self._number:
            return said
        self.lied = True
        return self._damage(self._rng, header, said[wire.HEADER.size :])


def test_wrong_answers_end_no_llama_server_by_a_signal(tmp_path: Path) -> None:
    rng = random.Random(drawn_seed())
    drawn = rng.sample(list(itertools.product(range(ANSWERS), DAMAGES)), DRAWN)
    for number, name, seed in [*ALWAYS, *((number, name, rng.randrange(1 << 30)) for number, name in drawn)]:
        print(f"answer {number}, {name}, seed {seed}")  # noqa: T201
        liar = Liar(number, DAMAGES[name], seed)
        with unready_head(tmp_path, CountedPair(change=liar.change), weights=[smollm2()]) as head:
            code = head.wait_ready_or_end()
            if code is None:
                try:
                    head.stream(tokens=ANSWERS)
                    code = head.process.poll()
                except (OSError, http.client.HTTPException):
                    code = head.wait_end()
            assert code in {None, LOST, *ends_without_a_context()}, head.output[-3000:]
            assert liar.lied
