"""Which curves are drawn of what was measured."""

from xml.etree import ElementTree

import pytest
from meshd.bench.distance import as_json, picture
from meshd.bench.figures import LOCAL, MESHD, STOCK, Figures, Run, promises

SVG = "{http://www.w3.org/2000/svg}"
RUNS = (
    Run(way=LOCAL, workers=0, rtt_ms=0.0, load=0.3, token=0.01),
    *(
        Run(way=way, workers=workers, rtt_ms=rtt, load=1.0 + workers, token=0.01 * workers + rtt / 1000)
        for way in (STOCK, MESHD)
        for workers in (1, 2)
        for rtt in (0.0, 20.0, 50.0)
    ),
)


@pytest.mark.parametrize(
    ("what", "names", "points"),
    [
        ("load", {"stock, 1 worker", "meshd, 1 worker", "stock, 2 workers", "meshd, 2 workers"}, 3),
        ("latency", {"stock, 1 worker", "meshd, 1 worker", "stock, 2 workers", "meshd, 2 workers"}, 3),
        ("nodes", {f"{way}, RTT {rtt} ms" for way in (STOCK, MESHD) for rtt in (0, 20, 50)}, 3),
    ],
)
def test_lines(what: str, names: set[str], points: int) -> None:
    """By round trip a line for each number of workers; by nodes one for each round trip, from one node on."""
    root = ElementTree.fromstring(picture(what, Figures(RUNS)))
    assert names <= {element.text for element in root.iter(f"{SVG}text")}
    lines = [line.attrib["points"].split() for line in root.findall(f"{SVG}polyline")]
    assert [len(line) for line in lines] == [points] * len(names)


def test_json_has_what_the_tables_have() -> None:
    figures = Figures(RUNS, ways={20.0: 0.0101})
    found = as_json(figures, promises(figures))
    assert found.keys() == {"runs", "ways", "counted", "promises"}
    assert found["ways"] == {"20": 0.0101}
    runs, kept = found["runs"], found["promises"]
    assert isinstance(runs, list)
    assert len(runs) == len(RUNS)
    assert isinstance(kept, list)
    assert all({"what", "value", "most", "unit", "held"} == set(one) for one in kept if isinstance(one, dict))
