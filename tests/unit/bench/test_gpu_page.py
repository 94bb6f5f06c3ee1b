"""The page of a run on GPUs: what differs and what failed is said, and nothing is called equal unseen."""

from dataclasses import replace

from meshd.bench.figures import ENDS_ON_CPU, LOCAL, MESHD, STOCK, BenchRun, Figures

from tests.bench.gpu_page import GpuRunFacts, page

MADE = GpuRunFacts(
    when="2026-01-02",
    machine="a machine",
    backend="cuda",
    devices=("CUDA0 (a card)",),
    pin="a pin",
    workers=(2,),
)


def run(setup: str, text: str = "sea") -> BenchRun:
    workers = 0 if setup in (LOCAL, ENDS_ON_CPU) else 2
    return BenchRun(setup=setup, workers=workers, rtt_ms=0.0, load=1.0, token=0.01, prompt=0.1, text=text)


def test_a_page_says_when_where_and_how() -> None:
    text = page(MADE, [("8b", 4_100_000_000, Figures((run(LOCAL), run(STOCK), run(MESHD))), ())])
    for part in ("2026-01-02", "a machine", "CUDA0 (a card)", "a pin", "## 8b, 4.10 GB"):
        assert part in text
    assert "All produced the same text" in text
    assert "share one" in text
    assert "one GPU each" in page(replace(MADE, devices=("CUDA0", "CUDA1")), [])


def test_a_page_says_how_often() -> None:
    once, twice = (run(LOCAL), run(MESHD)), (run(LOCAL), run(LOCAL), run(MESHD), run(MESHD))
    assert "; 1 of each" in page(MADE, [("8b", 1, Figures(once), ())])
    assert "; 2 of each" in page(MADE, [("8b", 1, Figures(twice), ())])
    assert "; 1 to 2 of each" in page(MADE, [("8b", 1, Figures(once), ()), ("small", 1, Figures(twice), ())])


def test_another_text_is_named() -> None:
    text = page(MADE, [("8b", 1, Figures((run(LOCAL), run(MESHD, "see"))), ())])
    assert "Text different from one node's: meshd, 2 workers, 0 ms" in text


def test_meshd_is_compared_with_a_node_that_has_the_ends_where_meshd_has_them() -> None:
    runs = run(LOCAL), run(ENDS_ON_CPU, "see"), run(STOCK), run(MESHD, "see")
    assert "Stock produced the same text" in page(MADE, [("8b", 1, Figures(runs), ())])
    other = Figures((*runs[:2], run(STOCK, "see"), run(MESHD)))
    same = Figures((run(LOCAL), run(ENDS_ON_CPU), run(STOCK), run(MESHD)))
    assert "All produced the same text" in page(MADE, [("8b", 1, same, ())])
    assert other.texts_differ() == ["stock, 2 workers, 0 ms", "meshd, 2 workers, 0 ms"]


def test_without_one_node_nothing_is_called_equal() -> None:
    text = page(MADE, [("8b", 1, Figures((run(STOCK), run(MESHD))), ["local: it ended"])])
    assert "no text was compared" in text
    assert "- local: it ended" in text
