"""Test what of a model is known not to be divided among workers that compute each layer together."""

from collections.abc import Mapping

import pytest
from meshd.model.layers import read_layers

from tests.gguf_bytes import Plain, Tensor, gguf, language_model, parse


def _why(*more: Tensor, extra: Mapping[str, Plain] | None = None) -> str:
    metadata, tensors = language_model(extra=extra)
    return read_layers([parse(gguf(metadata, [*tensors, *more]))], name="tiny").indivisible


def test_most_models_can_be_divided() -> None:
    rows = [Tensor("blk.0.attn_output.weight", (512, 32), "q4_k"), Tensor("blk.1.ffn_down.weight", (64, 32))]
    experts = [
        Tensor("blk.2.ffn_up_exps.weight", (32, 64, 4)),
        Tensor("blk.2.ffn_down_exps.weight", (64, 32, 4), "q8_0"),
    ]
    assert not _why(*rows, *experts)


@pytest.mark.parametrize("heads", [1, [2, 2, 1, 2]])
def test_one_head_of_keys_and_values(heads: Plain) -> None:
    assert "single head" in _why(extra={"llama.attention.head_count_kv": heads})


def test_one_head_of_all() -> None:
    metadata, tensors = language_model(extra={"llama.attention.head_count": 1})
    del metadata["llama.attention.head_count_kv"]
    assert "single head" in read_layers([parse(gguf(metadata, tensors))], name="tiny").indivisible


@pytest.mark.parametrize(
    ("name", "kind", "row"),
    [
        ("attn_output", "q4_k", (256, 32)),
        ("ffn_down", "iq4_xs", (256, 32)),
        ("ffn_down_exps", "q4_0", (32, 32, 4)),
    ],
)
def test_one_block_in_a_row_of_a_matrix_whose_rows_are_divided(
    name: str, kind: str, row: tuple[int, ...]
) -> None:
    why = _why(Tensor(f"blk.3.{name}.weight", row, kind))
    assert why == f"a row of `blk.3.{name}.weight` is a single block of {kind}"
    assert not _why(Tensor(f"blk.3.{name}.weight", (2 * row[0], *row[1:]), kind))
    assert not _why(Tensor("blk.3.ffn_gate.weight", row, kind)), "of others, columns are divided"


def test_a_matrix_that_looks_like_two() -> None:
    assert _why(Tensor("blk.0.ffn_up_exps.weight", (32, 128, 4))) == (
        "`blk.0.ffn_up_exps.weight` looks like two matrices"
    )
    assert not _why(Tensor("blk.9.ffn_up_exps.weight", (32, 128, 4))), "of no layer"
