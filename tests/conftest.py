"""For all tests: nothing may be left behind, and how much chance is spent.

Profiles of hypothesis: `ci` (the default) is quick; `soak` looks for a long time: `HYPOTHESIS_PROFILE=soak`.
pytest-randomly prints the seed of the order; `--randomly-seed=N` brings it back.
"""

import gc
import os
import signal
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests import leaks

settings.register_profile("ci", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "soak", deadline=None, max_examples=20_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell's background job begins so, and every child of a test would ignore Ctrl-C too
    signal.signal(signal.SIGINT, signal.default_int_handler)

_failed = pytest.StashKey[bool]()


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
