"""Numbers in what a child reports."""

from meshd.devices.report_line import count_of, totals_of


def test_only_plain_digits_are_a_count() -> None:
    assert [count_of(text) for text in ("0", "12", "9" * 19)] == [0, 12, int("9" * 19)]
    assert [count_of(text) for text in ("", "-1", "²", "٣", "1 ", "9" * 20, "9" * 5000)] == [None] * 7


def test_totals_are_three_counts() -> None:
    assert totals_of(["3", "1", "40"]) == (3, 1, 40)
    wrong: list[list[str]] = [[], ["3", "1"], ["3", "1", "40", "2"], ["3", "-1", "40"], ["3", "1", ""]]
    assert [totals_of(texts) for texts in wrong] == [None] * len(wrong)
