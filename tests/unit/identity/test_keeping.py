"""State that the disk does not take: remembered, said once, written later."""

from collections.abc import Callable

import pytest
from meshd.base.errors import UserError
from meshd.identity.keeping import Keeping


class Disk:
    """Takes writes, or refuses them for a reason."""

    def __init__(self) -> None:
        self.why: Exception | None = None
        self.written: list[str] = []

    def write(self, what: str) -> Callable[[], None]:
        def attempt() -> None:
            if self.why is not None:
                raise self.why
            self.written.append(what)

        return attempt


def test_what_is_written_waits_for_nothing() -> None:
    disk, keeping = Disk(), Keeping()
    assert keeping.keep("book", disk.write("one"))
    assert disk.written == ["one"] and not keeping.waiting and keeping.retry()


@pytest.mark.parametrize("why", [OSError("no space left"), UserError("no space left")])
def test_what_is_refused_is_written_at_a_later_try(why: Exception) -> None:
    disk, keeping = Disk(), Keeping()
    disk.why = why
    assert not keeping.keep("book", disk.write("one"))
    assert not keeping.retry()
    assert dict(keeping.waiting) == {"book": "no space left"}
    disk.why = None
    assert keeping.retry()
    assert disk.written == ["one"] and not keeping.waiting


def test_a_newer_content_takes_the_place_of_the_one_that_waits() -> None:
    disk, keeping = Disk(), Keeping()
    disk.why = OSError("read-only")
    assert not keeping.keep("book", disk.write("old"))
    assert not keeping.keep("book", disk.write("new"))
    assert not keeping.keep("bans", disk.write("bans"))
    disk.why = None
    assert keeping.keep("book", disk.write("newest"))
    assert set(keeping.waiting) == {"bans"}
    assert keeping.retry()
    assert disk.written == ["newest", "bans"]


def test_it_is_said_once_for_each_reason(capsys: pytest.CaptureFixture[str]) -> None:
    disk, keeping = Disk(), Keeping()
    for why in ("full", "full", "read-only", "read-only"):
        disk.why = OSError(why)
        keeping.keep("book", disk.write(why))
    lines = [line for line in capsys.readouterr().err.splitlines() if "state_not_written" in line]
    assert [line.rpartition("why=")[2] for line in lines] == ["full", "read-only"]
