"""Run all checks at once, each within a bound of time, so that one that hangs does not stop the others.

`fix` mends what is safe to mend: modes of our own files, what killed nodes left behind, kept results of
trials. Nothing of another user is touched, nothing needs root, and nothing is removed that cannot be made
again.
"""

import asyncio
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from meshd.base.errors import UserError
from meshd.base.fault_boundary import Contained, Fault
from meshd.base.units import in_number
from meshd.config.tree import Paths
from meshd.doctor import folders, machine, network, programs, services
from meshd.doctor.folders import left_downloads, left_files, stale_sockets
from meshd.doctor.kinds import Finding, Kind
from meshd.doctor.settings import ReadSettings, check_settings
from meshd.identity.keystore import IDENTITY, Home

SECONDS = 5.0
NETWORK_SECONDS = 20.0  # netcheck takes 5, on a node that is busy a moment longer
_UNFIT = Kind.DEVICE_UNFIT.code
_KEPT_RESULTS = ("device-trials", "native-choice", "native-checks")  # of the cache
PROGRAMS_SECONDS = 90.0  # a machine with eight GPUs needs 20 to list them


@dataclass(frozen=True, slots=True)
class Mended:
    """The outcome of mending: what was done, or why nothing could be (`failed`)."""

    finding: Finding
    did: str = ""
    failed: str = ""


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
        Check("the installation", machine.check_installation),
        Check("the clock", lambda: machine.check_clock(config.paths.home, now)),
        Check("power", machine.check_power),
        Check("limits", machine.check_limits),
        Check("memory", machine.check_memory),
        Check("network interfaces", lambda: network.check_interfaces(config)),
        Check("proxies", network.check_proxy),
        Check("ports", lambda: network.check_ports(config)),
        Check("the firewall", lambda: asyncio.run(network.check_firewall(config))),
        Check("the network", lambda: network.check_outside(config), NETWORK_SECONDS),
        Check("model files", lambda: folders.check_models(config)),
        Check("meshd-native", programs.check_wheel),
        Check("the chat page", programs.check_page),
        Check("the sandbox", lambda: machine.check_sandbox(config)),
        Check("the processor", machine.check_processor),
        Check("llama.cpp", lambda: asyncio.run(programs.check_programs(config)), PROGRAMS_SECONDS),
        Check("services", services.check_services),
        Check("the node", lambda: services.check_node(config.paths.home), NETWORK_SECONDS),
    ]


def mend(findings: Sequence[Finding], paths: Paths, now: float) -> list[Mended]:
    """Mend each finding that can be mended. `now`: Unix seconds."""
    done = []
    for found in findings:
        how = _MENDERS.get(found.code)
        if how is None:
            continue
        try:
            done.append(Mended(found, did=how(Path(found.path), paths, now)))
        except UserError as error:
            done.append(Mended(found, failed=error.with_hint))
        except OSError as error:
            reason = (error.strerror or type(error).__name__).lower()
            done.append(Mended(found, failed=f"`{error.filename or found.path}`: {reason}"))
    return done


def _close_home(path: Path, paths: Paths, _now: float) -> str:
    _check_home(paths)
    return _limit(path, 0o700)


def _check_home(paths: Paths) -> None:
    """Raise UserError if the home has no key of a node: it may be a folder of something else."""
    if not (paths.home / IDENTITY).exists():
        raise UserError(f"`{paths.home}` holds no node of meshd", hint="check `MESHD_HOME`, which names it")


def _close_cache(path: Path, _paths: Paths, _now: float) -> str:
    return _limit(path, 0o755)


def _close_file(path: Path, _paths: Paths, _now: float) -> str:
    return _limit(path, 0o600)


def _limit(path: Path, most: int) -> str:
    """Take away the rights beyond `most`. Raises UserError for what other users have changed, OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        about = os.fstat(descriptor)
        if about.st_uid != os.geteuid():
            raise UserError(f"`{path}` belongs to another user", hint="fix it as that user")
        mode = stat.S_IMODE(about.st_mode)
        if stat.S_ISDIR(about.st_mode) and mode & 0o022:
            _check_content(path)
        os.fchmod(descriptor, mode & most)
    finally:
        os.close(descriptor)
    return f"changed the mode of `{path}` from {mode:04o} to {mode & most:04o}"


def _check_content(folder: Path) -> None:
    """Raise UserError if others have put something into a folder to which they could write."""
    for path in folder.iterdir():
        if path.lstat().st_uid != os.geteuid():
            raise UserError(
                f"`{path}` belongs to another user, who put it there", hint="remove it if it is not yours"
            )


def _remove_socket(path: Path, paths: Paths, _now: float) -> str:
    with Home(paths.home).lock():  # so that no node of this home starts meanwhile
        if path not in stale_sockets(paths.home):
            raise UserError(f"`{path}` is in use now")
        path.unlink()
    return f"removed `{path}`"


def _remove_left_files(path: Path, paths: Paths, now: float) -> str:
    _check_home(paths)
    with Home(paths.home).lock():  # which removes some of them itself
        left = left_files(path, now)
        for file in left:
            file.unlink()
    return f"removed temporary files in `{path}`"


def _remove_left_downloads(path: Path, _paths: Paths, now: float) -> str:
    left = [place for place in left_downloads(path, now) if place.lstat().st_uid == os.geteuid()]
    for place in left:
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink()
    return f"removed {in_number(len(left), 'interrupted download')} in `{path}`"


def _forget_trials(_path: Path, paths: Paths, _now: float) -> str:
    for name in _KEPT_RESULTS:
        with suppress(FileNotFoundError):
            (paths.cache / name).unlink()
    return "removed saved checks of devices and programs: the next start repeats them"


_MENDERS: Mapping[str, Callable[[Path, Paths, float], str]] = {
    kind.code: how
    for how, kinds in (
        (_close_home, (Kind.HOME_READABLE, Kind.HOME_CHANGEABLE)),
        (_close_cache, (Kind.CACHE_CHANGEABLE,)),
        (_close_file, (Kind.STATE_READABLE, Kind.KEYS_READABLE, Kind.SETTINGS_READABLE)),
        (_remove_socket, (Kind.SOCKET_STALE,)),
        (_remove_left_files, (Kind.FILES_LEFT,)),
        (_remove_left_downloads, (Kind.DOWNLOADS_LEFT,)),
        (_forget_trials, (Kind.DEVICE_UNFIT,)),
    )
    for kind in kinds
}
