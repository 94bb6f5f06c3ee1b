"""For all tests: asynchronous ones get a loop, nothing is left behind, what is drawn can be drawn again.

It also says how files run side by side.

Profiles of hypothesis: `ci` (the default) is quick; `soak` looks for a long time: `HYPOTHESIS_PROFILE=soak`.
pytest-randomly prints the seed of the order; `--randomly-seed=N` brings it back. All else that a test draws
comes from MESHD_SEED, which is printed too.
"""

import gc
import inspect
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from meshd.base import log

from tests import leaks
from tests.conformance.run import run as run_real
from tests.sim.loop import run as run_virtual
from tests.soak import SEED

HERE = Path(__file__).parent

# No test reaches Hugging Face, whatever it forgets: those that download have a hub of their own on loopback.
os.environ.update(HF_ENDPOINT="http://127.0.0.1:9", HF_HUB_DISABLE_TELEMETRY="1")

settings.register_profile("ci", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "soak", deadline=None, max_examples=20_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell's background job begins so, and every child of a test would ignore Ctrl-C too
    signal.signal(signal.SIGINT, signal.default_int_handler)

if sys.dont_write_bytecode:
    # neither a process of `pytest -n` nor a node compiles again what another has: with pytest's own rewriting
    # that takes longer than all else of a collection, and it is a third of a node's start
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

_failed = pytest.StashKey[bool]()
LONGEST_FIRST = ("netns", "e2e", "process", "hostile", "conformance", "sim")
# of tests/netns: what measures times, rates or memory, or is a matter of moments, runs one after another
_ALONE = ("answer", "bench", "line", "memory", "port_prediction", "ready", "relayed")
MEASURE = {f"test_{what}.py" for what in _ALONE}


def pytest_report_header() -> str:
    return f"MESHD_SEED={SEED}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a process of `pytest -n`: what takes long begins first, all else is as pytest-randomly drew it."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _rank(unit_of(item.nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """With `--dist loadfile` what tests/netns measures is one unit; any other file is one by itself.

    Not by the marks of pytest-xdist (`--dist loadgroup`): its 3.8 writes them where pytest 9.2 does not look.
    """
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = unit_of
    return scheduler


def unit_of(nodeid: str) -> str:
    """Return the name of the tests that share a process with this one."""
    path = Path(nodeid.partition("::")[0])
    return "netns" if path.parent.name == "netns" and path.name in MEASURE else path.as_posix()


def _rank(unit: str) -> int:
    if unit == "netns":
        return -1
    folder = unit.split("/")[1]
    return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an asynchronous test on a loop of its own; with the mark `virtual`, on a virtual clock."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    run = run_real if pyfuncitem.get_closest_marker("virtual") is None else run_virtual
    run(test(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}))
    return True


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
    """Freeze what is there when a module begins: each of thousands of collections walked all of it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _log_of_its_own() -> None:
    """As at the import: what other modules logged of the same peer has used up none of its lines."""
    log.set_up(level="warning")


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
