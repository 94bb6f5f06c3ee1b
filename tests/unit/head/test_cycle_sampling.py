"""Whether requests take candidates from the worker that makes logits: from the load until a loss."""

from pathlib import Path

import pytest
from meshd.gateway.interface import ReadyReport
from meshd.model.device_sampling import FEW_TOKENS, DeviceSampling
from meshd.model.status import ModelState

from tests.sim.loop import until
from tests.unit.head.scene import Scene, scene
from tests.unit.head.test_leases import held
from tests.unit.model.test_device_sampling import SETTINGS

pytestmark = pytest.mark.virtual


def sampling_of(it: Scene) -> DeviceSampling | None:
    return it.serve.device_sampling


@pytest.mark.parametrize(
    ("output", "arguments", "expected"),
    [
        pytest.param("worker", (), True, id="worker"),
        pytest.param("worker", ("--spec-type", "ngram-mod"), False, id="the user's own drafts"),
        pytest.param("head", (), None, id="head"),
    ],
)
async def test_candidates_are_taken_where_a_worker_makes_the_logits(
    tmp_path: Path, output: str, arguments: tuple[str, ...], expected: bool | None
) -> None:
    async with scene(tmp_path, devices=("none",), output=output, llama_args=arguments) as it:
        it.worker("anna")
        ready = await held(it)
        assert sampling_of(it) is None
        ready.set_result(ReadyReport(True, "", 0.1, settings=SETTINGS))
        await it.until(ModelState.READY)
        sampling = sampling_of(it)
        assert (sampling.adds if sampling is not None else None) is expected
        if sampling is not None:
            assert sampling.is_refused({"backend_sampling": True})
            assert sampling.settings == SETTINGS
            assert sampling.vocabulary > 0
        it.llama.die("ended by SIGKILL")
        await until(lambda: sampling_of(it) is None)


@pytest.mark.parametrize("is_direct", [True, False])
async def test_short_requests_take_all_logits_past_the_link_alone(tmp_path: Path, is_direct: bool) -> None:
    async with scene(tmp_path, devices=("none",), output="worker") as it:
        it.worker("anna")
        ready = await held(it)
        it.bench.tunnels[-1].is_direct = is_direct
        ready.set_result(ReadyReport(True, "", 0.1, settings=SETTINGS))
        await it.until(ModelState.READY)
        sampling = sampling_of(it)
        assert sampling is not None
        assert bool(sampling.added_to({"max_tokens": FEW_TOKENS - 1})) is not is_direct
        assert sampling.added_to({"max_tokens": FEW_TOKENS})
