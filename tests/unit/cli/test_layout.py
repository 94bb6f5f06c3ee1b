"""Text for a terminal: it fits, and nothing that a peer says moves the cursor or is taken for markup."""

import re

import pytest
import segno
from hypothesis import given
from hypothesis import strategies as st
from meshd.cli.layout import Layout, State, clean
from rich.cells import cell_len

SGR = re.compile(r"\x1b\[[0-9;]*m")
HOSTILE = st.text(max_size=30) | st.sampled_from(
    [
        "[red]x[/red]",
        "\x1b[2J",
        "\x1b]0;title\x07",
        "\u202eevil",
        "zero\u200bwidth",
        "漢字",
        "e\u0301" * 5,
        "a\r\nb",
    ]
)
HEADERS = ("PEER", "ID", "STATE", "NOTE")


def is_inert(text: str) -> bool:
    return all(char == "\n" or char.isprintable() for char in SGR.sub("", text))


def cells(line: str) -> int:
    return cell_len(SGR.sub("", line))


@given(
    st.lists(st.tuples(HOSTILE, HOSTILE, HOSTILE, HOSTILE), max_size=4), st.integers(1, 120), st.booleans()
)
def test_what_a_peer_says_moves_nothing_and_fits(
    rows: list[tuple[str, str, str, str]], width: int, colours: bool
) -> None:
    layout = Layout(width, colours)
    given_rows = [(name, short, State(state), note) for name, short, state, note in rows]
    table = layout.table(HEADERS, given_rows, label="peers", indent=8, drop=("ID",), below="NOTE")
    assert is_inert(table)
    if width >= 60:
        assert max(map(cells, table.split("\n"))) <= width
    for name, *_ in rows:
        assert is_inert(layout.wrapped(layout.inert(name, State(name)), 4))
        assert is_inert(layout.cut(layout.inert(name)))


@given(HOSTILE, st.integers(12, 60))
def test_a_cut_line_leaves_the_cursor_on_it(text: str, width: int) -> None:
    line = clean(text).replace("\n", " ")
    assert cells(Layout(width, colours=True).cut(line)) < max(width, 3)


def test_markup_is_text() -> None:
    for layout in (Layout(), Layout(36, colours=True)):
        shown = layout.table(("NAME", "NOTE"), [("[red]x[/red]", "[bold]words[/bold] " * 3)])
        assert "[red]x[/red]" in shown and shown.count("[bold]words[/bold]") == 3


def test_no_name_makes_a_row_of_its_own() -> None:
    rows = [("desk\nattic  ok", State("lost\nok")), ("loft", State("ok"))]
    assert Layout(colours=True).table(("NODE", "STATE"), rows).count("\n") == 3


def test_clean_keeps_what_can_be_shown() -> None:
    assert clean("Grüße 😀\n") == "Grüße 😀\n"
    assert clean("a\x1b[2Jb\rc\u202e") == "a�[2Jb�c�"


def test_states_have_three_colours() -> None:
    shown = [Layout(colours=True).inert(State(text)) for text in ("ready", "failed: no memory", "away 3 min")]
    assert [text[:5] for text in shown] == ["\x1b[32m", "\x1b[31m", "\x1b[33m"]
    for text in ("ready", State("known")):  # what a peer says, and what is neither good nor bad
        assert Layout(colours=True).inert(text) == text


def test_lines_are_broken_at_spaces_but_not_in_a_command() -> None:
    text = "no worker is connected: run `meshd worker --join INVITE` on another machine"
    assert Layout(40).wrapped(text, 2).splitlines() == [
        "no worker is connected: run",
        "  `meshd worker --join INVITE` on",
        "  another machine",
    ]
    assert Layout().wrapped(text, 2) == text
    assert Layout(5).wrapped(text, 2) == text  # the terminal breaks it


def test_an_amount_is_not_parted_from_its_unit() -> None:
    assert Layout(14).wrapped("it has 12.5 GiB free").splitlines() == ["it has", "12.5 GiB free"]


def test_a_long_word_stays_whole() -> None:
    assert Layout(20).wrapped(f"see {'x' * 40} there") == f"see\n{'x' * 40}\nthere"


def test_a_path_that_is_too_long_is_broken_after_a_slash() -> None:
    text = f"`{'/folder' * 5}/file.gguf` is complete"
    lines = Layout(30).wrapped(text, 6).splitlines()
    assert [line.strip() for line in lines] == [
        "`/folder/folder/folder/",
        "folder/folder/file.gguf`",
        "is complete",
    ]
    assert all(line.startswith(" " * 6) and len(line) <= 30 for line in lines[1:])
    command = f"`meshd worker --model {'/folder' * 5}`"
    assert Layout(30).wrapped(f"run {command}", 6).splitlines()[1].strip() == command


def test_wide_characters_take_two_cells() -> None:
    assert Layout(12).wrapped("漢字漢字 漢字漢字") == "漢字漢字\n漢字漢字"
    table = Layout(40).table(("A", "B"), [("漢字", "x"), ("abcd", "y")])
    assert table.splitlines()[1:] == ["漢字  x", "abcd  y"]


def test_a_narrow_table_first_loses_columns_then_moves_the_note_then_breaks_cells() -> None:
    row = ("garage", "abcdefghij", "connected", "a reason of some words")
    layouts = {
        width: Layout(width).table(HEADERS, [row], drop=("ID",), below="NOTE") for width in (60, 50, 30, 14)
    }
    assert layouts[60].splitlines()[0].split() == list(HEADERS)
    assert layouts[50].splitlines()[0].split() == ["PEER", "STATE", "NOTE"]
    assert layouts[30].splitlines() == ["PEER    STATE", "garage  connected", "  a reason of some words"]
    assert max(map(len, layouts[14].splitlines())) <= 14


@pytest.mark.parametrize("share", [-1.0, 0.0, 0.5, 1.0, 7.0])
def test_a_bar_has_an_end(share: float) -> None:
    full = round(24 * min(max(share, 0), 1))
    assert Layout().bar(share).count("#") == full
    assert Layout(colours=True, draws=False).bar(share).count("#") == full
    assert Layout(colours=True).bar(share).partition("\x1b[0m")[0].count("━") == full


def modules(drawn: str) -> list[list[bool]]:
    """The dark modules of a QR code in half blocks."""
    lines = [SGR.sub("", line) for line in drawn.splitlines()]
    halves = {"█": (0, 0), "▀": (0, 1), "▄": (1, 0), " ": (1, 1)}
    return [[bool(halves[char][half]) for char in line] for line in lines for half in (0, 1)]


def test_a_qr_code_is_the_one_of_its_text() -> None:
    token = f"MESHD1{'AB2' * 70}"
    expected = [[bool(one) for one in row] for row in segno.make(token, error="l").matrix_iter(border=2)]
    for layout in (Layout(), Layout(80, colours=True)):
        drawn = layout.qr_code(token)
        assert drawn is not None
        assert modules(drawn)[: len(expected)] == expected
    assert Layout(40).qr_code(token) is None
    assert Layout(80, draws=False).qr_code(token) is None


def test_a_command_on_a_line_of_its_own_can_be_copied() -> None:
    command = f"meshd accept meshdreply1{'x' * 40}"
    assert (
        Layout(30).wrapped(f"it cannot be reached; run there:\n\n{command}\n")
        == f"it cannot be reached; run\nthere:\n\n{command}\n"
    )
