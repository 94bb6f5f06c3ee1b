"""A head that has only the header of its model, and the tensors of no layer: over real daemons."""

import asyncio
from pathlib import Path

import pytest
from meshd.model.gguf import read_header
from meshd.model.layers import is_of_layer
from meshd.model.piece_index import PIECE_BYTES

from tests.e2e.alone import alone
from tests.e2e.homes import NAME, Homes, connected
from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, model_of, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(600)]

TOKENS = 16
SERVED = f"mesh:{NAME}"


def least() -> int:
    """Bytes of the header, and of the tensors that belong to no layer."""
    data = smollm2().read_bytes()
    header = read_header(lambda at, n: data[at : at + n], size=len(data), label="smollm2")
    return header.data_offset + sum(one.size for one in header.tensors if not is_of_layer(one.name))


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("output", ["head", "worker"])
def test_it_serves_what_workers_have(tmp_path: Path, output: str) -> None:
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            homes = Homes(fleet, tmp_path)
            file = homes.has("one", smollm2())
            one = await homes.start("one", "--model", str(file))
            token = await one.token()
            await homes.start("two", "--model", str(homes.has("two", smollm2())), token=token)
            await connected(one, 1)
            words = ("--header-only", "--output-on", output, "--min-workers", "2", *SAME_THREADS)
            head = await homes.serve("head", SERVED, *words, token=token)
            status = await fleet.ready(head)
            assert await api_of(status).complete(PROMPT, TOKENS) == reference
            model = model_of(status)
            assert model.name == NAME and model.weights_network_bytes == 0
            assert {part.node for part in model.split if part.layers} == {"one", "two"}
            disk = on_disk(homes.cache("head") / "models")
            assert least() <= disk < least() + 4 * PIECE_BYTES

    play(check())
