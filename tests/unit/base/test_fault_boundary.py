"""Work for others: however it fails, it ends alone, is logged at a bounded rate, and counts."""

import asyncio
import errno
import io
from collections.abc import Iterator

import pytest
from meshd.base import fault_boundary, log
from meshd.base.errors import Broken, LocalProtocolError, Refused
from meshd.base.fault_boundary import Contained, Fault, contained, kept_up
from meshd.base.tasks import Owner

from tests.conformance.run import run, ticks

UNFORESEEN = (
    UnicodeError("label empty or too long"),
    ValueError("x"),
    KeyError("x"),
    RecursionError("x"),
    OSError(errno.EMFILE, "too many open files"),
    ExceptionGroup("several", [Broken("the network"), KeyError("x")]),
    LocalProtocolError("a bug"),
)


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """The log lines; there were none before."""
    fault_boundary.forget()
    stream = io.StringIO()
    log.set_up(level="debug", stream=stream)
    yield stream
    log.set_up(level="warning")


async def fail(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


@pytest.mark.parametrize("error", UNFORESEEN, ids=lambda error: type(error).__name__)
async def test_whatever_goes_wrong_ends_that_work_alone(error: Exception, lines: io.StringIO) -> None:
    async with Owner() as owner:
        task = owner.start_for("peer abcd", fail(error), name="its work")
        beside = owner.start(asyncio.sleep(0.01, "done"), name="beside")
        await asyncio.wait([task])
        assert task.exception() is None
        assert await beside == "done"
    [line] = lines.getvalue().splitlines()
    assert "work_failed" in line
    assert "cause='peer abcd'" in line
    assert "test_fault_boundary.py" in line


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), asyncio.CancelledError()])
def test_the_end_of_the_process_and_a_cancellation_pass(error: BaseException) -> None:
    with pytest.raises(type(error)), Contained("peer", "work"):
        raise error


def test_what_the_work_may_raise_passes_as_it_is(lines: io.StringIO) -> None:
    said = Refused("no", code="busy")
    with pytest.raises(Refused) as raised, Contained("peer", "work"):
        raise said
    assert raised.value is said
    with pytest.raises(Refused), Contained("peer", "work"):
        raise ExceptionGroup("several", [said])
    assert lines.getvalue() == ""


def test_work_of_our_own_still_ends_the_process_loudly() -> None:
    async def work() -> None:
        async with Owner() as owner:
            owner.start(fail(KeyError("a bug")), name="own")
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as raised:
        run(work())
    assert raised.value.subgroup(KeyError)


async def test_a_failure_counts_against_who_caused_it_and_what_we_lack_does_not(lines: io.StringIO) -> None:
    blamed: list[Fault] = []
    for error in (KeyError("x"), OSError(errno.EMFILE, ""), OSError(errno.ENOSPC, ""), MemoryError()):
        with pytest.raises(Fault):
            await contained(fail(error), source="peer", name="work", blame=blamed.append)
    assert [fault.what for fault in blamed] == ["work: KeyError: 'x'"]
    assert lines.getvalue().count("work_failed") == 4


def test_one_kind_of_failure_of_one_source_has_few_lines_and_their_number(
    lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for source in ["peer one"] * 1000 + ["peer two"]:
        fault_boundary.note(KeyError("x"), source=source, name="record")
    assert lines.getvalue().count("peer one") == 3
    assert lines.getvalue().count("peer two") == 1
    now[0] = 61.0
    fault_boundary.note(KeyError("x"), source="peer one", name="record")
    assert lines.getvalue().splitlines()[-1].count("left_out=997") == 1


def test_many_sources_have_few_lines_together(lines: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    for number in range(5000):
        fault_boundary.note(KeyError("x"), source=f"host {number}", name="link")
    assert lines.getvalue().count("work_failed") == 30


@pytest.mark.parametrize(("others", "known"), [(fault_boundary.MAX_FAULT_KINDS - 1, 1), (5000, 0)])
def test_few_sources_are_remembered(
    lines: io.StringIO, monkeypatch: pytest.MonkeyPatch, others: int, known: int
) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for source in ["peer one"] * 1000 + [f"host {number}" for number in range(others)]:
        fault_boundary.note(KeyError("x"), source=source, name="link")
    now[0] = 61.0
    fault_boundary.note(KeyError("x"), source="peer one", name="link")
    assert lines.getvalue().splitlines()[-1].count("left_out=997") == known


async def test_a_task_that_is_cancelled_before_its_first_step_leaves_nothing() -> None:
    async with Owner() as owner:
        task = owner.start_for("peer", fail(KeyError("x")), name="work")
        task.cancel()
    await ticks(2)  # a coroutine that nobody awaited would warn, and a warning is an error here


def test_what_is_kept_up_begins_again(lines: io.StringIO) -> None:
    runs: list[int] = []

    async def serve() -> None:
        runs.append(1)
        if len(runs) < 3:
            raise KeyError("an answer nobody expected")

    run(kept_up(serve, source="router", name="port mapping", pause=0.0))
    assert len(runs) == 3


async def test_a_callback_of_the_loop_that_fails_is_logged(lines: io.StringIO) -> None:
    loop = asyncio.get_running_loop()
    fault_boundary.watch_loop(loop)
    loop.call_soon(int, "x")
    await ticks(2)
    assert lines.getvalue().count("work_failed") == 1
