"""What is kept of a split that ran: a line that reads as it was written, and nothing else does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.model.device_speed import DeviceSpeed
from meshd.model.output import DevicePath
from meshd.model.part_factors import LEAST_FACTOR, MOST_FACTOR
from meshd.model.time_parts import PassedPath, PredictedPart, ends_of
from meshd.role.head.speed_corrections import SpeedCorrections
from meshd.role.head.split_factors import (
    FACTORS_LINE_BYTES,
    PARTS_OF_LINE,
    THOUSANDTHS,
    SplitFactors,
    is_now,
    kept_shares,
    parsed,
    path_mark,
    show,
)
from meshd.wire.capacity import TimedLayer

MODEL = "0123456789abcdef"
TIMED, AGAIN = (DeviceSpeed([TimedLayer(0, 1, took)]) for took in (5, 6))
names = st.sampled_from("abcd")
paths = st.builds(DevicePath, st.floats(0, 10), st.none() | st.floats(1, 1e12))
parts = st.one_of(
    st.builds(PredictedPart, st.floats(0, 10), names, st.sampled_from([None, TIMED, AGAIN])),
    st.builds(PassedPath.part, st.builds(PassedPath, names.map(ends_of), paths), st.floats(0, 10)),
)
sums = st.lists(parts, max_size=30).map(lambda found: [*found, PredictedPart(0.0005)])
factors = st.none() | st.floats(LEAST_FACTOR, MOST_FACTOR).map(lambda one: round(one, 4))


@given(sums, sums, factors, factors)
def test_a_line_reads_as_it_was_written(
    token: list[PredictedPart], prompt: list[PredictedPart], generate: float | None, of_prompts: float | None
) -> None:
    kept = SplitFactors(MODEL, generate, of_prompts, kept_shares([*token, *prompt], prompt))
    line = show(kept)
    assert parsed(line) == kept and len(line) + 65 + 1 <= FACTORS_LINE_BYTES
    assert parsed(line[:-1]) is None and parsed(line[:-2]) is None, "it was cut"
    for share in kept.shares:
        assert 0 <= share.token <= THOUSANDTHS and 0 <= share.prompt <= THOUSANDTHS


@given(st.text() | st.from_regex(r"[0-9a-f]{16}( [0-9.:-]+)* \.", fullmatch=True))
def test_what_nobody_has_written_is_no_line(text: str) -> None:
    found = parsed(text)
    assert found is None or (found.shares == () and show(found) == text)


@pytest.mark.parametrize(
    "line",
    [
        f"{MODEL} 0.8000 0.8000 012345:600:0 6789ab:500:0 .",  # more than the whole
        f"{MODEL} 2.8000 0.8000 .",
        f"{MODEL} 0.0000 - .",
        f"{MODEL} 0.8000 0.8000{' 012345:1:1' * (PARTS_OF_LINE + 1)} .",
        f"{MODEL} 0.8000 0.8000 012345:600:0:5 .",
    ],
)
def test_a_line_that_cannot_be_is_none(line: str) -> None:
    assert parsed(line) is None


garbage = st.builds("{} {}".format, st.from_regex(r"[0-9a-f]{64}", fullmatch=True), st.text())


@given(text=st.lists(st.text(max_size=99) | garbage), end=st.binary(max_size=99))
def test_a_file_of_garbage_teaches_nothing(
    text: list[str], end: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("cache") / "corrections"
    file.write_bytes("\n".join(text).encode() + end)
    found = SpeedCorrections(file).learned("model", frozenset(), {})
    assert not found


def test_a_split_of_too_many_parts_is_kept_without_them() -> None:
    some = [PredictedPart(1.0, f"n{number} CPU", TIMED) for number in range(PARTS_OF_LINE + 1)]
    assert kept_shares(some, some) == () and len(kept_shares(some[1:], some[1:])) == PARTS_OF_LINE


def test_a_device_with_other_times_is_another_one() -> None:
    same, other = PredictedPart(1.0, "a CPU", TIMED), PredictedPart(1.0, "a CPU", AGAIN)
    assert len(kept_shares([same, same], [same])) == 1 and len(kept_shares([same, other], [same])) == 2


@pytest.mark.parametrize(
    ("then", "now", "same"),
    [
        (DevicePath(0.02, 1e7), DevicePath(0.029, 1e7), True),
        (DevicePath(0.02, 1e7), DevicePath(0.031, 1e7), False),
        (DevicePath(0.0001, 1e9), DevicePath(0.001, 1e9), True),  # a wired network under load
        (DevicePath(0.02, 1e7), DevicePath(0.02, 2e7), True),
        (DevicePath(0.02, 1e7), DevicePath(0.02, 1e6), False),
        (DevicePath(0.02, None), DevicePath(0.02, 5e6), True),  # as was assumed
        (DevicePath(0.02, None), DevicePath(0.02, 1e9), False),
    ],
)
def test_a_path_far_from_what_it_was_is_another_one(then: DevicePath, now: DevicePath, same: bool) -> None:
    ends = ends_of("a")
    for before, after in ((then, now), (now, then)):
        (share,) = kept_shares([PredictedPart(1.0, ends=ends, path=before)], [PredictedPart(1.0)])
        assert is_now(share, {path_mark(ends): [after]}) is same
        assert is_now(share, {path_mark(ends): [DevicePath(9.0), after]}) is same, "as either end sees it"
        assert not is_now(share, {})
