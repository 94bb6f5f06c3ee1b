"""Metrics as text that a real parser takes, whatever the labels hold."""

from hypothesis import given
from hypothesis import strategies as st
from meshd.base.metrics import MOST_LABEL_LETTERS, OTHERS, FewNames, counter, exposition, gauge, label
from prometheus_client.parser import text_string_to_metric_families


def _parsed(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Return values by the labels' values, by name."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = tuple(sample.labels.values())
            values = found.setdefault(sample.name, {})
            assert key not in values, f"{sample.name}{key} is there twice"
            values[key] = sample.value
    return found


def test_values_with_and_without_labels() -> None:
    text = exposition(
        [gauge("a_bytes", "Bytes.", 3), counter("b", "Things.", {"x": 1, "y": 2.5}, "kind")],
        [gauge("c", "Pairs.", {("p", "q"): True}, "one", "other"), gauge("d", "None.", {}, "kind")],
    )
    found = _parsed(text)
    assert found["a_bytes"] == {(): 3.0}
    assert found["b_total"] == {("x",): 1.0, ("y",): 2.5}
    assert found["c"] == {("p", "q"): 1.0}
    assert "# TYPE b_total counter" in text and "# HELP a_bytes Bytes." in text
    assert found["process_resident_memory_bytes"][()] > 1e6


@given(st.dictionaries(st.text(max_size=200), st.floats(allow_nan=False), max_size=8))
def test_any_text_is_a_label_and_none_is_there_twice(values: dict[str, float]) -> None:
    shown = _parsed(exposition([gauge("a", "A.", values, "name")])).get("a", {})
    assert {name for (name,) in shown} == {label(name) for name in values}
    assert all(len(name) <= MOST_LABEL_LETTERS and name.isprintable() for (name,) in shown)


def test_only_so_many_names_are_told_apart() -> None:
    names = FewNames(2)
    assert [names["a"], names["b\n"], names["c"], names["a"], names["b\n"]] == ["a", "b?", OTHERS, "a", "b?"]
