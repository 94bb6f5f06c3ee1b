"""Test what follows from measurements: medians, promises, tables."""

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.bench.figures import (
    DEFAULTS,
    ENDS_ON_CPU,
    LOCAL,
    MESHD,
    STOCK,
    BenchRun,
    Figures,
    cell_table,
    defaults_table,
    promise_table,
    promises,
    without,
)

from tests.bench.speed_curve import (
    BOTTOM_MARGIN,
    HEIGHT,
    LEFT_MARGIN,
    RIGHT_MARGIN,
    TOP_MARGIN,
    WIDTH,
    CurveLine,
    draw,
    marks,
)

SVG = "{http://www.w3.org/2000/svg}"
amounts = st.floats(0, 1e6, allow_nan=False)


def run(setup: str, workers: int, rtt: float, load: float, token: float = 0.0, text: str = "") -> BenchRun:
    return BenchRun(setup=setup, workers=workers, rtt_ms=rtt, load=load, token=token, text=text)


ALONE = run(LOCAL, 0, 0.0, 0.3, 0.008, "sea")


def held(*runs: BenchRun) -> dict[str, bool]:
    return {one.what: one.held for one in promises(Figures(runs))}


def test_medians() -> None:
    figures = Figures((*(run(MESHD, 2, 20.0, load) for load in (3.0, 1.0, 2.0)), run(STOCK, 2, 20.0, 9.0)))
    assert figures.median(MESHD, 2, 20.0, "load") == 2.0
    assert figures.median(STOCK, 2, 20.0, "load") == 9.0
    assert figures.median(MESHD, 4, 20.0, "load") is None
    assert figures.median(MESHD, 2, 20.0, "token") is None, "it was not measured"


@pytest.mark.parametrize(("load", "kept"), [(0.459, True), (0.461, False)])
def test_a_load_takes_the_local_time_and_eight_round_trips(load: float, kept: bool) -> None:
    found = held(ALONE, run(STOCK, 2, 20.0, 2.7), run(MESHD, 2, 20.0, load))
    assert found == {"load, 2 workers, RTT 20: local + 8 round trips": kept}


@pytest.mark.parametrize(
    ("workers", "rtt", "most"), [(2, 20.0, 0.85), (4, 50.0, 0.75), (1, 0.0, 1.03), (4, 0.0, 1.03)]
)
def test_a_token_takes_at_most_a_share_of_stocks(workers: int, rtt: float, most: float) -> None:
    def kept(ratio: float) -> list[bool]:
        runs = run(STOCK, workers, rtt, 1.0, 0.1), run(MESHD, workers, rtt, 1.0, 0.1 * ratio)
        return [one.held for one in promises(Figures(runs)) if "of stock" in one.what]

    assert kept(most - 0.001) == [True]
    assert kept(most + 0.001) == [False]


def test_near_promises_compare_with_stock() -> None:
    assert held(run(STOCK, 2, 0.0, 1.0, 0.1), run(MESHD, 2, 0.0, 1.0, 0.104)) == {
        "token, 2 workers, RTT 0: 1.03 of stock": False
    }


def test_one_worker_at_a_distance_has_no_share() -> None:
    assert held(run(STOCK, 1, 20.0, 1.0, 0.1), run(MESHD, 1, 20.0, 1.0, 0.2)) == {}


@pytest.mark.parametrize(("sent", "kept"), [(100_000, True), (100_001, False)])
def test_a_load_says_little_to_workers_that_have_the_weights(sent: int, kept: bool) -> None:
    ours = BenchRun(setup=MESHD, workers=2, rtt_ms=0.0, load=1.0, load_bytes=sent)
    assert held(run(STOCK, 2, 0.0, 1.0), ours) == {"load, 2 workers, RTT 0: bytes": kept}


@pytest.mark.parametrize(("token", "kept"), [(0.0599, True), (0.0601, False)])
def test_a_token_takes_computing_and_the_ways(token: float, kept: bool) -> None:
    """Computing is what one node takes alone: meshd's own time at no distance is not given to it."""
    near = run(STOCK, 4, 0.0, 1.0, 0.03), run(MESHD, 4, 0.0, 1.0, 0.03)
    far = run(STOCK, 4, 20.0, 1.0, 0.1), run(MESHD, 4, 20.0, 1.0, token)
    found = held(ALONE, *near, *far)
    assert found["token, 4 workers, RTT 20: one node alone + 5 ways of 10 ms + 2 ms"] is kept


def test_where_the_ends_are_on_the_processor_computing_is_measured_so() -> None:
    ends = run(ENDS_ON_CPU, 0, 0.0, 0.3, 0.02)
    assert (Figures((ALONE,)).compute, Figures((ALONE, ends)).compute) == (0.008, 0.02)


@pytest.mark.parametrize(("token", "kept"), [(0.0609, True), (0.0611, False)])
def test_a_way_takes_what_it_was_measured_to_take(token: float, kept: bool) -> None:
    far = run(STOCK, 4, 20.0, 1.0, 0.1), run(MESHD, 4, 20.0, 1.0, token)
    found = promises(Figures((ALONE, *far), one_way={20.0: 0.0102}))
    law = next(one for one in found if "one node alone" in one.what)
    assert law.what == "token, 4 workers, RTT 20: one node alone + 5 ways of 10.2 ms + 2 ms"
    assert law.held is kept


def test_runs_that_only_loaded_count_for_loads() -> None:
    figures = Figures((run(MESHD, 1, 20.0, 1.0, 0.1), *(run(MESHD, 1, 20.0, 3.0) for _ in range(2))))
    assert figures.median(MESHD, 1, 20.0, "load") == 3.0
    assert figures.median(MESHD, 1, 20.0, "token") == 0.1


def test_another_text_is_told() -> None:
    same, other = run(MESHD, 2, 0.0, 1.0, 1.0, "sea"), run(STOCK, 4, 20.0, 1.0, 1.0, "see")
    assert Figures((ALONE, same)).texts_differ() == []
    assert Figures((ALONE, same, other)).texts_differ() == ["stock, 4 workers, 20 ms"]


def test_several_runs_show_their_spread() -> None:
    runs = [run(STOCK, 2, 20.0, load, 0.05) for load in (2.0, 3.0, 2.5)]
    found = Figures((*runs, run(MESHD, 2, 20.0, 0.5, 0.04), run(DEFAULTS, 2, 20.0, 4.0, 0.06)))
    assert cell_table(found)[1][0][2:5] == ["2.5 (2 to 3)", "0.5", "0.20"]
    assert defaults_table(found)[1] == [["2", "20", "4", "2.5 (2 to 3)", "0.5", "60", "50 (50 to 50)", "40"]]


def test_upstreams_defaults_may_round_otherwise() -> None:
    assert Figures((ALONE, run(DEFAULTS, 2, 0.0, 1.0, 1.0, "see"))).texts_differ() == []


def test_the_table_of_cells() -> None:
    figures = Figures((ALONE, run(STOCK, 2, 20.0, 2.0, 0.05), run(MESHD, 2, 20.0, 0.5, 0.04)))
    headers, rows = cell_table(figures)
    assert [*headers] == [
        "WORKERS", "RTT ms", "LOAD s STOCK", "MESHD", "RATIO", "ms/TOKEN STOCK", "MESHD", "RATIO",
    ]  # fmt: skip
    assert [list(row) for row in rows] == [
        ["0", "-", "0.3", "", "", "8", "", ""],
        ["2", "20", "2", "0.5", "0.25", "50", "40", "0.80"],
    ]


def test_what_meshd_does_without_stands_beside_it() -> None:
    less = run(without("push"), 2, 20.0, 0.6, 0.09, "see")
    figures = Figures((ALONE, run(STOCK, 2, 20.0, 2.0, 0.1), run(MESHD, 2, 20.0, 0.5, 0.04), less))
    headers, rows = cell_table(figures)
    assert [*headers][2:6] == ["LOAD s STOCK", "MESHD", "RATIO", "WITHOUT PUSH"]
    assert [list(row) for row in rows] == [
        ["0", "-", "0.3", "", "", "", "8", "", "", ""],
        ["2", "20", "2", "0.5", "0.25", "0.6", "100", "40", "0.40", "90"],
    ]
    assert figures.texts_differ() == ["meshd without push, 2 workers, 20 ms"]
    assert all("of stock" not in one.what or one.value == 40 for one in promises(figures)), "ours is judged"


def test_the_tables_are_rectangles() -> None:
    runs = run(STOCK, 2, 20.0, 2.0, 0.05), run(MESHD, 2, 20.0, 0.5, 0.04), run(DEFAULTS, 2, 20.0, 4.0, 0.06)
    figures = Figures((ALONE, *runs))
    for headers, rows in (
        cell_table(figures),
        defaults_table(figures),
        promise_table(promises(figures)),
    ):
        assert rows
        assert {len(row) for row in rows} == {len(headers)}


@given(st.floats(1e-6, 1e9))
def test_marks_are_few_and_reach_the_most(most: float) -> None:
    found = marks(most)
    assert found[0] == 0
    assert found[-2] < most <= found[-1] * (1 + 1e-9)
    assert 3 <= len(found) <= 7


def test_marks_are_round() -> None:
    assert marks(215.0) == [0, 50, 100, 150, 200, 250]
    assert marks(4.0) == [0, 1, 2, 3, 4]
    assert marks(0.0) == [0, 1]


@given(st.lists(st.lists(st.tuples(amounts, amounts), max_size=6), max_size=8))
def test_every_point_is_inside(lines: list[list[tuple[float, float]]]) -> None:
    picture = draw("t", "x", "y", [CurveLine(f"l{n}", points, group=n) for n, points in enumerate(lines)])
    root = ElementTree.fromstring(picture)
    dots = root.findall(f"{SVG}circle")
    assert len(dots) == sum(map(len, lines))
    for dot in dots:
        assert LEFT_MARGIN - 0.1 <= float(dot.attrib["cx"]) <= WIDTH - RIGHT_MARGIN + 0.1
        assert TOP_MARGIN - 0.1 <= float(dot.attrib["cy"]) <= HEIGHT - BOTTOM_MARGIN + 0.1


def test_names_are_text_and_stock_is_dashed() -> None:
    picture = draw(
        "a < b", "x & y", "z", [CurveLine("<l>", [(0, 0), (1, 1)], dashed=True), CurveLine("m", [(0, 1)])]
    )
    root = ElementTree.fromstring(picture)
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert {"a < b", "x & y", "z", "<l>", "m"} <= set(texts)
    dashes = ["stroke-dasharray" in line.attrib for line in root.findall(f"{SVG}polyline")]
    assert dashes == [True, False]
