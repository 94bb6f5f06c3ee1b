"""Test what the measurement of several streams prints."""

from tests.bench.streams import line


def test_rates_their_ratio_and_what_a_token_costs() -> None:
    assert line(1, [6.04, 7.0], [2600.4], 7.0) == (
        "1 streams: 6.0, 7.0 tokens/s; 1.00 times one stream; 2600 bytes for a token of each"
    )
    assert line(8, [49.0, 42.0], [1200.0, 1300.0], 7.0).startswith(
        "8 streams: 49.0, 42.0 tokens/s; 7.00 times"
    )


def test_without_one_stream_there_is_no_ratio() -> None:
    assert line(8, [49.0], [1200.0], 0.0) == "8 streams: 49.0 tokens/s; 1200 bytes for a token of each"
