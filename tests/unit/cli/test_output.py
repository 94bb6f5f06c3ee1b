"""stdout for results, stderr for the rest; bars only on a terminal; nothing a peer says moves the cursor."""

import io
import json
import re
import threading

from hypothesis import given
from hypothesis import strategies as st
from meshd.base.units import in_time
from meshd.cli.layout import State
from meshd.cli.output import Output

from .shell import Terminal


def plain() -> tuple[Output, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return Output(out, err, {}), out, err


def on_terminal(**environ: str) -> tuple[Output, io.StringIO, io.StringIO]:
    out, err = Terminal(), Terminal()
    return Output(out, err, environ, width=40), out, err


def plain_lines(lines: list[str]) -> list[str]:
    return [re.sub(r"\x1b\[\d+m", "", line) for line in lines]


def test_results_and_remarks_go_their_own_ways() -> None:
    output, out, err = plain()
    output.line("result")
    output.note("remark")
    output.progress("step", 0.5)
    output.error("it broke", "fix it")
    assert out.getvalue() == "result\n"
    assert err.getvalue() == "remark\nstep\nerror: it broke\n\nhint: fix it\n"


def test_an_error_without_a_hint_is_one_line() -> None:
    output, _, err = plain()
    output.error("it broke")
    assert err.getvalue() == "error: it broke\n"


def test_progress_is_a_line_for_each_step_without_a_terminal() -> None:
    output, _, err = plain()
    for share in (0.1, 0.2):
        output.progress("compile", share)
    output.progress("link")
    assert err.getvalue() == "compile\nlink\n"


def test_progress_is_a_bar_on_a_terminal_and_goes_before_a_result() -> None:
    output, out, err = on_terminal(NO_COLOR="1")
    output.progress("compile", 0.5)
    assert err.getvalue() == "\r[############............]  50% compile\x1b[K"
    output.line("done")
    assert err.getvalue().endswith("\r\x1b[K") and out.getvalue() == "done\n"


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _after(output: Output, clock: _Clock, seconds: int) -> None:
    for _ in range(seconds):
        clock.now += 1.0
        output.remind()


def test_a_step_without_progress_is_shown_again_every_three_seconds() -> None:
    clock, err = _Clock(), io.StringIO()
    output = Output(io.StringIO(), err, {}, clock=clock)
    output.progress("asking the hub")
    _after(output, clock, 2)
    assert err.getvalue() == "asking the hub\n"
    _after(output, clock, 5)
    output.progress("asking the hub")  # as a poll repeats it: nothing new
    assert err.getvalue().splitlines() == ["asking the hub", "asking the hub (3 s)", "asking the hub (6 s)"]
    output.progress("downloading", 0.5)
    _after(output, clock, 4)
    assert err.getvalue().splitlines()[3:] == ["downloading", "downloading (3 s)"]
    _after(output, clock, 600)
    assert 20 <= len(err.getvalue().splitlines()) <= 40  # lines of a log become rare


def test_what_follows_a_step_ends_its_reminders() -> None:
    for say in (Output.line, Output.note, Output.raw, Output.error):
        clock, err = _Clock(), io.StringIO()
        output = Output(io.StringIO(), err, {}, clock=clock)
        output.progress("asking the hub")
        say(output, "it answers")
        before = err.getvalue()
        _after(output, clock, 10)
        assert err.getvalue() == before


def test_reminders_come_while_the_caller_is_blocked() -> None:
    class Seen(io.StringIO):
        """Tells when a reminder was written."""

        def __init__(self) -> None:
            super().__init__()
            self.reminded = threading.Event()

        def write(self, text: str) -> int:
            if "asking (" in text:
                self.reminded.set()
            return super().write(text)

    clock, err = _Clock(), Seen()
    output = Output(io.StringIO(), err, {}, clock=clock)
    with output.reminding():
        output.progress("asking")
        clock.now += 3.0
        assert err.reminded.wait(30)
    assert not [thread for thread in threading.enumerate() if thread.name == "reminder"]


def test_colour_only_on_a_terminal_that_wants_it() -> None:
    for output, out, err in (plain(), on_terminal(NO_COLOR="1"), on_terminal(TERM="dumb")):
        output.error("x", "y")
        output.line(State("ready"))
        assert "\x1b" not in err.getvalue() + out.getvalue()
    output, out, err = on_terminal()
    output.error("x", "y")
    output.line(State("ready"))
    assert "\x1b[31merror:\x1b[0m x" in err.getvalue()
    assert out.getvalue() == "\x1b[32mready\x1b[0m\n"


def test_colour_can_be_forced_but_not_against_no_color() -> None:
    for environ, coloured in (
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True),
        ({"FORCE_COLOR": ""}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ):
        out, err = io.StringIO(), io.StringIO()
        output = Output(out, err, environ)
        output.line(State("ready"))
        output.error("x")
        assert ("\x1b[32m" in out.getvalue(), "\x1b[31m" in err.getvalue()) == (coloured, coloured)


def test_long_lines_are_broken_for_a_terminal_alone() -> None:
    words = "a sentence of some words that is wider than the terminal"
    for output, out, err in (plain(), on_terminal()):
        output.field("label", words)
        output.text(words)
        output.note(words)
        output.line(words)
        *broken, whole = out.getvalue().splitlines()
        assert whole == words  # a line is somebody's to copy
        if output.terminal:
            assert max(map(len, plain_lines(broken + err.getvalue().splitlines()))) <= 40
            broken = plain_lines(broken)
            assert broken[0].startswith("label   a sentence") and broken[1].startswith(" " * 8 + "wider")
        else:
            assert broken == [f"label   {words}", words] and err.getvalue() == f"{words}\n"


def test_an_encoding_without_drawings_gets_letters() -> None:
    raw = io.BytesIO()
    latin = io.TextIOWrapper(raw, encoding="latin-1")
    latin.isatty = lambda: True  # type: ignore[method-assign]
    output = Output(io.StringIO(), latin, {}, width=40)
    output.progress("a step with many words, more than fit on a line", 0.5)
    assert b"[############............]  50% a step." in raw.getvalue()


def test_a_table_is_that_of_the_layout() -> None:
    output, out, _ = plain()
    output.table(("A", "LONGER"), [("wide cell", "b"), ("", "x" * 200)])
    assert out.getvalue() == f"A          LONGER\nwide cell  b\n           {'x' * 200}\n"
    output, out, _ = on_terminal(NO_COLOR="1")
    output.table(("A", "B"), [("a", "x" * 200)])
    assert max(map(len, out.getvalue().splitlines())) == 40 and out.getvalue().count("x") == 200
    output, out, _ = plain()
    output.table(("A",), [("a",)], label="models")
    assert out.getvalue() == "models  A\n        a\n"


def test_json_is_one_document() -> None:
    output, out, _ = plain()
    output.json({"a": [1, None, "ä\n"]})
    assert json.loads(out.getvalue()) == {"schema": 1, "a": [1, None, "ä\n"]}
    output, out, _ = plain()
    output.json({"a": 1}, compact=True)
    assert out.getvalue() == '{"schema": 1, "a": 1}\n'


@given(name=st.text(max_size=30))
def test_no_name_moves_the_cursor(name: str) -> None:
    output, out, err = plain()
    output.table(("NAME",), [(name,)])
    output.line(name)
    output.note(name)
    output.progress(name)
    for char in out.getvalue() + err.getvalue():
        assert char == "\n" or char.isprintable()


def test_times_for_people() -> None:
    assert [in_time(s) for s in (0, 59.6, 119, 120, 7199, 7800, 86_400, 200_000, 259_200)] == [
        "0 s",
        "60 s",
        "119 s",
        "2 min",
        "119 min",
        "2 h 10 min",
        "24 h",
        "2 d 7 h",
        "3 d",
    ]


def test_a_table_takes_the_place_of_progress() -> None:
    err = Terminal()
    output = Output(Terminal(), err, {"TERM": "xterm"})
    output.progress("measuring devices")
    output.table(("NODE",), [("garage",)])
    assert err.getvalue() == "\rmeasuring devices\x1b[K\r\x1b[K"


def test_the_width_is_the_terminals() -> None:
    assert Output(Terminal(), Terminal(), {"COLUMNS": "72"}).layout.width == 72
    assert Output(io.StringIO(), io.StringIO(), {"COLUMNS": "72"}).layout.width is None
