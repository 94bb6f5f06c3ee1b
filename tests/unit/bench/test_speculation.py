"""What is printed of a way of drafting."""

from meshd.bench.speculation import DraftingMode, SpeculatedAnswer, line


def test_a_line_has_the_ratio_of_medians_and_says_whether_the_text_is_another() -> None:
    off = DraftingMode("off", (), answers={"prose": [SpeculatedAnswer(10.0, "a", 0, 0, 99)] * 3})
    rates = (19.0, 20.0, 90.0)
    drafts = DraftingMode(
        "drafts", (), answers={"prose": [SpeculatedAnswer(r, "a", 60, 40, 59) for r in rates]}
    )
    assert line("prose", drafts, off) == (
        "prose, drafts: 19.0, 20.0, 90.0 tokens/s (2.00), 59 rounds, 120 of 180 accepted, the same text"
    )
    drafts.answers["prose"][0] = SpeculatedAnswer(19.0, "b", 60, 40, 59)
    assert line("prose", drafts, off).endswith("OTHER text")
