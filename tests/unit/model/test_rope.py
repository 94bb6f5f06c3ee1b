"""How long an answer may be, by the model's header and the options after `--`; as llama-server decides it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.model.layers import read_layers
from meshd.model.rope import RopeScaling, longest_answer

from tests.gguf_bytes import gguf, language_model, parse

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
