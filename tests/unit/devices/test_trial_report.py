"""What the trial of a device prints, and what that says of the device."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.devices.trial_report import TrialReport
from meshd.process.interface import Ended

WORDS = ("mul_mat:q4_0:576", "rope:64:9:64")
GOOD, BAD, USAGE = Ended(0, None, ()), Ended(2, None, ()), Ended(1, None, ())
CRASHED = Ended(None, 11, ())


def report(*lines: str) -> TrialReport:
    made = TrialReport(WORDS)
    for line in lines:
        made.see(line)
    return made


def test_all_right() -> None:
    made = report(
        "ggml_vulkan: Found 1 Vulkan devices:",
        "trying mul_mat:q4_0:576",
        "right mul_mat:q4_0:576 1.0e-08",
        "trying rope:64:9:64",
        "unknown rope:64:9:64",
        "tried 2",
    )
    assert made.why_unfit(GOOD) == ""
    assert made.was_tried(GOOD)


def test_one_that_it_lacks_is_a_failure() -> None:
    made = report("trying rope:64:9:64", "lacks rope:64:9:64 ROPE", "tried 1")
    assert made.why_unfit(GOOD) == "it cannot compute rope:64:9:64 (ROPE)"


def test_wrong_and_failed_ones_are_named() -> None:
    made = report(
        "trying mul_mat:q4_0:576",
        "wrong mul_mat:q4_0:576 1.0e+00 2.0e-03",
        "trying rope:64:9:64",
        "failed rope:64:9:64 memory",
        "tried 2",
    )
    why = "it computes mul_mat:q4_0:576 wrong (error 1.0e+00, 2.0e-03 is allowed), and 1 more"
    assert made.why_unfit(BAD) == why
    assert report("failed device it cannot be opened").why_unfit(BAD) == "it cannot be opened"
    assert report("failed device its memory is odd").why_unfit(BAD) == "its memory is odd"
    assert report("failed device").why_unfit(BAD) == "it cannot be opened"


@pytest.mark.parametrize(
    ("ended", "why"),
    [
        (CRASHED, "its trial was ended by SIGSEGV while it computed rope:64:9:64"),
        (
            Ended(None, 9, (), "the memory of this machine ran out"),
            "its trial was ended by the kernel while it computed rope:64:9:64: "
            "the memory of this machine ran out",
        ),
        (None, "its trial hung while it computed rope:64:9:64"),
        (Ended(3, None, ()), "its trial ended with exit code 3 while it computed rope:64:9:64"),
        (GOOD, "its trial ended with exit code 0 while it computed rope:64:9:64"),
    ],
)
def test_an_end_before_the_end_names_the_operation(ended: Ended | None, why: str) -> None:
    made = report("trying mul_mat:q4_0:576", "right mul_mat:q4_0:576 0.0", "trying rope:64:9:64")
    assert made.why_unfit(ended) == why


@pytest.mark.parametrize("ended", [CRASHED, None, GOOD, BAD])
def test_an_end_before_the_beginning_is_a_failure_as_well(ended: Ended | None) -> None:
    assert report("some driver's words").why_unfit(ended)


def test_a_program_that_knows_no_trial_says_nothing_of_the_device() -> None:
    made = report("error: unknown argument: --try-device", "Usage: mesh-server")
    assert made.why_unfit(USAGE) == ""
    assert not made.was_tried(USAGE)


KINDS = st.sampled_from(["trying", "right", "wrong", "failed", "lacks", "unknown", "tried", ""])
LINES = st.builds("{} {} {}".format, KINDS, st.sampled_from([*WORDS, "device", "2"]), st.text(max_size=300))
ENDS = st.sampled_from([GOOD, BAD, USAGE, CRASHED, None])


@given(st.lists(st.text(max_size=80) | LINES, max_size=30), ENDS)
def test_whatever_is_printed_gives_a_reason_that_can_be_sent(lines: list[str], ended: Ended | None) -> None:
    why = report(*lines).why_unfit(ended)
    assert len(why) < 500 and why.isprintable()
