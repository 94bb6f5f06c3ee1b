"""The trial of a device by the real program: right and wrong results, and the operations of real models."""

from collections.abc import Sequence

import pytest
from meshd.build.interface import RPC_SERVER, NativeInfo
from meshd.model.cache import ContextShape
from meshd.model.operations import USUAL, operations

from tests.e2e import random_models
from tests.e2e.gpus import BACKENDS, Gpu, gpu
from tests.e2e.models import header_of, patched, smollm2
from tests.e2e.trial_lines import trial

pytestmark = [pytest.mark.native, pytest.mark.timeout(900)]

SHAPE = ContextShape(1024)
ROUNDS = "mul_mat:q4_k:512"  # which the plain kernel rounds otherwise than the fast one


def verdicts(info: NativeInfo, device: str, words: Sequence[str]) -> set[str]:
    code, found = trial(info.binaries[RPC_SERVER], device, words)
    assert code == 0 and list(found) == list(words), found
    return {verdict for verdict, _ in found.values()}


@pytest.mark.parametrize("name", sorted(random_models.MODELS))
def test_what_a_model_needs_is_known_to_the_program(name: str) -> None:
    """On the processor, whose fast kernels are compared with its plain ones."""
    words = operations([header_of(random_models.random_model(name))], SHAPE)
    assert len(words) > 5
    assert verdicts(patched(), "CPU", words) == {"right"}


def test_real_weights_and_the_usual_ones() -> None:
    words = operations([header_of(smollm2())], SHAPE)
    assert {"mul_mat:q4_1:576", "rope:64:9:64", "flash_attn:f16:f16:64:64:9:3"} <= set(words)
    assert verdicts(patched(), "CPU", words) == {"right"}
    assert verdicts(patched(), "CPU", USUAL) == {"right"}


def test_results_are_compared() -> None:
    """With no tolerance, rounding is wrong, and operations without rounding are right."""
    program = patched().binaries[RPC_SERVER]
    code, found = trial(program, "CPU", [ROUNDS, "rms_norm:512"], "--try-tolerance", "0")
    verdict, (error, allowed) = found[ROUNDS][0], found[ROUNDS][1].split()
    assert (code, verdict, float(allowed)) == (2, "wrong", 0.0)
    assert 0.0 < float(error) < 1e-6
    assert found["rms_norm:512"][0] == "right"


@pytest.mark.parametrize(
    "word",
    [
        *(
            "nothing:1",
            "mul_mat",
            "mul_mat:q4_k",
            "mul_mat:q4_k:100",
            "mul_mat:nothing:256",
            "mul_mat:q8_k:256",
        ),
        *("mul_mat:f32:0", "mul_mat:f32:-1", "mul_mat:f32:999999", "mul_mat:f32:9999999999999999999999"),
        *("mul_mat:f32:64:1", "rope:64:1:65", "rope:64:1:3", "attention:f16:f16:64:64:3:2", "ssm_conv:1:8"),
        *("attention:f16:q8_0:64:64:2:2", "ssm_scan:16:64:3:2", "delta:64:2:3", "rms_norm:", "rms_norm:1x"),
        *("wkv7:262144:262144", "rope:262144:262144:2", "flash_attn:f16:f16:262144:262144:262144:262144", ""),
    ],
)
def test_what_makes_no_sense_is_unknown_and_no_crash(word: str) -> None:
    code, found = trial(patched().binaries[RPC_SERVER], "CPU", [word, "sums:64"])
    assert code == 0
    assert found.pop("sums:64")[0] == "right"
    assert found == ({word: ("unknown", "")} if word else {})


def test_a_device_that_is_not_there() -> None:
    assert trial(patched().binaries[RPC_SERVER], "GPU7", ["sums:64"]) == (1, {})


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gpu_computes_what_models_need(backend: str) -> None:
    """Vulkan on lavapipe as well, which is no GPU, but another implementation of all kernels."""
    found = gpu(backend)
    if isinstance(found, str):
        pytest.skip(found)
    assert isinstance(found, Gpu)
    code, _ = trial(found.native.binaries[RPC_SERVER], "none", ["sums:64"])
    assert code == 1
    headers = [header_of(random_models.random_model(name)) for name in random_models.MODELS]
    words = [word for header in headers for word in operations([header], SHAPE)]
    wanted = list(dict.fromkeys([*words, *USUAL]))
    assert verdicts(found.native, found.device.name, wanted) <= {"right", "lacks"}
