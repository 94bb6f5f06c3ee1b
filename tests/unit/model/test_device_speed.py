"""Times of a device: what is read of its lines, and what lies between two of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.model.device_speed import DeviceSpeed, ReferenceRates, is_plausible, read_line, reference_rates
from meshd.wire.capacity import MAX_NANOSECONDS, TimedLayer

SPEED = DeviceSpeed([TimedLayer(0, 1, 1000), TimedLayer(0, 128, 20_000), TimedLayer(0, 32, 8_000)])


@pytest.mark.parametrize(
    "line",
    [
        "",
        "took",
        "took 0 1",
        "took 0 1 2 3",
        "took 8 1 5",
        "took 0 0 5",
        "took 0 1 0",
        "took 0 5000 1",
        "took -1 1 5",
        "took 0 1 5.0",
        "took ٣ 1 5",
        "Took 0 1 5",
        f"took 0 1 {MAX_NANOSECONDS + 1}",
    ],
)
def test_other_lines_are_none(line: str) -> None:
    assert read_line(line) is None


def test_a_line() -> None:
    assert read_line("took 2 128 31415") == TimedLayer(2, 128, 31415)


@given(st.text(max_size=60))
def test_any_line_is_read_or_none(line: str) -> None:
    found = read_line(line)
    assert found is None or f"took {found.kind} {found.tokens} {found.nanoseconds}".split() == [
        word.lstrip("0") or "0" if word.isdigit() else word for word in line.split(" ")
    ]


@pytest.mark.parametrize(
    ("tokens", "microseconds"), [(1, 1), (0.5, 1), (32, 8), (128, 20), (80, 14), (224, 32), (16.5, 4.5)]
)
def test_between_two_numbers_of_tokens_lies_a_line(tokens: float, microseconds: float) -> None:
    assert SPEED.seconds(0, tokens) == pytest.approx(microseconds / 1e6)


def test_one_number_of_tokens_says_how_long_each_takes() -> None:
    alone = DeviceSpeed([TimedLayer(1, 4, 4000)])
    assert 1 in alone and 0 not in alone
    assert alone.seconds(1, 8) == pytest.approx(8e-6) and alone.seconds(1, 1) == pytest.approx(4e-6)


def test_of_two_times_for_as_many_tokens_the_shorter_one_counts() -> None:
    """No number of tokens is there twice in what crosses; nobody divides by zero if one is."""
    twice = DeviceSpeed([TimedLayer(0, tokens, took) for tokens, took in ((1, 1000), (4, 9000), (4, 4000))])
    assert twice.seconds(0, 4) == pytest.approx(4e-6) and twice.seconds(0, 100) == pytest.approx(1e-4)


def test_more_tokens_never_take_less() -> None:
    odd = DeviceSpeed([TimedLayer(0, 1, 5000), TimedLayer(0, 4, 4000)])
    assert odd.seconds(0, 100) == odd.seconds(0, 2) == pytest.approx(5e-6)
    with pytest.raises(KeyError):
        odd.seconds(1, 1)


@pytest.mark.parametrize(
    ("points", "plausible"),
    [
        ((), True),
        (((1, 5),), True),
        (((1, 170), (4, 671), (32, 4912), (128, 18222)), True),
        (((1, 930), (4, 7965), (32, 18083), (128, 60097)), True),  # a slower way for several tokens
        (((1, 883), (4, 743), (32, 7123)), False),
        (((1, 10), (4, 1000), (32, 1200)), False),
        (((32, 4912), (1, 170), (4, 671)), True),
    ],
)
def test_what_no_device_takes_is_told_from_what_one_does(
    points: tuple[tuple[int, int], ...], plausible: bool
) -> None:
    assert is_plausible(points) is plausible


def test_rates_are_those_of_one_layer() -> None:
    """Test with a layer of 134 million elements, in 4.5 bits each: 75.5 MB."""
    found = reference_rates(DeviceSpeed((TimedLayer(0, 1, 10_000_000), TimedLayer(0, 128, 500_000_000))))
    assert found.weight_bytes_s == pytest.approx(7.55e9, rel=1e-3)
    assert found.flops == pytest.approx(2 * 134.2e6 * 128 / 0.5, rel=1e-3)


@pytest.mark.parametrize("speed", [None, DeviceSpeed(()), DeviceSpeed((TimedLayer(1, 1, 5),))])
def test_what_nobody_has_measured_has_none(speed: DeviceSpeed | None) -> None:
    assert reference_rates(speed) == ReferenceRates(None, None)
