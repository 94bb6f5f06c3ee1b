"""Where a token's logits cost least: reading the matrix here or there, and what crosses."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.model.cache import ModelCache
from meshd.model.layers import ModelLayers, Widths
from meshd.model.output import AT_ONCE, DevicePath, choose_output, output_on_cpu

MODEL = ModelLayers(
    name="m.gguf",
    architecture="llama",
    trained_context=8192,
    layers=(1 << 30,) * 32,
    padded_layers=(1 << 30,) * 32,
    input=431_000_000,
    embedding=431_000_000,
    output=431_000_000,  # of a vocabulary of 128256 by 4096, in Q6_K
    tied=False,
    output_rest=0,
    shared=0,
    largest_elements=1,
    cache=ModelCache((), exact=True),
    widths=Widths(4096, 1, 1, 1, 0, 0, 128_256),
)


@pytest.mark.parametrize(
    ("path", "slots", "gpu", "head"),
    [
        (DevicePath(0.0003), 1, True, False),  # 43 ms on a CPU against 2 ms and 5 ms of wire
        (DevicePath(0.0003), 16, True, True),  # 16 slots fill the wire, and the matrix is read once
        (DevicePath(0.0003), 1, False, True),
        (DevicePath(0.02), 1, True, True),  # an unknown path over a distance
        (DevicePath(0.02, 2.5e6), 1, True, True),  # 20 Mbit/s: 205 ms
        (DevicePath(0.005, 500e6), 1, True, False),
    ],
)
def test_it_is_decided_by_the_device_the_path_and_the_slots(
    path: DevicePath, slots: int, gpu: bool, head: bool
) -> None:
    assert choose_output(MODEL, path, slots=slots, worker_is_gpu=gpu).on_head is head


def test_what_a_token_costs() -> None:
    """513 KB of logits at 20 Mbit/s, and three round trips until as much is under way at once."""
    choice = choose_output(MODEL, DevicePath(0.02, 2.5e6), slots=1, worker_is_gpu=True)
    assert choice.head_seconds == pytest.approx(0.0497, rel=0.002)
    assert choice.worker_seconds == pytest.approx(0.2667, rel=0.002)


@pytest.mark.parametrize("path", [DevicePath(0.0003), DevicePath(0.02), DevicePath(0.02, 2.5e6)])
def test_where_a_token_is_chosen_with_its_logits_the_path_decides_nothing(path: DevicePath) -> None:
    assert not choose_output(MODEL, path, slots=16, worker_is_gpu=True, sampled=True).on_head
    assert choose_output(MODEL, path, slots=1, worker_is_gpu=False, sampled=True).on_head


@pytest.mark.parametrize("wanted", [True, False])
def test_who_says_where_is_obeyed_and_without_facts_it_is_the_head(wanted: bool) -> None:
    near = DevicePath(0.0003)
    assert choose_output(MODEL, near, slots=1, worker_is_gpu=True, wanted=wanted).on_head is wanted
    assert choose_output(MODEL, None, slots=1, worker_is_gpu=True).on_head


@given(st.floats(1e-5, 1), st.floats(1e5, 1e10), st.integers(1, 1 << 24))
def test_more_bytes_a_longer_way_and_a_slower_path_cost_more(rtt: float, rate: float, count: int) -> None:
    path = DevicePath(rtt, rate)
    assert 0 < path.seconds(count) <= path.seconds(count + 1)
    assert path.seconds(count) <= DevicePath(rtt * 2, rate).seconds(count)
    assert path.seconds(count) <= DevicePath(rtt, rate / 2).seconds(count)
    assert count > AT_ONCE or path.seconds(count) == pytest.approx(count / rate)


def test_a_model_with_few_words_and_much_to_read_goes_to_the_worker() -> None:
    few = replace(MODEL, widths=replace(MODEL.widths, vocabulary=1000))
    assert not choose_output(few, DevicePath(0.02), slots=1, worker_is_gpu=True).on_head


def test_the_matrix_that_is_kept_on_the_cpu_is_named() -> None:
    assert output_on_cpu(replace(MODEL, tied=True)) == "token_embd.weight=CPU"
    assert output_on_cpu(MODEL) == r"^output\.weight=CPU"
