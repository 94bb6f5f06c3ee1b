"""Cache sizes, against figures of llama-server's own log where there are some."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.model import architectures
from meshd.model.cache import ContextShape, model_cache
from meshd.model.gguf import Header

from tests.gguf_bytes import Plain, gguf, parse

MIB = 1 << 20


def _layers(architecture: str, layers: int, shape: ContextShape, **keys: Plain) -> list[int]:
    cache = model_cache(_header(architecture, layers, **keys), layers)
    assert cache.exact
    return list(cache.layer_bytes(shape))


def _header(architecture: str, layers: int, **keys: Plain) -> Header:
    metadata: dict[str, Plain] = {"general.architecture": architecture, f"{architecture}.block_count": layers}
    for key, item in keys.items():
        metadata[f"{architecture}.{key.replace('__', '.')}"] = item
    return parse(gguf(metadata))


SMOL: dict[str, Plain] = {"embedding_length": 576, "attention__head_count": 9, "attention__head_count_kv": 3}


def test_smollm2_as_logged() -> None:
    assert sum(_layers("llama", 30, ContextShape(8192), **SMOL)) == 180 * MIB
    assert sum(_layers("llama", 30, ContextShape(2048, micro_batch=128), **SMOL)) == 45 * MIB
    # -c 300 -np 2: 512 cells are divided into two streams of 256
    assert sum(_layers("llama", 30, ContextShape(300, parallel=2), **SMOL)) == int(11.25 * MIB)


def test_cells_are_padded() -> None:
    assert ContextShape(1).cells == 256
    assert ContextShape(257).cells == 512
    assert ContextShape(1000, parallel=3).cells == 512
    assert ContextShape(1000, parallel=3, unified=True).cells == 1024
    assert ContextShape(1000, parallel=3, unified=True).streams == 1


def test_a_shape_for_other_answers() -> None:
    four = ContextShape(1000).of(4, 1000)
    assert (four.tokens, four.cells, four.streams) == (4096, 1024, 4)
    assert not four.is_shared
    assert four.of(1, 1000) == ContextShape(1000)
    shared = ContextShape(1000, parallel=2, unified=True)
    assert shared.is_shared
    assert shared.of(4, 1000) == ContextShape(1000, parallel=4, unified=True)


def test_quantised_caches_are_smaller() -> None:
    shape = ContextShape(8192, key_type="q8_0", value_type="q4_0")
    per_token = (192 // 32) * (34 + 18)
    assert _layers("llama", 30, shape, **SMOL) == [8192 * per_token] * 30


def test_heads_may_differ_by_layer() -> None:
    keys: dict[str, Plain] = {
        "embedding_length": 64,
        "attention__head_count": [4, 4, 4],
        "attention__head_count_kv": [1, 2, 4],
    }
    assert _layers("openelm", 3, ContextShape(256), **keys) == [256 * 16 * 2 * 2 * n for n in (1, 2, 4)]
    # without flash attention V is as wide as in the widest layer
    off = ContextShape(256, flash_attention=False)
    assert _layers("openelm", 3, off, **keys) == [256 * 16 * 2 * (n + 4) for n in (1, 2, 4)]


def test_key_and_value_lengths_may_differ_from_the_head_size() -> None:
    keys: dict[str, Plain] = {**SMOL, "attention__key_length": 128, "attention__value_length": 100}
    assert _layers("qwen3", 2, ContextShape(256), **keys) == [256 * 3 * (128 + 100) * 2] * 2


def test_gpt_oss_20b_as_logged() -> None:
    keys: dict[str, Plain] = {
        "embedding_length": 2880,
        "attention__head_count": 64,
        "attention__head_count_kv": 8,
        "attention__key_length": 64,
        "attention__value_length": 64,
        "attention__sliding_window": 128,
    }
    layers = _layers("gpt-oss", 24, ContextShape(8192), **keys)
    assert sum(layers[1::2]) == 192 * MIB  # 8192 cells, 12 layers
    assert sum(layers[0::2]) == 18 * MIB  # 768 cells: 128 + 512, padded
    full = _layers("gpt-oss", 24, ContextShape(8192, full_windows=True), **keys)
    assert sum(full) == 2 * 192 * MIB
    unified = ContextShape(8192, parallel=4, unified=True)
    assert unified.window_cells(128) == 1024  # 4 x 128 + 512


def _windowed(architecture: str, layers: int, **keys: Plain) -> list[bool]:
    header = _header(architecture, layers, **{**SMOL, **keys})
    return [bool(layer.window) for layer in model_cache(header, layers).layers]


def test_patterns_of_windows() -> None:
    some: dict[str, Plain] = {"attention__sliding_window": 1024}
    assert _windowed("gemma2", 4) == [True, False, True, False]
    assert _windowed("gemma3", 7, **some) == [True] * 5 + [False, True]
    assert _windowed("gemma3", 2) == [False, False]
    assert _windowed("cohere2moe", 5, **some) == [False, True, True, True, False]
    assert _windowed("llama4", 4) == [True, True, True, False]
    assert _windowed("llama4", 4, attention__sliding_window=0) == [False] * 4
    assert _windowed("exaone4", 4, **some) == [False] * 4
    assert _windowed("exaone4", 64, **some) == [True, True, True, False] * 16
    assert _windowed("phi3", 2, **some) == [False, False]
    assert _windowed("gemma3", 4, attention__sliding_window_pattern=2, **some) == [True, False, True, False]
    listed: list[bool] = [True, False, False, True]
    assert _windowed("mimo2", 4, attention__sliding_window_pattern=listed, **some) == listed
    assert model_cache(_header("mimo2", 4, **{**SMOL, **some}), 4).exact is False  # the list is missing


def test_the_fixed_window_of_llama4_is_not_the_files() -> None:
    header = _header("llama4", 4, **{**SMOL, "attention__sliding_window": 77})
    assert model_cache(header, 4).layers[0].window == 8192


def test_later_layers_of_gemma_share_caches() -> None:
    some: dict[str, Plain] = {**SMOL, "attention__sliding_window": 512}
    used = [bool(size) for size in _layers("gemma3n", 35, ContextShape(512), **some)]
    assert used == [True] * 20 + [False] * 15
    listed: Plain = [True, True, False, True, True, False]
    shared = _layers(
        "gemma4", 6, ContextShape(512), **some, attention__sliding_window_pattern=listed,
        attention__shared_kv_layers=2, attention__key_length_swa=32, attention__value_length_swa=32,
    )  # fmt: skip
    assert shared == [512 * 3 * 64 * 2, 512 * 3 * 64 * 2, 512 * 3 * 128 * 2, 512 * 3 * 64 * 2, 0, 0]


def test_mla_keeps_keys_only() -> None:
    keys: dict[str, Plain] = {
        "embedding_length": 2048,
        "attention__head_count": 16,
        "attention__head_count_kv": 1,
        "attention__key_length": 576,
        "attention__value_length": 512,
        "attention__key_length_mla": 192,
        "attention__value_length_mla": 128,
    }
    assert _layers("deepseek2", 27, ContextShape(4096), **keys) == [4096 * 576 * 2] * 27


def test_prediction_layers_have_no_cache() -> None:
    layers = _layers("glm4moe", 4, ContextShape(256), **SMOL, nextn_predict_layers=1)
    assert layers[3] == 0
    assert all(layers[:3])


def test_states_of_recurrent_layers() -> None:
    keys: dict[str, Plain] = {
        "embedding_length": 768,
        "ssm__conv_kernel": 4,
        "ssm__inner_size": 1536,
        "ssm__state_size": 16,
        "ssm__group_count": 9,
    }
    state = 3 * 1536 + 16 * 1536
    assert _layers("mamba", 2, ContextShape(4096, parallel=2), **keys) == [2 * 4 * state] * 2
    grouped = 3 * (1536 + 2 * 9 * 16) + 16 * 1536
    assert _layers("mamba2", 2, ContextShape(512), **keys) == [4 * grouped] * 2
    rwkv: dict[str, Plain] = {"embedding_length": 2048, "wkv__head_size": 64}
    assert _layers("rwkv6", 1, ContextShape(512), **rwkv) == [4 * (2 * 2048 + 2048 * 64)]


def test_hybrids_have_a_cache_or_a_state() -> None:
    mixed: dict[str, Plain] = {
        "embedding_length": 64,
        "attention__head_count": 4,
        "attention__head_count_kv": [0, 2, 0],
        "shortconv__l_cache": 3,
    }
    kept, state = 256 * 2 * 16 * 2 * 2, 4 * 64 * 2
    assert _layers("lfm2", 3, ContextShape(256), **mixed) == [state, kept, state]
    ssm: dict[str, Plain] = {
        **SMOL,
        "ssm__conv_kernel": 4,
        "ssm__inner_size": 64,
        "ssm__state_size": 16,
        "ssm__group_count": 2,
    }
    state, kept = 4 * (3 * (64 + 2 * 2 * 16) + 16 * 64), 256 * 3 * 64 * 2 * 2
    assert _layers("qwen3next", 5, ContextShape(256), **ssm) == [state, state, state, kept, state]
    nextn = _layers("qwen35", 5, ContextShape(256), **ssm, nextn_predict_layers=1)
    assert nextn == [state, state, state, kept, 0]
    assert _layers("falcon-h1", 2, ContextShape(256), **ssm) == [kept + state] * 2
    blocks: dict[str, Plain] = {
        **ssm, "attention__head_count_kv": [0, 3, 0], "feed_forward_length": [0, 0, 99],
    }  # fmt: skip
    assert _layers("nemotron_h", 3, ContextShape(256), **blocks) == [state, kept, 0]


def test_encoders_have_no_cache() -> None:
    assert _layers("bert", 3, ContextShape(512), **SMOL) == [0, 0, 0]


def test_an_unknown_architecture_is_bounded_and_marked() -> None:
    known = sum(_layers("llama", 6, ContextShape(4096), **SMOL))
    extra: dict[str, Plain] = {
        **SMOL,
        "attention__indexer__key_length": 128,
        "ssm__inner_size": 10,
        "ssm__state_size": 10,
    }
    cache = model_cache(_header("brand-new", 6, **extra), 6)
    assert not cache.exact
    assert sum(cache.layer_bytes(ContextShape(4096))) == known + 6 * (4096 * 128 * 2 + 4 * 100)


@pytest.mark.parametrize("architecture", sorted(architectures.WINDOWED))
def test_a_windowed_model_never_needs_more_than_its_bound(architecture: str) -> None:
    keys: dict[str, Plain] = {**SMOL, "attention__sliding_window": 300}
    exact = model_cache(_header(architecture, 8, **keys), 8).layer_bytes(ContextShape(4096))
    bound = model_cache(_header("brand-new", 8, **keys), 8).layer_bytes(ContextShape(4096))
    assert all(size <= most for size, most in zip(exact, bound, strict=True))


def test_no_architecture_is_in_two_tables() -> None:
    tables = [
        architectures.PLAIN,
        architectures.NO_CACHE,
        architectures.RECURRENT,
        architectures.HYBRID_BY_HEADS,
        architectures.HYBRID_BY_INTERVAL,
        architectures.HYBRID_BOTH,
        frozenset(architectures.WINDOWED),
    ]
    assert sum(map(len, tables)) == len(frozenset().union(*tables))


hostile = st.one_of(
    st.integers(0, (1 << 32) - 1),
    st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=5),
    st.text(max_size=3),
    st.floats(allow_nan=True, width=32),
    st.booleans(),
)
every = sorted(
    architectures.PLAIN
    | architectures.RECURRENT
    | architectures.HYBRID_BY_HEADS
    | architectures.HYBRID_BY_INTERVAL
    | architectures.HYBRID_BOTH
    | frozenset(architectures.WINDOWED)
    | {"x"}
)
names = [
    "embedding_length",
    "attention__head_count",
    "attention__head_count_kv",
    "attention__key_length",
    "nextn_predict_layers",
    "attention__sliding_window",
    "attention__sliding_window_pattern",
    "full_attention_interval",
    "ssm__inner_size",
    "attention__recurrent_layers",
    "feed_forward_length",
    "attention__shared_kv_layers",
    "wkv__head_size",
    "shortconv__l_cache",
]


@given(st.sampled_from(every), st.dictionaries(st.sampled_from(names), hostile), st.integers(1, 12))
def test_any_metadata_gives_sizes(architecture: str, keys: dict[str, Plain], layers: int) -> None:
    cache = model_cache(_header(architecture, layers, **keys), layers)
    sizes = cache.layer_bytes(ContextShape(512))
    assert len(sizes) == layers
    assert all(size >= 0 for size in sizes)


@pytest.mark.parametrize(
    ("shape", "drafted", "outputs"),
    [
        (ContextShape(1000), 0, 1),
        (ContextShape(1000, drafted=5), 5, 6),
        (ContextShape(1000, parallel=4, drafted=5, batch=24), 5, 24),
        (ContextShape(1000, parallel=4, drafted=5, batch=23), 4, 23),
        (ContextShape(1000, parallel=4, drafted=5, batch=8), 1, 8),
        (ContextShape(1000, parallel=4, drafted=5, batch=4), 0, 4),
        (ContextShape(1000, parallel=4, drafted=5, batch=3), 0, 3),
    ],
)
def test_drafts_fit_into_a_batch(shape: ContextShape, drafted: int, outputs: int) -> None:
    assert (shape.most_drafted, shape.outputs) == (drafted, outputs)


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (ContextShape(8192), "8192 tokens"),
        (ContextShape(8192, parallel=2), "2 x 4096 tokens"),
        (ContextShape(8192, parallel=2, unified=True), "8192 tokens"),
    ],
)
def test_a_context_in_words(shape: ContextShape, text: str) -> None:
    assert shape.text == text


def test_a_step_is_as_large_as_the_smallest_of_its_bounds() -> None:
    assert ContextShape(100).step_tokens == 100
    assert ContextShape(8192, batch=256).step_tokens == 256
    assert ContextShape(8192, micro_batch=64).step_tokens == 64


@pytest.mark.parametrize(
    ("shape", "cells"),
    [
        (ContextShape(8192), 1024 + 512),
        (ContextShape(1024), 1024),
        (ContextShape(8192, full_windows=True), 8192),
        (ContextShape(8192, parallel=2), 1024 + 512),
        (ContextShape(8192, parallel=2, unified=True), 2 * 1024 + 512),
        (ContextShape(8192, micro_batch=1), 1024 + 256),
    ],
)
def test_a_layer_with_a_window_keeps_the_window_and_a_step(shape: ContextShape, cells: int) -> None:
    assert shape.window_cells(1024) == cells
