"""Test what is timed and tried of a model: its own types and sizes, each kind of layer once."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.model.cache import ContextShape
from meshd.model.ggml import TENSOR_TYPE_NAMES
from meshd.model.gguf import Header, TensorInfo, Value
from meshd.model.layer_work import NEAR_CELLS, USUAL, LayerWork, layer_work, operations, unseen_cells
from meshd.wire.lease import MAX_OPERATION_BYTES, Acquire, decode
from meshd.wire.limits import MAX_OPERATIONS, MAX_TIMED, MAX_TIMED_BYTES

from tests.gguf_bytes import Plain, Tensor, gguf, language_model, parse

SHAPE = ContextShape(4096)
LLAMA: Mapping[str, Value] = {
    "general.architecture": "llama",
    "llama.block_count": 3,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 128,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.rope.dimension_count": 16,
}


def tensor(name: str, kind: str, *dims: int) -> TensorInfo:
    layout = TENSOR_TYPE_NAMES[kind]
    elements = 1
    for count in dims:
        elements *= count
    return TensorInfo(name, layout, dims, 0, elements // layout.block_elements * layout.block_bytes)


def block(number: int, down: str = "q4_0") -> list[TensorInfo]:
    return [
        tensor(f"blk.{number}.attn_norm.weight", "f32", 64),
        tensor(f"blk.{number}.attn_q.weight", "q4_0", 64, 64),
        tensor(f"blk.{number}.ffn_gate.weight", "q4_0", 64, 128),
        tensor(f"blk.{number}.ffn_down.weight", down, 128, 64),
    ]


def header(*tensors: TensorInfo, metadata: Mapping[str, Value] = LLAMA) -> Header:
    return Header(3, metadata, {}, tuple(tensors), 32, 0)


def work_of(*tensors: TensorInfo, metadata: Mapping[str, Value] = LLAMA, layers: int = 3) -> LayerWork:
    return layer_work([header(*tensors, metadata=metadata)], SHAPE, layers)


EMBEDDING = tensor("token_embd.weight", "q8_0", 64, 1000)


def test_layers_with_the_same_matrices_are_one_kind() -> None:
    work = work_of(EMBEDDING, *block(0), *block(1, "q8_0"), *block(2))
    assert work.kinds == (0, 1, 0) and work.scales == (1.0, 1.0, 1.0)
    first, second, output, near, far = work.texts
    assert first.startswith("2=mul_mat:q4_0:64:64,mul_mat:q4_0:64:128,mul_mat:q4_0:128:64,")
    assert second.startswith("1=") and "mul_mat:q8_0:128:64" in second
    for word in ("rms_norm:64", "rope:16:4:16", "set_rows:f16:32", "glu:128"):
        assert word in first.partition("=")[2].split(",")
    assert "flash_attn:f16:f16:16:16:4:2:256" in first
    assert (work.output, output) == (2, "1=mul_mat:q8_0:64:1000")
    assert (work.near, work.far) == (3, 4)
    assert near == "32=flash_attn:f16:f16:16:16:4:2:256" and far == "32=flash_attn:f16:f16:16:16:4:2:4096"


@pytest.mark.parametrize(("heads", "caches"), [(2, 32), (4, 32), (8, 16), (64, 2), (512, 1)])
def test_caches_together_are_more_than_a_processor_holds(heads: int, caches: int) -> None:
    """Test with 128 elements a head: 4096 cells take 2 MiB; at most 256 MiB are asked for, if two fit."""
    wide = {
        **LLAMA,
        "llama.embedding_length": 512 * 128,
        "llama.attention.head_count": 512,
        "llama.attention.head_count_kv": heads,
    }
    work = work_of(EMBEDDING, *block(0), *block(1), *block(2), metadata=wide)
    assert work.far is not None
    assert work.texts[work.far] == f"{caches}=flash_attn:f16:f16:128:128:512:{heads}:4096"


@pytest.mark.parametrize("tokens", [1, 2, 128, 155, 156, 512])
def test_the_last_cells_are_seen_by_the_last_tokens(tokens: int) -> None:
    """As the mask of mesh-server's attention has it."""
    hidden = [sum(cell > token + NEAR_CELLS - 156 for cell in range(NEAR_CELLS)) for token in range(tokens)]
    assert unseen_cells(tokens) == pytest.approx(sum(hidden) / tokens)


def test_the_output_is_its_own_matrix_where_there_is_one() -> None:
    work = work_of(EMBEDDING, *block(0), *block(1), *block(2), tensor("output.weight", "q6_k", 64, 1000))
    assert work.output is not None and work.texts[work.output] == "1=mul_mat:q6_k:64:1000"


def test_further_kinds_are_scaled_by_their_bytes() -> None:
    kinds = ["q4_0", "q4_0", "q4_0", "q8_0", "q8_0", "q5_0", "q5_0", "f16"]
    tensors = [one for number, kind in enumerate(kinds) for one in block(number, kind)]
    work = work_of(EMBEDDING, *tensors, metadata={**LLAMA, "llama.block_count": 8}, layers=8)
    assert len(work.texts) == 3 + 3
    assert work.scales[:7] == (1.0,) * 7 and work.scales[7] > 1.0


def test_experts_are_all_there_and_some_are_used() -> None:
    metadata = {**LLAMA, "llama.expert_count": 8, "llama.expert_used_count": 2}
    experts = tensor("blk.0.ffn_gate_exps.weight", "q4_0", 64, 128, 8)
    work = work_of(EMBEDDING, *block(0), experts, metadata=metadata, layers=1)
    assert "mul_mat_id:q4_0:64:128:8:2" in work.texts[0] and "route:8:2" in work.texts[0]


def test_a_layer_that_keeps_a_state_has_no_attention() -> None:
    metadata = {**LLAMA, "llama.ssm.state_size": 16, "llama.ssm.inner_size": 128, "llama.ssm.conv_kernel": 4}
    state = [tensor("blk.0.ssm_in.weight", "q4_0", 64, 256), tensor("blk.0.ssm_out.weight", "q4_0", 128, 64)]
    work = work_of(EMBEDDING, *state, *block(1), metadata=metadata, layers=2)
    recurrent, attended = (work.texts[kind] for kind in work.kinds)
    assert "ssm_scan" in recurrent and "flash_attn" not in recurrent
    assert "flash_attn" in attended and "ssm_scan" not in attended


def test_a_model_without_matrices_is_not_timed() -> None:
    assert work_of(EMBEDDING) == LayerWork((), (), ())


def test_what_is_asked_fits_the_wire() -> None:
    many = [tensor(f"blk.0.part{i}.weight", "q4_0", 64, 64) for i in range(200)]
    work = work_of(EMBEDDING, *many, layers=1)
    assert len(work.texts) <= MAX_TIMED and all(len(text) <= MAX_TIMED_BYTES for text in work.texts)


SMALL = ContextShape(256)


def written(
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
    assert operations([written(matrices, rope__dimension_count=64)], SMALL) == (
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
    words = operations([written()], shape)
    assert {"flash_attn:q8_0:q4_0:64:64:4:2", "set_rows:q8_0:128", "set_rows:q4_0:128"} <= set(words)
    assert not any(word.startswith("attention:") for word in words)  # llama.cpp does not make it so
    words = operations([written()], ContextShape(256, flash_attention=False))
    assert "attention:f16:f16:64:64:4:2" in words
    assert not any(word.startswith("flash_attn:") for word in words)


def test_no_rope_no_gate_and_norms_with_a_bias() -> None:
    words = operations([written({"blk.0.attn_norm.bias": ((256,), "f32")})], SMALL)
    assert {"norm:256", "activation:512"} <= set(words)
    assert not any(word.startswith(("rope:", "glu:", "rms_norm:")) for word in words)


def test_a_mixture_of_experts() -> None:
    experts = {"blk.0.ffn_gate_exps.weight": ((256, 64, 8), "q4_k")}
    words = operations(
        [written(experts, expert_count=8, expert_used_count=2, expert_feed_forward_length=64)], SMALL
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
    words = operations([written(None, name, **keys)], SMALL)
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
    known = written()
    words = operations([Header(3, metadata, {}, known.tensors, 32, 0)], SMALL)
    assert len(words) <= MAX_OPERATIONS
    acquire = Acquire(bytes(16), "m", "f", "pin", words)
    assert decode(acquire.encode()) == acquire


def test_the_usual_ones_fit() -> None:
    assert len(USUAL) <= MAX_OPERATIONS and all(len(word) <= MAX_OPERATION_BYTES for word in USUAL)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (SHAPE, {"flash_attn:f16:f16", "attention:f16:f16", "set_rows:f16:32"}),
        (replace(SHAPE, flash_attention=False), {"attention:f16:f16", "set_rows:f16:32"}),
        (replace(SHAPE, value_type="q8_0"), {"flash_attn:f16:q8_0", "set_rows:f16:32", "set_rows:q8_0:32"}),
        (
            replace(SHAPE, key_type="q8_0", flash_attention=False),
            {"attention:q8_0:f16", "set_rows:q8_0:32", "set_rows:f16:32"},
        ),
    ],
)
def test_attention_is_tried_as_its_cache_is_kept(shape: ContextShape, words: set[str]) -> None:
    found = set(operations([header(EMBEDDING, *block(0))], shape))
    parts = (word.split(":") for word in found)
    kept = {":".join(word[:3]) for word in parts if word[0] in ("flash_attn", "attention", "set_rows")}
    assert kept == words


@pytest.mark.parametrize(
    ("counts", "words"),
    [({}, "8:1:1"), ({"expert_count": 8, "expert_used_count": 2}, "8:8:2"), ({"expert_count": 8}, "8:8:1")],
)
def test_matrices_of_experts_are_tried_with_as_many_as_there_are(
    counts: Mapping[str, int], words: str
) -> None:
    known = {**LLAMA, **{f"llama.{key}": number for key, number in counts.items()}}
    experts = tensor("blk.0.ffn_up_exps.weight", "q4_0", 64, 8, 8)
    work = work_of(EMBEDDING, experts, *block(1), *block(2), metadata=known)
    found = {word for text in work.texts for word in text.partition("=")[2].split(",")}
    assert f"mul_mat_id:q4_0:64:{words}" in found
