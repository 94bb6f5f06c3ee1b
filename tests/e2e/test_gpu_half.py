"""Half floats where the head's own first layers lie on a GPU: what leaves it is what it computed, rounded.

The other ways, with heads and workers on processors, are in test_mesh_server_half.py.
"""

from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from meshd.rpc import mesh_protocol as wire

from tests.e2e.gpus import BACKENDS, Gpu, gpu_or_skip, model
from tests.e2e.mesh_rig import CountedPair, MeshHead, MeshServer

pytestmark = [pytest.mark.native, pytest.mark.timeout(900)]

WIDTH = 256  # of the model's hidden state
PROMPT = list(range(1000, 1060))
TOKENS = 8

Floats = npt.NDArray[np.float32]
Writes = dict[tuple[int, int, int], list[bytes]]
"""Data by buffer, length of a row of half floats (0: none), and offset."""


@pytest.fixture(params=BACKENDS)
def card(request: pytest.FixtureRequest) -> Gpu:
    return gpu_or_skip(str(request.param))


def _written(folder: Path, card: Gpu, activations: str) -> Writes:
    """Return what a head with half of the layers on the card writes to a worker that has the others there."""
    writes: Writes = {}
    head_bytes = wire.MESSAGES[wire.WRITE].body.size

    def note(kind: int, body: bytes) -> None:
        if kind == wire.WRITE:
            buffer, row, offset = wire.MESSAGES[kind].body.unpack_from(body)
            writes.setdefault((buffer, row, offset), []).append(body[head_bytes:])

    pair = CountedPair(on_request=note)
    with (
        closing(pair),
        MeshServer(card.programs, folder, pair, extra=("--device", card.device.name)),
        MeshHead(
            card.programs,
            folder,
            model(),
            [pair],
            binary=card.llama_server,
            activations=activations,
            extra=("-dev", f"{card.device.name},MESH0", "-ts", "1,1"),
        ) as head,
    ):
        writes.clear()
        head.complete(PROMPT, tokens=TOKENS)
    return writes


def _values(halves: bytes) -> Floats:
    """Half rows are as docs/native-protocol.md says: of each row its exponent, and its values."""
    rows = np.frombuffer(halves, dtype=np.uint16).reshape(-1, 1 + WIDTH)
    return np.ldexp(rows[:, 1:].view(np.float16).astype(np.float32), rows[:, :1].astype(np.int32))


def test_what_leaves_a_card_is_rounded_and_nothing_else(tmp_path: Path, card: Gpu) -> None:
    halves, floats = _written(tmp_path, card, "f16"), _written(tmp_path, card, "f32")
    assert {row for _, row, _ in floats} == {0}
    states = {(buffer, at): data[0] for (buffer, row, at), data in halves.items() if row == WIDTH}
    prompt = {place: _values(data) for place, data in states.items() if len(_values(data)) == len(PROMPT)}
    assert prompt
    assert sum(len(data) for (_, row, _), data in halves.items() if row) >= TOKENS
    for (buffer, at), rounded in prompt.items():
        exact = np.frombuffer(floats[buffer, 0, at][0], dtype=np.float32).reshape(-1, WIDTH)
        assert np.abs(exact).max() > 0
        assert np.allclose(rounded, exact, rtol=2**-11, atol=2**-24)
