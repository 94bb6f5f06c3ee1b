"""What is printed of a way of drafting."""

from meshd.bench.llama import ChatAnswer
from meshd.bench.speculation import DraftingMode, line


def test_a_line_has_the_ratio_of_medians_and_says_whether_the_text_is_another() -> None:
    off = DraftingMode("off", (), answers={"prose": [ChatAnswer(1.0, 10.0, "a", 100)] * 3})
    rates = (19.0, 20.0, 90.0)
    drafts = DraftingMode(
        "drafts", (), answers={"prose": [ChatAnswer(1.0, r, "a", 100, 60, 40) for r in rates]}
    )
    assert line("prose", drafts, off) == (
        "prose, drafts: 19.0, 20.0, 90.0 tokens/s (2.00), 59 rounds, 120 of 180 accepted, the same text"
    )
    drafts.answers["prose"][0] = ChatAnswer(1.0, 19.0, "b", 100, 60, 40)
    assert line("prose", drafts, off).endswith("OTHER text")
