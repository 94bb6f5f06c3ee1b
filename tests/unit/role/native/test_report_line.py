"""Numbers in what a child reports."""

from meshd.role.native.report_line import count_of


def test_only_plain_digits_are_a_count() -> None:
    assert [count_of(text) for text in ("0", "12", "9" * 19)] == [0, 12, int("9" * 19)]
    assert [count_of(text) for text in ("", "-1", "²", "٣", "1 ", "9" * 20, "9" * 5000)] == [None] * 7
