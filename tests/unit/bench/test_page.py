"""The page of figures: tables are whole, what was not measured is marked, nothing depends on what was."""

from dataclasses import replace

import pytest
from meshd.base.errors import UserError
from meshd.bench.figures import LOCAL, MESHD, STOCK, BenchRun, Figures

from tests.bench.page import (
    Made,
    delayed_table,
    markdown,
    page,
    plain,
    ready_section,
    with_ready_section,
)
from tests.bench.published_figures import DELAYED, NOT_RUN
from tests.bench.ready_figures import ReadinessFigures, ReadyTimes

MADE = Made(when="2026-01-02", machine="a machine", pin="a pin", pairs=3, picture="p.svg")
READY = ReadinessFigures(
    tuple(
        ReadyTimes(workers=workers, rtt_ms=rtt, seconds=seconds)
        for workers, rtt, seconds in ((0, 0.0, 0.3), (2, 0.0, 0.4), (2, 50.0, 0.69))
    )
)
RPC = ("WHAT", "MESHD"), [("decode", "80")]


def run(setup: str, workers: int, rtt: float, token: float, text: str = "sea") -> BenchRun:
    return BenchRun(setup=setup, workers=workers, rtt_ms=rtt, load=1.0, token=token, text=text)


def figures(text: str = "sea") -> Figures:
    runs = run(LOCAL, 0, 0.0, 0.01), run(STOCK, 2, 20.0, 0.05), run(MESHD, 2, 20.0, 0.04, text)
    return Figures(runs)


def test_a_page_says_when_where_and_how() -> None:
    text = page(MADE, figures(), Figures(()), RPC, READY)
    for part in (
        "2026-01-02",
        "a machine",
        "a pin",
        "3 runs per cell",
        "(p.svg)",
        "--workers 2 --rtt 20",
        "80",
    ):
        assert part in text
    assert "All produced the same text" in text
    assert "Targets: all held" in text


def test_what_was_not_held_is_counted() -> None:
    slow = Figures((*figures().runs, *(run(MESHD, 2, 20.0, 0.1) for _ in range(3))))
    assert "2 of 3 not held" in page(MADE, slow, Figures(()), RPC, READY)


def test_a_short_run_says_so() -> None:
    text = page(replace(MADE, short=True), figures(), Figures(()), RPC, READY)
    assert "short run" in text
    assert "short run" not in page(MADE, figures(), Figures(()), RPC, READY)


def test_another_text_is_said() -> None:
    assert "Text different from one node's: meshd, 2 workers, 20 ms" in page(
        MADE, figures("see"), Figures(()), RPC, READY
    )


def test_the_section_of_readiness_says_what_it_is_and_can_be_made_anew() -> None:
    whole = page(MADE, figures(), Figures(()), RPC, READY)
    for part in (
        "python -m tests.bench.readiness --workers 2 --rtt 0,50",
        "All bounds held. Bounds apply to READY, not to FIRST:",
        "≤ 0.700",
        "first real token",
    ):
        assert part in whole
    slower = ReadinessFigures((*READY.runs, ReadyTimes(workers=2, rtt_ms=50.0, seconds=0.73)))
    again = with_ready_section(whole, ready_section(replace(MADE, when="2027-03-04"), slower))
    assert "1 of 1 bounds not held" in again and "2027-03-04" in again
    assert again.split("## Over a distance")[1] == whole.split("## Over a distance")[1]
    assert again.count("## From asking to ready") == 1
    with pytest.raises(UserError, match="no section"):
        with_ready_section("# Another page", ready_section(MADE, READY))


def test_their_delays_stand_beside_ours() -> None:
    first, second = DELAYED[:2]
    delayed = Figures(
        (
            run(STOCK, first.nodes - 1, first.ms, 0.02),
            run(MESHD, first.nodes - 1, first.ms, 0.025),
            *(run(MESHD, second.nodes - 1, second.ms, token) for token in (0.1, 0.05, 0.04)),
        )
    )
    headers, rows = delayed_table(delayed)
    assert len(rows) == len(DELAYED)
    assert {len(row) for row in rows} == {len(headers)}
    assert list(rows[0]) == ["3", "0", "60.2", "1.00", "50.0", "1.00", "40.0", "1.00"]
    assert list(rows[1]) == ["3", "5", "30.1", "0.50", NOT_RUN, "", "20.0 (10.0 to 25.0)", "0.50"]


def test_markdown() -> None:
    assert markdown((("A", "B"), [("1", "x|y")])) == "| A | B |\n| --- | --- |\n| 1 | x/y |"


def test_plain_text_is_aligned() -> None:
    table = ("A", "LONG"), [("7.6 (7.3 to 8.1)", "1"), ("2", "")]
    assert plain(table) == "```\nA              LONG\n7.6 (7.3–8.1)  1\n2\n```"
