"""The picture is well-formed XML, its points are inside, its marks are round."""

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st
from meshd.bench.curve import (
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
