"""Test how the end of a child is told."""

import signal

import pytest
from meshd.process.child import NO_MEMORY_HINT, SIGNAL_HINTS, describe_exit
from meshd.process.interface import ChildState, ChildStatus


@pytest.mark.parametrize(
    ("code", "number", "no_memory", "text", "hint"),
    [
        (3, None, "", "`child` ended with exit code 3 soon", ""),
        (None, 9, "", "`child` was ended by SIGKILL soon", SIGNAL_HINTS[signal.SIGKILL]),
        (None, 4, "", "`child` was ended by SIGILL soon", SIGNAL_HINTS[signal.SIGILL]),
        (None, 11, "", "`child` was ended by SIGSEGV soon", ""),
        (None, 127, "", "`child` was ended by signal 127 soon", ""),
        (None, 9, "7 GB are used", "`child` was ended by the kernel soon: 7 GB are used", NO_MEMORY_HINT),
    ],
)
def test_an_exit_in_words(code: int | None, number: int | None, no_memory: str, text: str, hint: str) -> None:
    ended = ChildStatus("child", ChildState.READY, exit_code=code, exit_signal=number, no_memory=no_memory)
    assert describe_exit(ended, "soon") == (text, hint)
