"""Run all checks at once, each within a bound of time, so that one that hangs does not stop the others."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from meshd.base.fault_boundary import Contained, Fault
from meshd.doctor import folders, installation, machine, models, network, node, programs, services
from meshd.doctor.kinds import Finding, Kind
from meshd.doctor.mend import Mended, mend
from meshd.doctor.settings import ReadSettings, check_settings

SECONDS = 5.0
NETWORK_SECONDS = 20.0  # netcheck takes 5, on a node that is busy a moment longer
_UNFIT = Kind.DEVICE_UNFIT.code
PROGRAMS_SECONDS = 90.0  # a machine with eight GPUs needs 20 to list them


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what it looks at, in words, and how long it may take."""

    what: str
    run: Callable[[], Iterable[Finding]]
    seconds: float = SECONDS


@dataclass(slots=True)
class _Running:
    """A check in a thread, which is left behind if it does not end: a dead disk may hold it for ever."""

    check: Check
    found: list[Finding] = field(default_factory=list)
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, name=f"check of {self.check.what}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            with Contained("this machine", f"the check of {self.check.what}"):
                self.found += self.check.run()
        except Fault as fault:
            self.found.append(Kind.CHECK_FAILED.found(what=self.check.what, why=fault.what))

    def result(self, began: float) -> list[Finding]:
        """Return the findings, once the check has ended or used up its time."""
        self.thread.join(max(0.0, began + self.check.seconds - time.monotonic()))
        if not self.thread.is_alive():
            return self.found
        return [Kind.CHECK_HUNG.found(what=self.check.what, seconds=f"{self.check.seconds:.0f}")]


def examine(settings: ReadSettings) -> list[Finding]:
    """Return what all checks find, in the order in which people should read it."""
    return run_checks([*quick_checks(settings), *_slow_checks(settings)])


def fix(settings: ReadSettings) -> tuple[list[Finding], list[Mended]]:
    """Mend what can be mended, then check all; return what is left, and what was done."""
    paths, now = settings.config.paths, time.time()
    mended = mend(run_checks(quick_checks(settings)), paths, now)
    findings = examine(settings)
    return findings, [*mended, *mend([found for found in findings if found.code == _UNFIT][:1], paths, now)]


def run_checks(checks: Sequence[Check]) -> list[Finding]:
    """Run checks at once; return their findings in their order."""
    began = time.monotonic()
    running = [_Running(check) for check in checks]
    return [found for started in running for found in started.result(began)]


def quick_checks(settings: ReadSettings) -> list[Check]:
    """Return the checks of files and settings, which --fix may mend."""
    config, now = settings.config, time.time()
    return [
        Check("the settings", lambda: check_settings(settings)),
        Check("the home", lambda: folders.check_home(config.paths, now)),
        Check("the cache", lambda: folders.check_cache(config.paths, now)),
    ]


def _slow_checks(settings: ReadSettings) -> list[Check]:
    config, now = settings.config, time.time()
    return [
        Check("the installation", installation.check_installation),
        Check("the clock", lambda: machine.check_clock(config.paths.home, now)),
        Check("power", machine.check_power),
        Check("limits", machine.check_limits),
        Check("memory", machine.check_memory),
        Check("network interfaces", lambda: network.check_interfaces(config)),
        Check("proxies", network.check_proxy),
        Check("ports", lambda: network.check_ports(config)),
        Check("the firewall", lambda: asyncio.run(network.check_firewall(config))),
        Check("the network", lambda: network.check_outside(config), NETWORK_SECONDS),
        Check("model files", lambda: models.check_models(config)),
        Check("meshd-native", programs.check_wheel),
        Check("the sandbox", lambda: machine.check_sandbox(config)),
        Check("the processor", machine.check_processor),
        Check("llama.cpp", lambda: asyncio.run(programs.check_programs(config)), PROGRAMS_SECONDS),
        Check("services", services.check_services),
        Check("the node", lambda: node.check_node(config.paths.home), NETWORK_SECONDS),
    ]
