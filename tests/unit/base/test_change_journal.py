"""The journal: each key once, at its latest change; a reader sees what came after its mark."""

from hypothesis import given
from hypothesis import strategies as st
from meshd.base.change_journal import Journal


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 8))), st.integers(0, 20))
def test_a_reader_sees_each_key_that_changed_after_its_mark_once_and_in_order(
    steps: list[tuple[bool, int]], read_at: int
) -> None:
    journal: Journal[int] = Journal()
    latest: dict[int, int] = {}
    mark = 0
    for number, (touched, key) in enumerate(steps):
        if number == read_at:
            mark = journal.mark
        if touched:
            journal.touch(key)
            latest[key] = journal.mark
        else:
            journal.drop(key)
            latest.pop(key, None)
    expected = sorted((at, key) for key, at in latest.items() if at > mark)
    assert journal.since(mark) == [key for _, key in expected]
    assert len(journal) == len(latest)
