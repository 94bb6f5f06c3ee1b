"""Two builds of the native part: what is said when they meet, and the same on both sides."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.wire.versions import NativeVersion, difference, mesh_protocol

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


VERSIONS = st.builds(
    NativeVersion,
    st.sampled_from(["mesh 4", "mesh 5", "mesh 4-5", "mesh 5-6", "7.0.0", "", "x.y", "mesh 9-"]),
    st.sampled_from(["unknown", "aaaa", "bbbb"]),
    st.sampled_from(["aaaa", "bbbb", "unknown"]),
    st.just("cpu"),
)


@given(VERSIONS, VERSIONS)
def test_both_sides_say_the_same(one: NativeVersion, other: NativeVersion) -> None:
    here, there = difference(one, other), difference(other, one)
    assert (here is None) == (there is None)
    if here is not None and there is not None:
        assert here.fits == there.fits
