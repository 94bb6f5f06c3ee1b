"""Sizes of layers, input and output."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import UserError
from meshd.model.cache import ContextShape, LayerCache, ModelCache
from meshd.model.layers import (
    ModelLayers,
    RopeScaling,
    Widths,
    compute_bound,
    is_of_layer,
    longest_answer,
    read_layers,
)

from tests.gguf_bytes import Plain, Tensor, gguf, language_model, parse


def _model(**options: object) -> ModelLayers:
    metadata, tensors = language_model(**options)  # type: ignore[arg-type]
    return read_layers([parse(gguf(metadata, tensors))], name="tiny")


def test_bytes_by_place() -> None:
    model = _model()
    layer = 32 * 4 + 32 * 34
    assert model.layers == (layer,) * 4
    assert (model.input, model.output, model.output_rest, model.tied) == (8192, 8192, 128, True)
    assert model.weight_bytes == 4 * layer + 8192 + 128
    assert (model.trained_context, model.default_context) == (4096, 4096)
    assert model.largest_elements == 32 * 64
    assert (model.widths.embedding, model.widths.vocabulary, model.widths.heads) == (32, 64, 4)


def test_an_output_of_its_own() -> None:
    model = _model(tied=False)
    assert not model.tied
    assert model.weight_bytes == _model().weight_bytes + 8192


def test_the_default_context_is_bounded() -> None:
    assert _model(extra={"llama.context_length": 131072}).default_context == 8192
    assert _model(extra={"llama.context_length": 0}).default_context == 8192


def test_cuda_pads_quantised_rows() -> None:
    model = _model()
    blocks = (512 - 32) // 32
    assert model.padded_layers == tuple(size + blocks * 34 for size in model.layers)


def test_shards_count_together() -> None:
    metadata, tensors = language_model()
    first = parse(gguf({**metadata, "split.no": 0, "split.count": 2}, tensors[:4]))
    second = parse(gguf({"split.no": 1, "split.count": 2}, tensors[4:]))
    assert read_layers([first, second], name="tiny") == _model()


def test_other_tensors_find_their_place() -> None:
    metadata, tensors = language_model()
    tensors += [
        Tensor("rope_freqs.weight", (16,)),
        Tensor("per_layer_token_embd.weight", (32, 8)),
        Tensor("enc.blk.1.attn_q.weight", (32,)),
        Tensor("output_norm.bias", (32,)),
    ]
    model = read_layers([parse(gguf(metadata, tensors))], name="tiny")
    plain = _model()
    assert model.shared == 64
    assert model.input == plain.input + 1024
    assert model.layers[1] == plain.layers[1] + 128
    assert model.output_rest == plain.output_rest + 128


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"general.architecture": "clip"}, "not a language model: its architecture is `clip`"),
        ({"general.architecture": ""}, "its architecture is `not given`"),
        ({"llama.block_count": 0}, "claims to have 0 layers, expected 1 to 512"),
        ({"llama.block_count": 100_000}, "claims to have 100000 layers"),
    ],
)
def test_other_files_are_refused(change: dict[str, Plain], message: str) -> None:
    metadata, tensors = language_model()
    with pytest.raises(UserError, match=message):
        read_layers([parse(gguf({**metadata, **change}, tensors))], name="tiny")


def test_a_vocabulary_file_is_refused() -> None:
    metadata, _ = language_model()
    with pytest.raises(UserError, match="has no weights of a language model"):
        read_layers([parse(gguf(metadata))], name="tiny")


TRAINED = 8192
OF_YARN = RopeScaling("yarn", 4.0, 2048)


@pytest.mark.parametrize(
    ("llama_args", "tokens"),
    [
        ("", TRAINED),
        ("-t 2", TRAINED),
        ("--rope-scale 4", TRAINED),  # linear: llama-server keeps to what was trained
        ("--rope-scaling linear --rope-scale 4", TRAINED),
        ("--rope-scaling yarn", TRAINED),
        ("--rope-scaling yarn --rope-scale 4", 4 * TRAINED),
        ("--rope_scaling yarn --rope_scale 4", 4 * TRAINED),
        ("--rope-scaling yarn --rope-freq-scale 0.25", 4 * TRAINED),
        ("--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 4096", 4 * 4096),
        ("--rope-scaling yarn --rope-scale 2 --rope-scale 8", 8 * TRAINED),
        ("--rope-scaling yarn --rope-scale x", TRAINED),
        ("--rope-scaling yarn --rope-scale", TRAINED),
        ("--override-kv llama.context_length=int:32768", 32768),
        ("--override-kv a.b=bool:true,llama.context_length=int:32768", 32768),
        ("--override-kv llama.context_length=str:long", TRAINED),
    ],
)
def test_options_that_stretch_it(llama_args: str, tokens: int) -> None:
    assert longest_answer(TRAINED, RopeScaling(), llama_args.split()) == tokens


def test_a_model_of_yarn_has_its_own_length_until_another_scale_is_given() -> None:
    assert longest_answer(TRAINED, OF_YARN, []) == TRAINED
    assert longest_answer(TRAINED, OF_YARN, ["--rope-scale", "4"]) == TRAINED
    assert longest_answer(TRAINED, OF_YARN, ["--rope-scale", "8"]) == 8 * 2048
    assert longest_answer(TRAINED, OF_YARN, ["--rope-scaling", "linear", "--rope-scale", "8"]) == TRAINED


def test_no_limit_is_known_where_the_header_says_none() -> None:
    assert longest_answer(0, RopeScaling(), []) == 0


def test_the_scaling_is_read_from_the_header() -> None:
    extra: dict[str, str | float | int] = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 2048,
    }
    assert read_layers([parse(gguf(*language_model(extra=extra)))], name="tiny").scaling == OF_YARN
    assert read_layers([parse(gguf(*language_model()))], name="tiny").scaling == RopeScaling()


@pytest.mark.parametrize("factor", [0.0, -1.0, math.inf, math.nan, "four", 0])
def test_a_factor_that_is_none_counts_as_absent(factor: float | str) -> None:
    layers = read_layers(
        [parse(gguf(*language_model(extra={"llama.rope.scaling.factor": factor})))], name="x"
    )
    assert layers.scaling.factor == 1.0


WORDS = st.sampled_from(["--rope-scaling", "yarn", "--rope-scale", "--yarn-orig-ctx", "1e-300", "inf", "4"])


@given(st.lists(WORDS | st.text(max_size=8), max_size=8))
def test_whatever_is_given_leads_to_a_count_of_tokens(words: list[str]) -> None:
    assert 0 <= longest_answer(TRAINED, RopeScaling(), words) < 1 << 31


@pytest.mark.parametrize(
    ("name", "belongs"),
    [("blk.0.attn_q.weight", True), ("blk.31.ffn_up.weight", True), ("output.weight", False), ("", False)],
)
def test_a_tensor_of_a_layer_is_known_by_its_name(name: str, belongs: bool) -> None:
    assert is_of_layer(name) == belongs


WIDTHS = Widths(embedding=100, attention=30, heads=4, feed_forward=200, experts=8, state=5, vocabulary=1000)
FIXED_CPU, FIXED_GPU = 32 << 20, 64 << 20


def _bound(
    shape: ContextShape,
    *,
    window: int = 0,
    on_gpu: bool = False,
    with_layers: bool = False,
    with_output: bool = False,
    pipelined: bool = False,
) -> int:
    """What is counted beyond what is fixed."""
    layers = (LayerCache(key=1, value=1), LayerCache(key=1, value=1, window=window))
    model = replace(_model(), widths=WIDTHS, largest_elements=7, cache=ModelCache(layers, exact=True))
    bound = compute_bound(
        model, shape, on_gpu=on_gpu, with_layers=with_layers, with_output=with_output, pipelined=pipelined
    )
    return bound - (FIXED_GPU + 2 * 7 if on_gpu else FIXED_CPU)


def test_the_bound_of_computing_memory_is_the_sum_that_its_text_gives() -> None:
    flash = ContextShape(1024, micro_batch=128, parallel=2, drafted=3)
    plain = replace(flash, flash_attention=False)
    tokens, cells = 128, 512
    inputs = tokens * cells * 2 + 12 * tokens * 100
    assert _bound(flash) == _bound(flash, on_gpu=True) == inputs
    assert _bound(flash, window=64) == 2 * tokens * cells * 2 + 12 * tokens * 100
    assert _bound(plain) == tokens * cells * 4 + 12 * tokens * 100
    assert _bound(flash, pipelined=True) == 4 * inputs
    layer = 4 * tokens * (8 * 100 + 4 * (30 + 200 + 8)) + 64 * 5
    assert _bound(flash, with_layers=True) - _bound(flash) == layer
    assert _bound(plain, with_layers=True) - _bound(plain) == layer + 5 * tokens * cells * 4
    assert _bound(flash, with_output=True) - _bound(flash) == 4 * 8 * (2 * 1000 + 100)


@pytest.mark.parametrize(
    ("extra", "widths"),
    [
        ({}, (32, 4 * 16 + 2 * 16, 4, 64, 0, 64)),
        ({"attention.key_length": 20, "attention.value_length": 12}, (32, 6 * 32, 4, 64, 0, 64)),
        ({"attention.key_length_swa": 24}, (32, 6 * (24 + 8), 4, 64, 0, 64)),
        ({"attention.value_length_mla": 40}, (32, 6 * (8 + 40), 4, 64, 0, 64)),
        ({"attention.head_count_kv": 4}, (32, 8 * 16, 4, 64, 0, 64)),
        (
            {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 50},
            (32, 6 * 16, 4, 100, 8, 64),
        ),
        ({"expert_count": 8, "expert_used_count": 6}, (3 * 32, 6 * 16, 4, 6 * 64, 8, 64)),
        (
            {
                "expert_count": 8,
                "expert_used_count": 3,
                "expert_feed_forward_length": 30,
                "expert_shared_count": 2,
                "expert_shared_feed_forward_length": 5,
            },
            (32, 6 * 16, 4, 3 * 30 + 5 + 60, 8, 64),
        ),
        ({"feed_forward_length": 500, "expert_used_count": 1}, (32, 6 * 16, 4, 500, 0, 64)),
    ],
)
def test_the_widths_that_bound_what_is_computed(extra: dict[str, Plain], widths: tuple[int, ...]) -> None:
    found = _model(extra={f"llama.{key}": number for key, number in extra.items()}).widths
    assert widths == (
        found.embedding,
        found.attention,
        found.heads,
        found.feed_forward,
        found.experts,
        found.vocabulary,
    )
