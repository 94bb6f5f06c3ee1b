"""Lines out of bytes, and a log that cannot be had."""

import gc
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import UserError
from meshd.process import output
from meshd.process.output import LINE_BYTES, ChildOutput, LineCutter, show_tail


def cut(*pieces: bytes) -> list[str]:
    cutter = LineCutter()
    lines = [line for piece in pieces for line in cutter.feed(piece)]
    return [*lines, *cutter.flush()]


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ((b"one\ntwo\n",), ["one", "two"]),
        ((b"on", b"e\r\ntwo"), ["one", "two"]),
        ((b"10 %\r20 %\r",), ["10 %", "20 %"]),
        ((b"\n\n\r\n",), []),
        ((b"\x1b[1;31mred\x1b[0m\x07\x1b]0;title\x07!\n",), ["red!"]),
        ((b"tab\tkept \xff\n",), ["tab\tkept \ufffd"]),
        ((b"\xc3", b"\xa4\n"), ["ä"]),
    ],
)
def test_lines(pieces: tuple[bytes, ...], lines: list[str]) -> None:
    assert cut(*pieces) == lines


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_pieces_do_not_matter(pieces: list[bytes]) -> None:
    assert cut(*pieces) == cut(b"".join(pieces))


@given(st.binary(max_size=300))
def test_nothing_that_moves_a_terminal_comes_through(data: bytes) -> None:
    for line in cut(data):
        assert all(letter == "\t" or letter >= " " for letter in line)
        assert "\x7f" not in line
        assert not any("\x80" <= letter <= "\x9f" for letter in line)


def test_a_long_line_is_cut_and_counted_and_kept_small() -> None:
    cutter, piece = LineCutter(), b"z" * 10000
    tracemalloc.start()
    try:
        for _ in range(100):
            assert list(cutter.feed(piece)) == []
        gc.collect()  # Python keeps up to 80 empty lists for later ones, which are not the cutter's
        # only what the cutter made: other threads of the test run may allocate meanwhile
        made_here = tracemalloc.Filter(inclusive=True, filename_pattern=output.__file__)
        traces = tracemalloc.take_snapshot().filter_traces([made_here]).traces
        held = sum(trace.size for trace in traces)
    finally:
        tracemalloc.stop()
    assert LINE_BYTES <= held <= 2 * LINE_BYTES
    assert list(cutter.feed(b"\nnext\n")) == [
        f"{'z' * LINE_BYTES} [{1_000_000 - LINE_BYTES} bytes more]",
        "next",
    ]


async def test_a_folder_that_cannot_be_made_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write log"):
        ChildOutput(tmp_path / "file" / "x.log", limit=1)


def test_show_tail(tmp_path: Path) -> None:
    assert "printed nothing" in show_tail((), tmp_path / "x.log")
    shown = show_tail(("a", "b" * 1000), tmp_path / "x.log").splitlines()
    assert shown[0].endswith("x.log`):")
    assert shown[1:] == ["  a", "  " + "b" * 400]
