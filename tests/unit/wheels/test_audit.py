"""wheels.audit: a report bears out the name of a wheel, or it does not."""

import pytest
from wheels.audit import bears_out

NAME = "meshd_native-0.1.0-py3-none-manylinux_2_28_x86_64.whl"
REPORT = '\n{} is consistent\nwith the following platform tag: "{}".\n\nThe wheel references …\n'


@pytest.mark.parametrize(
    ("tag", "fits"),
    [
        ("manylinux_2_27_x86_64", True),
        ("manylinux_2_28_x86_64", True),
        ("manylinux_2_36_x86_64", False),
        ("manylinux_3_1_x86_64", False),
        ("linux_x86_64", False),
        ("manylinux_2_27_aarch64", False),
    ],
)
def test_no_newer_or_other_system_than_the_name_says(tag: str, fits: bool) -> None:
    assert bears_out(NAME, REPORT.format(NAME, tag)) is fits


def test_the_tag_may_be_on_the_next_line() -> None:
    assert bears_out(NAME, 'with the following platform\ntag: "manylinux_2_17_x86_64".')


def test_without_a_tag_nothing_is_borne_out() -> None:
    assert not bears_out(NAME, "")
    assert not bears_out(
        "meshd_native-0.1.0-py3-none-linux_x86_64.whl", REPORT.format("", "manylinux_2_17_x86_64")
    )
