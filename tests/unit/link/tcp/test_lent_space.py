"""A space is used again when nobody looks at it any more, and never before."""

from meshd.link.tcp.pipe import LentSpace


def test_it_is_used_again_when_no_part_of_it_is_kept() -> None:
    space = LentSpace(1000)
    view = space.open()
    view[:5] = b"first"
    part = view[2:4].toreadonly()
    del view, part
    again = space.open()
    assert len(again) == len(space) == 1000
    assert bytes(again[:5]) == b"first"  # the same memory


def test_what_is_kept_of_it_stays_as_it_was() -> None:
    space = LentSpace(1000)
    view = space.open()
    view[:5] = b"first"
    part = memoryview(view.toreadonly())[2:4]
    del view
    again = space.open()
    again[:5] = b"other"
    assert bytes(part) == b"rs"
    assert len(again) == 1000
