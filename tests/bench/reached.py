"""A plugin of pytest that notes which functions of meshd each test runs: `-p tests.bench.reached`.

It writes JSON to the file named by MESHD_REACHED: by `path:line` of a function, the ids of the tests that ran
it.
"""

import json
import os
import sys
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from types import FrameType

import pytest

_PACKAGE = f"{os.sep}meshd{os.sep}"
_reached: defaultdict[str, set[str]] = defaultdict(set)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Profile one test with its fixtures. Other threads and other processes are not seen."""
    functions: set[object] = set()
    root = str(item.config.rootpath)

    def note(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            functions.add(frame.f_code)

    sys.setprofile(note)
    try:
        return (yield)
    finally:
        sys.setprofile(None)
        for code in functions:
            path = getattr(code, "co_filename", "")
            if path.startswith(root + _PACKAGE):
                place = f"{os.path.relpath(path, root)}:{getattr(code, 'co_firstlineno', 0)}"
                _reached[place].add(item.nodeid)


def pytest_sessionfinish() -> None:
    """Write what was noted."""
    if name := os.environ.get("MESHD_REACHED"):
        found = {place: sorted(tests) for place, tests in _reached.items()}
        Path(name).write_text(json.dumps(found), encoding="utf-8")
