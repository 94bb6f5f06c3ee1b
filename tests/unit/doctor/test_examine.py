"""Checks run at once, and one that hangs or fails does not keep the others from being told."""

import threading
import time
from collections.abc import Iterator

import pytest
from meshd.doctor.examine import Check, run_checks
from meshd.doctor.kinds import Finding, Kind


def _fine() -> Iterator[Finding]:
    yield Kind.NODE.found(what="not running")


def test_a_check_that_hangs_is_left_behind() -> None:
    ended = threading.Event()

    def hangs() -> Iterator[Finding]:
        yield Kind.SANDBOX_OFF.found()
        ended.wait(60)

    began = time.monotonic()
    found = run_checks([Check("a disk", hangs, seconds=0.2), Check("the rest", _fine)])
    took = time.monotonic() - began
    ended.set()
    assert [one.code for one in found] == ["check_hung", "node"] and took < 30
    assert found[0].what == "the check of a disk did not end within 0 s"


def test_a_check_that_fails_is_a_fault_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> Iterator[Finding]:
        yield Kind.SANDBOX_OFF.found()
        raise LookupError("nothing of that kind")

    found = run_checks([Check("power", fails), Check("the rest", _fine)])
    assert [one.code for one in found] == ["sandbox_off", "check_failed", "node"]
    assert "LookupError: nothing of that kind" in found[1].what
    assert "work_failed" in capsys.readouterr().err


def test_checks_run_at_once() -> None:
    """Each waits for the other."""
    both = threading.Barrier(2, timeout=30)

    def meets() -> Iterator[Finding]:
        both.wait()
        return _fine()

    assert len(run_checks([Check("one", meets), Check("another", meets)])) == 2
