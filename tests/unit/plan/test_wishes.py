"""Test what stands after dashes: refused, read into the shape of the context, or passed on; draft models."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import UserError
from meshd.config.forms import HostPort
from meshd.model.cache import ContextShape, LayerCache
from meshd.model.layer_range import LayerRange
from meshd.model.layers import MOST_TOKENS, read_layers
from meshd.plan.split import SplitOptions
from meshd.plan.wishes import (
    HeadOptions,
    LlamaArgs,
    beside_draft,
    draft_model,
    may_draft,
    named_by,
    nodes_of,
    read_llama_args,
    shape_of,
)
from meshd.wire.lease import OfferedDevice

from tests.gguf_bytes import gguf, language_model, parse
from tests.unit.plan.plain_options import PLAIN

LAYERS = read_layers([parse(gguf(*language_model(layers=4)))], name="tiny")


@pytest.mark.parametrize(
    "option",
    ["--host", "--port", "-m", "--model", "--rpc", "-dev", "--device", "-ngl", "--gpu-layers", "--gpu_layers",
     "--n-gpu-layers", "-ts", "--tensor-split", "--api-key", "--api-key-file", "--alias", "-a", "-lm",
     "-mm", "--mmproj", "--mmproj-url"],
)  # fmt: skip
def test_options_of_meshds_own_are_refused_with_the_way_to_go(option: str) -> None:
    with pytest.raises(UserError) as caught:
        read_llama_args(["-t", "2", option, "x"])
    assert option in caught.value.what
    assert caught.value.hint


def test_other_options_pass_as_they_stand() -> None:
    given = ("-t", "2", "-ot", "output=CPU", "--chat-template", "chatml")
    assert read_llama_args(given) == LlamaArgs(rest=given, threads=2, undivided="-ot")


@pytest.mark.parametrize(
    "option",
    ["--spec-type", "--spec_type", "--spec-draft-model", "-md", "--draft-max", "-lcs", "--embeddings"],
)
def test_options_that_decide_on_speculation_are_seen(option: str) -> None:
    assert read_llama_args(["-t", "2", option, "x"]).speculation == option


def test_what_decides_memory_is_read_and_taken_out() -> None:
    text = "-c 4096 -np 2 -ctk q8_0 --cache-type-v q4_0 -fa off -b 256 -ub 128 -kvu --swa-full -t 2"
    llama_args = read_llama_args(text.split())
    assert llama_args.rest == ("-t", "2")
    shape = llama_args.shape(LAYERS, tokens=512)
    assert (shape.tokens, shape.parallel, shape.batch, shape.micro_batch) == (4096, 2, 256, 128)
    assert (shape.key_type, shape.value_type, shape.unified) == ("q8_0", "q4_0", True)
    assert (shape.full_windows, shape.flash_attention) == (True, False)


@pytest.mark.parametrize("option", ["--embeddings", "--embedding", "--reranking", "--pooling"])
def test_slots_share_a_cache_where_a_text_is_pooled(option: str) -> None:
    """With a cache each, texts of different lengths take several steps, and llama.cpp pools the last."""
    assert read_llama_args([option]).shape(LAYERS, tokens=512, slots=4).unified
    assert not read_llama_args([option, "-no-kvu"]).shape(LAYERS, tokens=512, slots=4).unified
    assert not read_llama_args(["-t", "2"]).shape(LAYERS, tokens=512, slots=4).unified


def test_the_plain_shape_is_that_of_before() -> None:
    assert LlamaArgs().shape(LAYERS, tokens=None).tokens == LAYERS.default_context
    assert LlamaArgs().shape(LAYERS, tokens=512).tokens == 512
    assert read_llama_args(["-c", "0"]).shape(LAYERS, tokens=512).tokens == LAYERS.trained_context


@pytest.mark.parametrize(
    ("llama_args", "ctx_size", "tokens", "parallel"),
    [
        ("", 100_000, 4096, 1),
        ("-c 100000", None, 4096, 1),
        ("-c 100000 -np 2", None, 2 * 4096, 2),
        ("-c 8192 -np 2", None, 2 * 4096, 2),
        ("-c 100000 -np 3 -kvu", None, 3 * 4096, 3),
        ("--rope-scaling yarn --rope-scale 4", 100_000, 4 * 4096, 1),
    ],
)
def test_no_memory_is_planned_for_tokens_that_no_answer_can_use(
    llama_args: str, ctx_size: int | None, tokens: int, parallel: int
) -> None:
    shape = read_llama_args(llama_args.split()).shape(LAYERS, tokens=ctx_size)
    assert (shape.tokens, shape.parallel) == (tokens, parallel)


def test_the_note_says_what_the_model_allows_and_how_to_stretch_it() -> None:
    usual, stretched = LlamaArgs(), read_llama_args(["--rope-scaling", "yarn", "--rope-scale", "4"])
    assert usual.shortened(LAYERS, tokens=4096) == ""
    assert usual.shortened(LAYERS, tokens=None) == ""
    assert stretched.shortened(LAYERS, tokens=4 * 4096) == ""
    assert read_llama_args(["-c", "8192", "-np", "2"]).shortened(LAYERS, tokens=None) == ""
    assert usual.shortened(LAYERS, tokens=100_000) == (
        "context shortened from 100000 to 4096 tokens: the model was trained for 4096 tokens; "
        "to stretch it, add `-- --rope-scaling yarn --rope-scale N`"
    )
    assert stretched.shortened(LAYERS, tokens=100_000).endswith(
        "trained for 4096 tokens and is stretched to 16384; a larger `--rope-scale` stretches it further"
    )


def test_a_step_has_room_for_a_token_of_each_slot() -> None:
    shape = read_llama_args(["-np", "8", "-ub", "4", "-b", "6"]).shape(LAYERS, tokens=512)
    assert (shape.parallel, shape.micro_batch, shape.batch) == (8, 8, 8)
    shape = read_llama_args(["-ub", "2"]).shape(LAYERS, tokens=512, slots=4)
    assert (shape.parallel, shape.micro_batch, shape.cells) == (4, 4, 512)


def test_flash_attention_that_is_asked_for_stays() -> None:
    assert read_llama_args(["-fa", "on", "-t", "1"]).rest == ("-fa", "on", "-t", "1")
    assert read_llama_args(["-fa", "-t", "1"]).rest == ("-fa", "on", "-t", "1")
    assert read_llama_args(["-fa", "auto"]) == LlamaArgs()


@pytest.mark.parametrize("option", ["-bs", "--backend-sampling", "--backend_sampling"])
def test_sampling_on_a_worker_is_passed_on(option: str) -> None:
    assert read_llama_args([option]) == LlamaArgs(rest=(option,))


@pytest.mark.parametrize(
    "given", ["-c", "-c x", "-c -1", "-np 0", "-np -1", "-b 0", "-ctk q9", "-fa maybe", "-c 99999999999"]
)
def test_a_value_that_cannot_be_used_is_an_error_at_once(given: str) -> None:
    with pytest.raises(UserError):
        read_llama_args(given.split())


WORDS = st.sampled_from(["-c", "-np", "-fa", "-ctk", "-kvu", "0", "1", "512", "q8_0", "on", "-t", "--x_y"])


@given(st.lists(WORDS | st.text(max_size=6), max_size=8))
def test_anything_is_read_or_refused(words: list[str]) -> None:
    try:
        llama_args = read_llama_args(words)
    except UserError:
        return
    assert SplitOptions(llama_args.shape(LAYERS, tokens=None)).shape.tokens > 0


GIB = 1 << 30
DRAFT = parse(gguf(*language_model(layers=2)))
SERVED = parse(gguf(*language_model(layers=4)))


def test_one_of_the_same_vocabulary_fits_and_takes_memory_of_the_heads_cpu() -> None:
    draft = draft_model("/m/d.gguf", "d", [DRAFT], SERVED)
    shape = ContextShape(1024, parallel=2)
    assert draft.memory(shape) > draft.layers.weight_bytes > 0
    own = (
        OfferedDevice("CPU", "cpu", "some", GIB, 2 * GIB),
        OfferedDevice("CUDA0", "gpu", "some", GIB, 2 * GIB),
    )
    cpu, gpu = beside_draft(own, draft, shape)
    assert GIB - cpu.free_bytes == draft.memory(shape)
    assert gpu.free_bytes == GIB
    assert beside_draft(own, None, shape) == own


def test_one_of_another_vocabulary_is_refused_with_both() -> None:
    metadata, tensors = language_model(layers=2)
    other = parse(gguf({**metadata, "tokenizer.ggml.model": "llama"}, tensors))
    with pytest.raises(UserError, match="another vocabulary") as caught:
        draft_model("/m/o.gguf", "o.gguf", [other], SERVED)
    assert "o.gguf" in caught.value.what and caught.value.hint


def test_beside_a_draft_that_is_too_large_the_cpu_has_nothing() -> None:
    draft = draft_model("/m/d.gguf", "d", [DRAFT], SERVED)
    small = OfferedDevice("CPU", "cpu", "some", 10, GIB)
    assert [one.free_bytes for one in beside_draft([small], draft, ContextShape(1024))] == [0]


@pytest.mark.parametrize(("tokens", "fits"), [(64 + 128, True), (64 + 129, False)])
def test_a_vocabulary_may_differ_by_a_few_tokens(tokens: int, fits: bool) -> None:
    larger = parse(gguf(*language_model(layers=2, vocabulary=tokens)))
    for one, other in ((larger, SERVED), (parse(gguf(*language_model(layers=2))), larger)):
        if fits:
            assert draft_model("/m/d.gguf", "d", [one], other).path == "/m/d.gguf"
        else:
            with pytest.raises(UserError, match="another vocabulary"):
                draft_model("/m/d.gguf", "d", [one], other)


RANGES = (LayerRange("head", 0, 9), LayerRange("a", 10, 19), LayerRange("b", 20, 29))
CPU = ("none",)
AUTO = replace(PLAIN, min_workers=None, split="auto")


@pytest.mark.parametrize(
    ("options", "least", "by_speed"),
    [
        (AUTO, 0, True),
        (replace(AUTO, min_workers=3), 3, True),
        (replace(PLAIN, min_workers=0, split="always"), 0, False),
        (replace(PLAIN, min_workers=None), 1, False),
        (replace(AUTO, tensor_split=(1.0, 1.0)), 1, False),
        (replace(AUTO, layers=RANGES), 1, False),
        (replace(AUTO, rpc=(HostPort("h", 1),)), 1, False),
        (replace(AUTO, devices=CPU), 1, True),
    ],
)
def test_as_many_workers_are_waited_for_as_the_user_wishes(
    options: HeadOptions, least: int, by_speed: bool
) -> None:
    assert (options.least_workers, options.picks_by_speed) == (least, by_speed)
    assert options.push and not replace(options, no_push=True).push


@pytest.mark.parametrize(
    ("options", "demands"),
    [
        (replace(PLAIN, layers=RANGES, min_workers=2), "`--layers`"),
        (replace(PLAIN, min_workers=2, tensor_split=(1.0,)), "`--min-workers 2`"),
        (replace(PLAIN, min_workers=None, tensor_split=(1.0,), devices=CPU), "`--tensor-split`"),
        (replace(PLAIN, min_workers=None, devices=CPU, rpc=(HostPort("h", 1),)), "`--device none`"),
        (replace(PLAIN, min_workers=None, rpc=(HostPort("h", 1),)), "`--rpc` without `--min-workers 0`"),
        (replace(PLAIN, min_workers=None), "`--split always` without `--min-workers 0`"),
    ],
)
def test_who_demands_workers_is_named(options: HeadOptions, demands: str) -> None:
    assert options.workers_demanded_by == demands


def test_workers_are_named_by_the_option_that_names_them() -> None:
    assert nodes_of(RANGES, "head") == ("a", "b") and nodes_of((), "head") == ()
    assert named_by(replace(PLAIN, layers=RANGES, workers=("a", "b"))) == "--layers"
    assert named_by(replace(PLAIN, layers=RANGES, workers=("a",))) == "--workers"
    assert named_by(replace(PLAIN, layers=(), workers=())) == "--workers"


@pytest.mark.parametrize(
    ("words", "threads"),
    [("-t 4", 4), ("--threads 12", 12), ("-t 4 -t 8", 8), ("-t x", None), ("-t 12345", None), ("-t", None)],
)
def test_threads_are_read_as_llama_server_does(words: str, threads: int | None) -> None:
    assert read_llama_args(words.split()).threads == threads


@pytest.mark.parametrize(
    ("words", "flash", "rest"),
    [
        *((f"-fa {word}", False, ()) for word in ("off", "disabled", "false", "0")),
        *((f"-fa {word}", True, ("-fa", "on")) for word in ("on", "enabled", "true", "1")),
        ("-fa auto", True, ()),
        ("-fa", True, ("-fa", "on")),
    ],
)
def test_flash_attention_as_it_is_given(words: str, flash: bool, rest: tuple[str, ...]) -> None:
    found = read_llama_args(words.split())
    assert (found.flash_attention, found.rest) == (flash, rest)


@pytest.mark.parametrize(
    ("words", "ok"),
    [
        ("-c 0", True),
        ("-np 1", True),
        ("-np 0", False),
        ("-b 1", True),
        ("-ub 0", False),
        (f"-c {MOST_TOKENS - 1}", True),
        (f"-c {MOST_TOKENS}", False),
        ("-c ١", False),
    ],
)
def test_numbers_are_read_within_their_bounds(words: str, ok: bool) -> None:
    try:
        read_llama_args(words.split())
    except UserError as error:
        assert not ok and error.hint
    else:
        assert ok


@pytest.mark.parametrize(
    ("options", "free", "model"),
    [
        (replace(PLAIN, speculate="auto"), True, False),
        (replace(PLAIN, speculate="off"), False, False),
        (replace(PLAIN, speculate="auto", llama_args=("--draft-max", "3")), False, False),
        (replace(PLAIN, speculate="auto", mmproj=Path("/m/p.gguf")), False, False),
        (
            replace(PLAIN, speculate="auto", draft=draft_model("/m/d.gguf", "d", [DRAFT], SERVED)),
            True,
            True,
        ),
    ],
)
def test_what_may_be_drafted_is_allowed_by_model_and_user(
    options: HeadOptions, free: bool, model: bool
) -> None:
    may = may_draft(LAYERS, options)
    assert (may.free, may.model, may.why == "") == (free, model, free)
    assert (shape_of(LAYERS, options).drafted > 0) == free
    state = replace(LAYERS, cache=replace(LAYERS.cache, layers=(LayerCache(state=1),)))
    assert not may_draft(state, options).free


def test_the_context_is_the_default_the_wished_or_the_largest() -> None:
    assert shape_of(LAYERS, replace(PLAIN, ctx_size=None)).tokens == LAYERS.default_context
    assert shape_of(LAYERS, replace(PLAIN, ctx_size=512)).tokens == 512
    assert replace(PLAIN, ctx_size=0).wants_largest_context
    assert not replace(PLAIN, ctx_size=1).wants_largest_context
