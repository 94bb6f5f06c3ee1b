"""The bytes of every message stay what they are."""

import pytest

from tests.conformance.golden import decoded, known, read_back, values_of


def test_every_message_has_samples() -> None:
    samples = known()
    assert samples.keys() == read_back().keys(), "run `python -m tests.conformance.golden --write`"
    assert all(samples.values())


@pytest.mark.parametrize("name", sorted(known()))
def test_a_message_is_read_and_said_as_before(name: str) -> None:
    word = read_back()[name]
    for sample in known()[name]:
        data = bytes.fromhex(sample["bytes"])
        message = decoded(word, data)
        assert values_of(message) == sample["values"]
        assert bytes(word.encode(message)).hex() == sample["bytes"]
