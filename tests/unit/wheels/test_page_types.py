"""The types of the mesh page are those of the control socket."""

from wheels import page_types


def test_the_types_of_the_page_are_written_anew_when_the_status_changes() -> None:
    assert page_types.PLACE.read_text(encoding="utf-8") == page_types.written(), (
        "run `python -m wheels.page_types`"
    )
