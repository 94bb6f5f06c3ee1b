"""What a trial of a device computes, from the header of the model."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.model.cache import ContextShape
from meshd.model.gguf import Header
from meshd.model.operations import USUAL, operations
from meshd.wire.lease import MAX_OPERATION_BYTES, Acquire, decode
from meshd.wire.limits import MAX_OPERATIONS

from tests.gguf_bytes import Plain, Tensor, gguf, language_model, parse

SHAPE = ContextShape(256)


def header(
    tensors: Mapping[str, tuple[tuple[int, ...], str]] | None = None, name: str = "llama", **keys: Plain
) -> Header:
    extra = {f"{name}.{key.replace('__', '.')}": value for key, value in keys.items()}
    metadata, usual = language_model(architecture=name, layers=2, width=256, tied=False, extra=extra)
    more = [Tensor(key, dims, kind) for key, (dims, kind) in (tensors or {}).items()]
    return parse(gguf(metadata, [*usual, *more]))


def test_a_dense_model() -> None:
    matrices = {
        "blk.0.ffn_gate.weight": ((256, 512), "q4_0"),
        "blk.0.ffn_down.weight": ((512, 256), "q6_k"),
        "blk.1.ffn_down.weight": ((512, 256), "q6_k"),
    }
    assert operations([header(matrices, rope__dimension_count=64)], SHAPE) == (
        "mul_mat:q8_0:256",
        "mul_mat:f32:256",
        "mul_mat:q4_0:256",
        "mul_mat:q6_k:512",
        "rms_norm:256",
        "glu:512",
        "sums:256",
        "get_rows:f32:256",
        "rope:64:4:64",
        "flash_attn:f16:f16:64:64:4:2",
        "attention:f16:f16:64:64:4:2",
        "set_rows:f16:128",
    )


def test_the_cache_is_that_of_the_context() -> None:
    shape = ContextShape(256, key_type="q8_0", value_type="q4_0")
    words = operations([header()], shape)
    assert {"flash_attn:q8_0:q4_0:64:64:4:2", "set_rows:q8_0:128", "set_rows:q4_0:128"} <= set(words)
    assert not any(word.startswith("attention:") for word in words)  # llama.cpp does not make it so
    words = operations([header()], ContextShape(256, flash_attention=False))
    assert "attention:f16:f16:64:64:4:2" in words
    assert not any(word.startswith("flash_attn:") for word in words)


def test_no_rope_no_gate_and_norms_with_a_bias() -> None:
    words = operations([header({"blk.0.attn_norm.bias": ((256,), "f32")})], SHAPE)
    assert {"norm:256", "activation:512"} <= set(words)
    assert not any(word.startswith(("rope:", "glu:", "rms_norm:")) for word in words)


def test_a_mixture_of_experts() -> None:
    experts = {"blk.0.ffn_gate_exps.weight": ((256, 64, 8), "q4_k")}
    words = operations(
        [header(experts, expert_count=8, expert_used_count=2, expert_feed_forward_length=64)], SHAPE
    )
    assert {"mul_mat_id:q4_k:256:8:2", "route:8:2", "glu:64"} <= set(words)


@pytest.mark.parametrize(
    ("name", "keys", "expected"),
    [
        (
            "mamba",
            {"ssm__conv_kernel": 4, "ssm__inner_size": 512, "ssm__state_size": 16},
            {"ssm_conv:4:512", "ssm_scan:16:1:512:1"},
        ),
        (
            "mamba2",
            {
                "ssm__conv_kernel": 4,
                "ssm__inner_size": 512,
                "ssm__state_size": 128,
                "ssm__group_count": 2,
                "ssm__time_step_rank": 8,
            },
            {"ssm_conv:4:1024", "ssm_scan:128:64:8:2"},
        ),
        (
            "qwen3next",
            {
                "ssm__conv_kernel": 4,
                "ssm__inner_size": 512,
                "ssm__state_size": 128,
                "ssm__group_count": 2,
                "ssm__time_step_rank": 4,
            },
            {"ssm_conv:4:1024", "delta:128:2:4"},
        ),
        ("rwkv7", {"wkv__head_size": 64}, {"wkv7:64:4"}),
        ("lfm2", {"shortconv__l_cache": 3}, {"ssm_conv:3:256"}),
    ],
)
def test_recurrent_models(name: str, keys: Mapping[str, Plain], expected: set[str]) -> None:
    words = operations([header(None, name, **keys)], SHAPE)
    recurrent = ("ssm_", "delta:", "wkv")
    assert {word for word in words if word.startswith(recurrent)} == expected


NUMBERS = st.integers(-(1 << 40), 1 << 62)
KEYS = [
    *("block_count", "embedding_length", "feed_forward_length", "attention.head_count", "expert_count"),
    *("attention.head_count_kv", "attention.key_length", "attention.value_length_swa", "rope.freq_base"),
    *("attention.key_length_swa", "rope.dimension_count", "expert_used_count", "wkv.head_size"),
    *("ssm.state_size", "ssm.inner_size", "ssm.group_count", "ssm.time_step_rank", "shortconv.l_cache"),
]


@given(
    st.sampled_from(["llama", "mamba2", "qwen3next", "rwkv6", "?"]),
    st.dictionaries(st.sampled_from(KEYS), NUMBERS | st.lists(NUMBERS, max_size=8).map(tuple)),
)
def test_whatever_a_header_says_can_be_asked(name: str, keys: dict[str, int | tuple[int, ...]]) -> None:
    metadata = {"general.architecture": name, **{f"{name}.{key}": value for key, value in keys.items()}}
    known = header()
    words = operations([Header(3, metadata, {}, known.tensors, 32, 0)], SHAPE)
    assert len(words) <= MAX_OPERATIONS
    acquire = Acquire(bytes(16), "m", "f", "pin", words)
    assert decode(acquire.encode()) == acquire


def test_the_usual_ones_fit() -> None:
    assert len(USUAL) <= MAX_OPERATIONS and all(len(word) <= MAX_OPERATION_BYTES for word in USUAL)
