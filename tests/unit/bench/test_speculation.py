"""Test what is printed of a way of drafting."""

from meshd.bench.llama import ChatAnswer

from tests.bench.speculation import DraftingMode, Tried, line


def tried(rate: float, text: str = "a", drafted: int = 0, accepted: int = 0, streams: int = 1) -> Tried:
    return Tried(rate, (ChatAnswer(1.0, rate, text, 100, drafted, accepted),) * streams)


def test_a_line_has_the_ratio_of_medians_and_says_whether_the_text_is_another() -> None:
    off = DraftingMode("off", (), tries={("prose", 1): [tried(10.0)] * 3})
    drafts = DraftingMode("drafts", (), tries={("prose", 1): [tried(r, "a", 60, 40) for r in (19, 20, 90)]})
    assert line("prose", 1, drafts, off) == (
        "prose, drafts: 19.0, 20.0, 90.0 tokens/s (2.00), 59 rounds, 120 of 180 accepted, the same text"
    )
    drafts.tries["prose", 1][0] = tried(19.0, "b", 60, 40)
    assert line("prose", 1, drafts, off).endswith("OTHER text")


def test_of_several_streams_all_answers_count() -> None:
    off = DraftingMode("off", (), tries={("prose", 4): [tried(10.0, streams=4)]})
    drafts = DraftingMode("drafts", (), tries={("prose", 4): [tried(15.0, "a", 60, 40, streams=4)]})
    assert line("prose", 4, drafts, off) == (
        "prose, drafts, 4 streams: 15.0 tokens/s (1.50), 59 rounds, 160 of 240 accepted, the same text"
    )
