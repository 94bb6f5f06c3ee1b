"""A small run of every fuzz target, and proof that the runner finds what it should."""

import mmap
import random
from collections.abc import Sequence

import pytest
from meshd.base.errors import RemoteProtocolError

from tests.fuzz import run
from tests.fuzz.__main__ import DEFAULT_INPUTS, TARGETS, shares
from tests.fuzz.run import Found, make_input, run_target
from tests.fuzz.target import Feed, Target

INPUTS = 2000
LEAK_BYTES = 64 << 10


@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
def test_hostile_input_meets_declared_errors_only(target: Target) -> None:
    outcome = run_target(target, inputs=INPUTS, seed=random.randrange(1_000_000))
    assert outcome.refused > 0, "no input was hostile"
    assert outcome.refused < INPUTS, "every input is refused at the door, so only the door is tested"


def test_the_default_is_a_million() -> None:
    assert sum(shares(DEFAULT_INPUTS, TARGETS).values()) >= 1_000_000


def test_an_input_comes_again_by_its_number() -> None:
    for target in TARGETS:
        assert make_input(target, 7, 42) == make_input(target, 7, 42)


def _target(feed: Feed) -> Target:
    def make(rng: random.Random, _samples: Sequence[bytes]) -> bytes:
        return rng.randbytes(4)

    return Target(
        name="made",
        samples=(),
        make=make,
        feed=feed,
        allowed=(RemoteProtocolError,),
        share=1,
        most_bytes=1 << 20,
    )


def test_another_error_is_found() -> None:
    def feed(data: bytes) -> None:
        if data[0] == 7:
            raise IndexError("too far")

    with pytest.raises(
        Found, match=r"IndexError: too far\n  again: python -m tests\.fuzz --target made --seed 3 "
    ):
        run_target(_target(feed), inputs=5000, seed=3)


def test_a_declared_error_is_counted() -> None:
    def feed(_data: bytes) -> None:
        raise RemoteProtocolError("no")

    assert run_target(_target(feed), inputs=10, seed=3).refused == 10


def test_a_large_input_is_found() -> None:
    with pytest.raises(Found, match="bytes held"):
        run_target(_target(lambda _data: bytearray(2 << 20).clear()), inputs=1, seed=3)


@pytest.mark.skipif(run.resident_bytes() == 0, reason="reads /proc")
def test_growth_is_found() -> None:
    kept: list[mmap.mmap] = []

    def leak(_data: bytes) -> None:
        page = mmap.mmap(-1, LEAK_BYTES)  # not from the heap: earlier tests may have left room there
        page.write(bytes(LEAK_BYTES))
        kept.append(page)

    try:
        with pytest.raises(Found, match="grew by"):
            run_target(_target(leak), inputs=1000, seed=3)
    finally:
        for page in kept:
            page.close()
