"""For all tests: nothing is left behind, what is drawn can be drawn again, and how files run side by side.

Profiles of hypothesis: `ci` (the default) is quick; `soak` looks for a long time: `HYPOTHESIS_PROFILE=soak`.
pytest-randomly prints the seed of the order; `--randomly-seed=N` brings it back. All else that a test draws
comes from MESHD_SEED, which is printed too.
"""

import gc
import os
import random
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import leaks

HERE = Path(__file__).parent

settings.register_profile("ci", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "soak", deadline=None, max_examples=20_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell's background job begins so, and every child of a test would ignore Ctrl-C too
    signal.signal(signal.SIGINT, signal.default_int_handler)

if sys.dont_write_bytecode:
    # the folders of sources stay as they are, and no process compiles again what another has: with pytest's own
    # rewriting that takes longer than all else of a collection
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(HERE.parent / ".pytest_cache" / "bytecode")

# here, as a conftest further down reads it when it is imported, and so do the processes of `pytest -n`
SEED = os.environ.setdefault("MESHD_SEED", str(random.SystemRandom().randrange(1 << 31)))

_failed = pytest.StashKey[bool]()
LONGEST_FIRST = ("netns", "e2e", "process", "hostile", "conformance", "sim")


def pytest_report_header() -> str:
    return f"MESHD_SEED={SEED}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `pytest -n`: a file stays in one process, what takes long begins first, all else is as drawn.

    All of tests/netns is one unit: its tests measure lines that share the machine.
    """
    if config.getoption("dist", "no") != "loadgroup":
        return
    folders = {item: item.path.relative_to(HERE).parts[0] for item in items}
    ranks = {folder: rank for rank, folder in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(folders[item], len(ranks)))
    for item in items:
        unit = folders[item] if folders[item] == "netns" else str(item.path.relative_to(HERE))
        item.add_marker(pytest.mark.xdist_group(unit))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[_failed] = not report.passed
    return report


@pytest.fixture(scope="session", autouse=True)
def _noted_tasks() -> Iterator[None]:
    with leaks.tasks_noted():
        yield


@pytest.fixture(scope="module", autouse=True)
def _young_heap() -> None:
    """What is there when a module begins stays: each of thousands of collections walked all of it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that leaves a task, a child or a descriptor behind fails, unless it has failed already.

    What fixtures of a wider scope hold was there before.
    """
    before = leaks.look()
    yield
    left = leaks.leaks_since(before)
    if left and not request.node.stash.get(_failed, False):
        pytest.fail("left behind:\n  " + "\n  ".join(left), pytrace=False)
