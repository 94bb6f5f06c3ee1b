"""Our copy of llama.cpp's layer assignment."""

from fractions import Fraction

import numpy
from hypothesis import given
from hypothesis import strategies as st
from meshd.plan.by_memory import ON_CPU, place


def _upstream(layers: int, gpu_layers: int, shares: list[float]) -> list[int]:
    """`llama_model_base::load_tensors` line by line, in numpy's 32-bit floats."""
    splits = numpy.array(shares, dtype=numpy.float32)
    total = numpy.float32(0)
    for number in range(len(splits)):
        total = numpy.float32(total + splits[number])
        splits[number] = total
    splits = (splits / total).astype(numpy.float32)
    start = max(layers + 1 - gpu_layers, 0)
    active = min(gpu_layers, layers + 1)
    result = []
    for layer in range(layers + 1):
        if layer < start or layer - start >= active:
            result.append(ON_CPU)
            continue
        at = numpy.float32(numpy.float32(layer - start) / numpy.float32(active))
        result.append(int(numpy.searchsorted(splits, at, side="right")))
    return result


@given(
    st.integers(1, 200),
    st.integers(0, 260),
    st.lists(st.floats(0.0009765625, 1024, width=32), min_size=1, max_size=15),
)
def test_same_as_upstream_for_any_split(layers: int, gpu_layers: int, shares: list[float]) -> None:
    placed = place(layers, gpu_layers=gpu_layers, tensor_split=shares)
    assert list(placed) == _upstream(layers, gpu_layers, shares)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=15), st.integers(0, 60))
def test_whole_numbers_that_sum_up_are_exact(counts: list[int], on_cpu: int) -> None:
    """The form meshd always uses: shares are layers, the last has the output besides."""
    layers = sum(counts) + on_cpu
    shares = [*counts[:-1], counts[-1] + 1]
    placed = place(layers, gpu_layers=layers + 1 - on_cpu, tensor_split=shares)
    expected = [ON_CPU] * on_cpu
    for number, count in enumerate(counts):
        expected += [number] * count
    assert list(placed) == [*expected, len(counts) - 1]


def test_examples_seen_in_llama_servers_log() -> None:
    # SmolLM2, 30 layers: `assigned to device` lines of the pinned build
    def counts(gpu_layers: int, *shares: float) -> list[int]:
        placed = place(30, gpu_layers=gpu_layers, tensor_split=shares)[:-1]
        return [placed.count(number) for number in (ON_CPU, *range(len(shares)))]

    assert counts(99, 15, 16) == [0, 15, 15]
    assert counts(21, 10, 11) == [10, 10, 10]
    assert counts(99, 1, 1) == [0, 16, 14]


def test_no_devices_means_the_cpu() -> None:
    assert place(3, gpu_layers=0, tensor_split=()) == (ON_CPU,) * 4


def test_a_share_of_zero_gets_nothing() -> None:
    assert set(place(10, gpu_layers=11, tensor_split=(0, 1, 0))) == {1}


def test_thirds_are_rounded_as_floats_not_as_fractions() -> None:
    placed = place(29, gpu_layers=30, tensor_split=(1, 1, 1))
    assert [placed.count(number) for number in range(3)] == [10, 10, 10]
    assert Fraction(10, 30) == Fraction(1, 3)  # equal as fractions: the layer at the border goes on
    assert placed[10] == 1
