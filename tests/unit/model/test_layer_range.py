"""`NODE=FIRST-LAST` as a user writes it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.model.layer_range import MAX_LAYERS, LayerRange, parse_layer_range


@given(st.text())
def test_any_text_is_a_range_or_an_error(text: str) -> None:
    try:
        found = parse_layer_range(text)
    except ValueError:
        return
    assert found.node and 0 <= found.first <= found.last and found.count > 0
    assert parse_layer_range(str(found)) == found


def test_one_layer_and_several() -> None:
    assert parse_layer_range("garage=7") == LayerRange("garage", 7, 7)
    assert parse_layer_range(" a.b-c=0-14 ") == LayerRange("a.b-c", 0, 14)


@pytest.mark.parametrize("text", ["", "a", "a=", "a=1-", "a=-1", "a=2-1", "a b=1-2", "a=1-2-3", "a=1-٣"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not NODE|last layer"):
        parse_layer_range(text)


@pytest.mark.parametrize(("found", "count"), [(LayerRange("a", 7, 7), 1), (LayerRange("a", 0, 14), 15)])
def test_both_ends_count(found: LayerRange, count: int) -> None:
    assert found.count == count
    assert str(found) == f"a={found.first}-{found.last}"


def test_a_model_has_so_many_layers() -> None:
    assert parse_layer_range(f"a={MAX_LAYERS - 1}").count == 1
    with pytest.raises(ValueError, match="last layer"):
        parse_layer_range(f"a={MAX_LAYERS}")
