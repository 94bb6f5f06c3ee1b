"""Two builds of llama.cpp: what is said when they meet, and the same on both sides."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.wire.native import NativeVersion, difference, mesh_protocol

MINE = NativeVersion("7.0.0", "0c1e57098bba43ac", "cdd189b23d80d5d8", "cpu")


@pytest.mark.parametrize(
    "theirs",
    [
        MINE,
        replace(MINE, backend="cuda"),
        replace(MINE, rpc="7.0.9"),
        replace(MINE, pin="unknown"),
        replace(MINE, rpc=""),
        replace(MINE, patches=MINE.patches[:12]),
        replace(MINE, patches="unknown", pin="unknown"),
    ],
)
def test_what_works_together_is_not_spoken_of(theirs: NativeVersion) -> None:
    assert difference(MINE, theirs) is None


@pytest.mark.parametrize(
    ("theirs", "what", "hint"),
    [
        (replace(MINE, rpc="8.0.0"), "RPC protocol 8.0.0, this node 7.0.0", "this node has the older"),
        (replace(MINE, rpc="7.1.0"), "RPC protocol 7.1.0, this node 7.0.0", "this node has the older"),
        (replace(MINE, rpc="6.4.2", pin="unknown"), "RPC protocol 6.4.2", "it has the older"),
        (replace(MINE, pin="ffff" * 10), "llama.cpp ffffffffffff, this node 0c1e57098bba", "native build"),
    ],
)
def test_what_cannot_work_is_told_with_what_to_do(theirs: NativeVersion, what: str, hint: str) -> None:
    found = difference(MINE, theirs)
    assert found is not None
    assert not found.fits
    assert what in found.what
    assert hint in found.hint


@pytest.mark.parametrize(
    ("theirs", "what"),
    [
        (replace(MINE, patches="stock"), "runs a llama.cpp without meshd's patches"),
        (replace(MINE, patches="stock", pin="unknown"), "without meshd's patches"),
        (replace(MINE, patches="ffff"), "other patches of llama.cpp (ffff) than this node (cdd189b23d80)"),
    ],
)
def test_what_works_but_slower_is_told_as_such(theirs: NativeVersion, what: str) -> None:
    found = difference(MINE, theirs)
    assert found is not None
    assert found.fits
    assert what in found.what


VERSIONS = st.builds(
    NativeVersion,
    st.sampled_from(["7.0.0", "7.1.0", "8.0.0", "", "x.y", "7", "٧.٠.٠", "9" * 50 + ".0"]),
    st.sampled_from(["unknown", "aaaa", "bbbb"]),
    st.sampled_from(["stock", "aaaa", "bbbb", "unknown"]),
    st.just("cpu"),
)


@given(VERSIONS, VERSIONS)
def test_both_sides_say_the_same(one: NativeVersion, other: NativeVersion) -> None:
    here, there = difference(one, other), difference(other, one)
    assert (here is None) == (there is None)
    if here is not None and there is not None:
        assert here.fits == there.fits


def test_each_version_says_which_protocol_it_is_of() -> None:
    assert MINE.protocol == "rpc"
    assert replace(MINE, rpc="").protocol == "rpc"
    assert replace(MINE, rpc=mesh_protocol(2)).protocol == "mesh 2"


@pytest.mark.parametrize(
    ("mine", "theirs", "hint"),
    [
        ("7.0.0", "mesh 2", "the same `--native-protocol`"),
        ("mesh 2", "7.0.0", "the same `--native-protocol`"),
        ("mesh 2", "mesh 3", "the same version of meshd"),
    ],
)
def test_other_protocols_do_not_work_together(mine: str, theirs: str, hint: str) -> None:
    found = difference(replace(MINE, rpc=mine), replace(MINE, rpc=theirs))
    assert found is not None
    assert not found.fits
    assert "speaks the native protocol `" in found.what
    assert hint in found.hint


def test_the_same_protocol_of_native_mesh_is_not_spoken_of() -> None:
    assert difference(replace(MINE, rpc="mesh 2"), replace(MINE, rpc="mesh 2")) is None
