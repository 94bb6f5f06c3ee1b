"""Versions of meshd: which of two nodes is to be upgraded, said alike from both sides."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd import __version__
from meshd.wire.versions import NodeVersion, release_of, upgrade_hint

VERSIONS = st.one_of(
    st.tuples(*[st.integers(0, 20)] * 3).map(lambda numbers: ".".join(map(str, numbers))),
    st.text(max_size=12),
)


@pytest.mark.parametrize(
    ("version", "numbers"),
    [
        ("0.1.0", (0, 1, 0)),
        ("10.2.33", (10, 2, 33)),
        ("", None),
        ("0.1", None),
        ("0.1.0rc1", None),
        ("0.1.٣", None),
    ],
)
def test_a_release_has_three_numbers(version: str, numbers: tuple[int, int, int] | None) -> None:
    assert release_of(version) == numbers


def test_this_version_is_a_release() -> None:
    assert release_of(__version__) is not None


@given(VERSIONS, VERSIONS)
def test_both_sides_name_the_same_node(mine: str, theirs: str) -> None:
    one, other = NodeVersion("attic", mine), NodeVersion("garage", theirs)
    here, there = upgrade_hint(one, other), upgrade_hint(other, one)
    if (
        (release_of(mine) or release_of(theirs))
        and None not in (release_of(mine), release_of(theirs))
        and mine != theirs
    ):
        assert here == there and here.startswith("run `meshd upgrade` on ")
    else:
        assert "install the same version" in here and "attic" in here and "garage" in here


def test_numbers_are_compared_as_numbers() -> None:
    assert upgrade_hint(NodeVersion("attic", "0.9.0"), NodeVersion("garage", "0.10.0")) == (
        "run `meshd upgrade` on attic: it has meshd 0.9.0, garage 0.10.0"
    )
