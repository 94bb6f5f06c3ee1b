"""Text for people: inert words of peers, states in colour, lines and columns that fit the terminal.

Nothing here writes anything, and nothing reads markup: a name such as `[red]` is shown as it is. Widths are
in cells, of which a wide character takes two. Text that was made inert may carry colours, which take none.
"""

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_BAR_CELLS = 24
_LEAST_CELLS = 12  # of text beside its indentation: on a narrower terminal, the terminal breaks the lines
_GAP = 2  # cells between two columns
_SHORT_CELLS = 16  # a column that is no wider is not broken
_BOLD, _DIM, _RED, _GREEN, _YELLOW, _RESET = (f"\x1b[{code}m" for code in (1, 2, 31, 32, 33, 0))
_COLOUR = re.compile(r"\x1b\[\d+m")
_QR = "\x1b[97;40m"  # white on black, whatever the terminal's colours are
_HALVES = {(0, 0): "█", (0, 1): "▀", (1, 0): "▄", (1, 1): " "}  # of a QR code, whose ones are dark
_GOOD = frozenset({"ok", "ready", "done", "there", "connected", "loaded", "running", "on"})
_BAD = frozenset({"error", "failed", "lost"})
_UNEASY = frozenset(
    {
        "warning",
        "waiting",
        "loading",
        "fetching",
        "connecting",
        "suspended",
        "away",
        "degraded",
        "paused",
        "not",
    }
)
# What stands between backticks is one word, as somebody will copy the command; so is an amount with its unit.
_UNIT = r"(?:[kMGT]?B|[MG]iB|ms|s|min|h|d|(?:tok|tokens|GFLOP)/s)\b"
_WORD = re.compile(rf"( *)((?:`[^`\n]*`|(?<=\d) (?={_UNIT})|[^ \n])+)")


class State(str):
    """The state of something, such as `ready` or `away 3 min`. A terminal shows in colour how good it is."""

    __slots__ = ()

    @property
    def style(self) -> str:
        """Return the colour that its first word has, if it is good, bad or in between."""
        word = self.partition(" ")[0].rstrip(":,;")
        styles = ((_GOOD, _GREEN), (_UNEASY, _YELLOW), (_BAD, _RED))
        return next((style for words, style in styles if word in words), "")


@dataclass(frozen=True, slots=True)
class Layout:
    """Lays out text for one stream. `width` in cells; None: a line may have any length."""

    width: int | None = None
    colours: bool = False
    draws: bool = True
    """The stream's encoding has characters for drawing."""

    def bold(self, text: str) -> str:
        """Return the text in bold."""
        return f"{_BOLD}{text}{_RESET}" if self.colours and text else text

    def dim(self, text: str) -> str:
        """Return the text in a weak colour."""
        return f"{_DIM}{text}{_RESET}" if self.colours and text else text

    def inert(self, *parts: str) -> str:
        """Return the parts as one text that moves no cursor, its states in colour."""
        return "".join(map(self._coloured, parts))

    def _coloured(self, part: str) -> str:
        style = part.style if self.colours and isinstance(part, State) else ""
        return f"{style}{clean(part)}{_RESET}" if style else clean(part)

    def wrapped(self, text: str, indent: int = 0) -> str:
        """Return inert text in lines that fit, all but the first indented.

        Lines are broken at spaces, though not between backticks, and in a path that is too long at slashes.
        Any other word that is too long stays whole, as does a command, which somebody will copy.
        """
        lines = text.split("\n")
        if self.width is not None and self.width - indent >= _LEAST_CELLS:
            most = self.width - indent
            broken = ([line] if line.startswith("meshd ") else _broken(line, most) for line in lines)
            lines = [piece for pieces in broken for piece in pieces]
        return f"\n{' ' * indent}".join(lines)

    def table(
        self,
        headers: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        label: str = "",
        indent: int = 0,
        drop: Sequence[str] = (),
        below: str = "",
    ) -> str:
        """Return the lines of a table, each ended, `label` in the indentation of the first one.

        A table that is too wide loses the columns in `drop`, the first of them first. Then the cells of the
        column `below` go to lines of their own below their rows. Then wide columns are broken.
        """
        columns = [tuple(map(_in_one_line, column)) for column in zip(headers, *rows, strict=True)]
        most = None if self.width is None else max(1, self.width - indent)
        for header in drop:
            if most is None or _width_of(columns) <= most:
                break
            columns = [column for column in columns if column[0] != header]
        if most is None or _width_of(columns) <= most:
            lines = self._padded(columns)
        elif _width_of(rest := [column for column in columns if column[0] != below]) <= most:
            [notes] = [column[1:] for column in columns if column[0] == below]
            lines = self._with_notes(self._padded(rest), notes, indent)
        else:
            lines = self._folded(columns, most)
        first = label.ljust(indent)
        return "".join(f"{' ' * indent if number else first}{line}\n" for number, line in enumerate(lines))

    def _with_notes(self, lines: Sequence[str], notes: Sequence[str], indent: int) -> list[str]:
        """Return the lines of a table, each row followed by its note."""
        found = [lines[0]]
        for line, note in zip(lines[1:], notes, strict=True):
            found.append(line)
            if note not in ("", "-"):
                found.append("  " + self.wrapped(self.inert(note), indent + 2))
        return found

    def _padded(self, columns: Sequence[Sequence[str]]) -> list[str]:
        """Return the lines of columns that are as wide as their widest cell."""
        widths = [max(map(_cells, map(clean, column))) for column in columns]
        lines = []
        for number, row in enumerate(zip(*columns, strict=True)):
            shown = [self.bold(clean(cell)) if number == 0 else self.inert(cell) for cell in row]
            padded = (cell + " " * (width - _cells(cell)) for cell, width in zip(shown, widths, strict=True))
            lines.append((" " * _GAP).join(padded).rstrip())
        return lines

    def _folded(self, columns: Sequence[Sequence[str]], most: int) -> list[str]:
        """Return the lines of columns of which the wide ones are broken into several lines."""
        from rich.console import Console  # 30 ms and 2 MB, for few tables
        from rich.table import Table
        from rich.text import Text

        # Short columns stay whole if that leaves room for the others.
        widths = [max(map(_cells, map(clean, column))) for column in columns]
        others = most - sum(width + _GAP for width in widths if width <= _SHORT_CELLS)
        keeps = others >= _SHORT_CELLS * sum(width > _SHORT_CELLS for width in widths)
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
        for (header, *_), width in zip(columns, widths, strict=True):
            is_whole = keeps and width <= _SHORT_CELLS
            table.add_column(Text(clean(header)), header_style="bold", no_wrap=is_whole, overflow="fold")
        for row in zip(*(column[1:] for column in columns), strict=True):
            table.add_row(*(Text.from_ansi(self.inert(cell)) for cell in row))
        written = io.StringIO()
        console = Console(
            file=written,
            width=most,
            color_system="standard" if self.colours else None,
            force_terminal=self.colours,
            no_color=not self.colours,
            legacy_windows=False,
        )
        console.print(table)
        return [line.rstrip() for line in written.getvalue().splitlines()]

    def bar(self, share: float) -> str:
        """Return a progress bar and a percentage; `share` from 0 to 1."""
        share = min(max(share, 0.0), 1.0)
        full = round(_BAR_CELLS * share)
        if self.colours and self.draws:
            shown = f"{_GREEN}{'━' * full}{_RESET}{_DIM}{'━' * (_BAR_CELLS - full)}{_RESET}"
        else:
            shown = f"[{'#' * full}{'.' * (_BAR_CELLS - full)}]"
        return f"{shown} {share:4.0%}"

    def cut(self, text: str) -> str:
        """Return inert text, cut where it would reach the end of the line."""
        if self.width is None or _cells(text) < self.width:
            return text
        kept, left = "", self.width - 2
        end = ("" if _COLOUR.search(text) is None else _RESET) + ("…" if self.draws else ".")
        for piece in re.split(f"({_COLOUR.pattern})", text):
            for char in [piece] if _COLOUR.fullmatch(piece) else piece:
                left -= _cells(char)
                if left < 0:
                    return kept + end
                kept += char
        return kept

    def qr_code(self, text: str) -> str | None:
        """Return a QR code, two of its rows to a line; None if it does not fit, or cannot be drawn."""
        import segno

        rows = [bytes(row) for row in segno.make(text, error="l", micro=False).matrix_iter(border=2)]
        if not self.draws or (self.width is not None and len(rows[0]) > self.width):
            return None
        lines = []
        for upper, lower in zip(rows[::2], [*rows[1::2], bytes(len(rows[0]))], strict=False):
            halves = "".join(_HALVES[pair] for pair in zip(upper, lower, strict=True))
            lines.append(f"{_QR}{halves}{_RESET}" if self.colours else halves)
        return "\n".join(lines)


def clean(text: str) -> str:
    """Return `text` without control characters, but for the ends of lines."""
    if text.isprintable():
        return str(text)
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in text)


def _in_one_line(cell: str) -> str:
    """Return the cell without ends of lines, after which a name would look like another row."""
    return type(cell)(cell.replace("\n", " ")) if "\n" in cell else cell


def _cells(text: str) -> int:
    """Return the width of inert text."""
    text = _COLOUR.sub("", text)
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # 2 ms, without the rest of rich

    return cell_len(text)


def _width_of(columns: Sequence[Sequence[str]]) -> int:
    widths = (max(map(_cells, map(clean, column))) for column in columns)
    return sum(widths) + _GAP * (len(columns) - 1)


def _parted(words: Sequence[tuple[str, str]], most: int) -> Iterator[tuple[str, str]]:
    """Yield words and the spaces before them; a path that is wider than a line becomes several words."""
    for spaces, word in words:
        if _cells(word) <= most or " " in word or "/" not in word:
            yield spaces, word
            continue
        for part in re.findall(r"[^/]*/+|[^/]+$", word):
            yield spaces, part
            spaces = ""


def _broken(line: str, most: int) -> Iterator[str]:
    """Yield the pieces of a line that are no wider than `most`."""
    piece = ""
    for spaces, word in _parted(_WORD.findall(line), most):
        if piece and _cells(piece) + len(spaces) + _cells(word) > most:
            yield piece
            piece = word
        else:
            piece += spaces + word
    yield piece
