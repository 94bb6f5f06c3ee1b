"""An rpc-server of the LAN that knows nothing of meshd (`--rpc`), beside a worker."""

from pathlib import Path

import pytest
from meshd.bench.llama import arguments_of
from meshd.build.interface import LLAMA_SERVER, RPC_SERVER

from tests.e2e.alone import alone
from tests.e2e.models import smollm2, stock
from tests.e2e.native_rig import Worker
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, child_pid, model_of, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

TOKENS = 24


def test_a_plain_rpc_server_takes_its_part(tmp_path: Path) -> None:
    """Its weights cross, those of the worker beside it do not, and the text is that of one node."""
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        with Worker(stock().binaries[RPC_SERVER], tmp_path) as plain:
            async with Fleet(tmp_path) as fleet:
                token, _ = await fleet.workers(smollm2())
                options = ("--rpc", plain.endpoint, "--device", "none")
                head = await fleet.head(smollm2(), *options, *SAME_THREADS, token=token)
                status = await fleet.ready(head)
                split = {part.node: part for part in model_of(status).split}
                lent = split[plain.endpoint]
                assert lent.layers > 0
                assert 0.99 * lent.bytes < model_of(status).weights_network_bytes <= lent.bytes
                assert model_of(status).weights_local_bytes > 0
                argv = arguments_of(child_pid(status, LLAMA_SERVER))
                assert argv[argv.index("-dev") + 1] == "MESH0,RPC0"
                assert await api_of(status).complete(PROMPT, TOKENS) == reference

    play(check())
