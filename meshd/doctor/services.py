"""Check the services that are installed for this user and the system: whether they start, run, and stay.

A service that is not installed is no fault. Where no service manager answers, only files are checked.
The running node, if there is one, is asked: whether it answers, its version, and its own warnings.
"""

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from meshd import __version__
from meshd.admin.api import StatusRequest
from meshd.admin.client import NotAnswering, NotRunning, OtherVersion, Silent, ask
from meshd.admin.status import HealthWarning
from meshd.base.errors import MeshdError, UserError
from meshd.base.service_manager import FINAL_EXIT_CODE
from meshd.doctor.kinds import Finding, Kind, Kinds, Wording
from meshd.identity.folder import DAEMON, lock_holder
from meshd.service.control import ServiceControl, ServiceState, installed_controls, lingers
from meshd.service.files import Service

_USAGE_EXIT_CODE = 2  # a command line that cannot be parsed: the unit does not repeat it either
_EXEC_EXIT_CODE = 203  # of systemd, where it cannot start the program
_NAME = "service"
_LOGS = "`meshd service logs {which}`"


class ServiceKind(Kinds):
    """Every kind of finding about a service."""

    SERVICE = Wording("ok", _NAME, "`{unit}` runs, and starts {starts}")
    SERVICE_STARTING = Wording("ok", _NAME, "`{unit}` is starting or stopping")
    SERVICE_PROGRAM = Wording(
        "error",
        _NAME,
        "`{unit}` is to run `{program}`, which {why}",
        "the service cannot start; its meshd was probably moved or removed",
        "install meshd there again, or run `{uninstall}`, then `{install}` with the meshd that is to run",
    )
    SERVICE_OUTDATED = Wording(
        "warning",
        _NAME,
        "`{file}` differs from what this meshd would write",
        "another version wrote it, or it was edited: limits and restarts of this version may be missing",
        "run `{uninstall}`, then `{install}`; the node's state stays. For changes of your own, use `{edit}`",
    )
    SERVICE_UNKNOWN = Wording(
        "warning",
        _NAME,
        "`{file}` was not written by meshd",
        "`meshd service` cannot tell which node it starts",
        "remove that file, then run `meshd service install {which}`",
    )
    SERVICE_RIVAL = Wording(
        "error",
        _NAME,
        "process {pid} runs the node of `{unit}` by hand (`{home}`)",
        "the service cannot start while that process runs, and tries again and again",
        "run `meshd stop` with that MESHD_HOME, then `meshd service restart {which}`; or run `{uninstall}`",
    )
    SERVICE_DISABLED = Wording(
        "warning",
        _NAME,
        "`{unit}` is installed, but not enabled",
        "it does not start at boot or login",
        "run `{enable}`, or `{uninstall}` if it is not needed",
    )
    SERVICE_REFUSED = Wording(
        "error",
        _NAME,
        "`{unit}` failed with exit code {exit_code}: {why}",
        "no restart would help, so the service stays stopped",
        "fix that, then run `meshd service restart {which}`",
    )
    SERVICE_FAILED = Wording(
        "error",
        _NAME,
        "`{unit}` failed, and is not started again: {why}",
        "its node crashed too often, or could not end",
        f"see {_LOGS}, then run `meshd service restart {{which}}`",
    )
    SERVICE_RETRIES = Wording(
        "warning",
        _NAME,
        "`{unit}` fails, and is started again: {why}",
        "its node is not there until the cause is gone",
        f"fix that; see {_LOGS}",
    )
    SERVICE_STOPPED = Wording(
        "warning",
        _NAME,
        "`{unit}` is stopped",
        "its node is not there until the next boot or login",
        "run `meshd service restart {which}`, or `{uninstall}` if it is not needed",
    )
    SERVICE_NOT_LINGERING = Wording(
        "warning",
        _NAME,
        "`{unit}` runs only while you are logged in",
        "it stops when you log out, and does not start at boot",
        "run `sudo loginctl enable-linger {user}`",
    )


def check_services() -> Iterator[Finding]:
    """Report what keeps each installed service from starting, running or staying."""
    for control in installed_controls():
        service = control.installed()
        if service is None:
            yield ServiceKind.SERVICE_UNKNOWN.found(file=control.file, which=_which(control))
        else:
            yield from _check(control, service)


def _check(control: ServiceControl, service: Service) -> Iterator[Finding]:
    state = _state(control)
    program = service.command[0]
    why = _why_unusable(Path(program), state)
    if why:
        yield ServiceKind.SERVICE_PROGRAM.found(
            unit=control.name,
            program=program,
            why=why,
            uninstall=_uninstall(control),
            install=_install(control, service),
        )
        return
    if _differs(control, service):
        yield ServiceKind.SERVICE_OUTDATED.found(
            file=control.file,
            uninstall=_uninstall(control),
            install=_install(control, service),
            edit=_of_systemd(control, "edit"),
        )
    if state is not None:
        yield from _check_state(control, state)


def _state(control: ServiceControl) -> ServiceState | None:
    """Return its state; None if the service manager does not say it, as for a user who is not logged in."""
    try:
        return control.state()
    except UserError:
        return None


def _why_unusable(program: Path, state: ServiceState | None) -> str:
    try:
        program.stat()
    except (FileNotFoundError, NotADirectoryError):
        return "does not exist"
    except OSError:
        return ""  # this user may not look
    return "cannot be started" if state is not None and state.exit_code == _EXEC_EXIT_CODE else ""


def _differs(control: ServiceControl, service: Service) -> bool:
    try:
        return control.file.read_bytes() != control.text(service)
    except OSError:
        return False


def _check_state(control: ServiceControl, state: ServiceState) -> Iterator[Finding]:
    found = list(_faults(control, state))
    yield from found
    if not found and not control.option and sys.platform == "linux" and not lingers():
        yield ServiceKind.SERVICE_NOT_LINGERING.found(unit=control.name, user=_user_name())
    elif not found:
        yield ServiceKind.SERVICE.found(unit=control.name, starts=state.starts)


def _faults(control: ServiceControl, state: ServiceState) -> Iterator[Finding]:
    unit, which = control.name, _which(control)
    home = control.home()
    holder = None if home is None else lock_holder(home, purpose=DAEMON)
    if holder not in (None, state.pid) and (state.starts or state.waits) and control.role != "relay":
        yield ServiceKind.SERVICE_RIVAL.found(
            pid=holder, unit=unit, home=home, which=which, uninstall=_uninstall(control)
        )
        return
    if not state.starts:
        yield ServiceKind.SERVICE_DISABLED.found(
            unit=unit, enable=_of_systemd(control, "enable"), uninstall=_uninstall(control)
        )
    why = state.why or f"exit code {state.exit_code}"
    if state.waits and state.has_failed and why:
        yield ServiceKind.SERVICE_RETRIES.found(unit=unit, why=why, which=which)
    elif state.has_failed and state.exit_code in (_USAGE_EXIT_CODE, FINAL_EXIT_CODE):
        yield ServiceKind.SERVICE_REFUSED.found(
            unit=unit, exit_code=state.exit_code, why=state.why or "see its log", which=which
        )
    elif state.has_failed:
        yield ServiceKind.SERVICE_FAILED.found(unit=unit, why=why, which=which)
    elif state.changes:
        yield ServiceKind.SERVICE_STARTING.found(unit=unit)
    elif not state.is_running and state.starts:
        yield ServiceKind.SERVICE_STOPPED.found(unit=unit, which=which, uninstall=_uninstall(control))


def _which(control: ServiceControl) -> str:
    """Return the words that name this service to `meshd service VERB`."""
    return f"{control.role}{control.option}"


def _uninstall(control: ServiceControl) -> str:
    return f"meshd service uninstall {_which(control)}"


def _install(control: ServiceControl, service: Service) -> str:
    """Return the command that installs the same service again."""
    words = list(service.command)
    options = words[words.index(service.role) + 1 :] if service.role in words else []
    return f"meshd service install {_which(control)}" + (f" -- {shlex.join(options)}" if options else "")


def _of_systemd(control: ServiceControl, verb: str) -> str:
    return f"systemctl{'' if control.option else ' --user'} {verb} {control.name}"


def _user_name() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


ANSWER_SECONDS = 5.0
_NAMES = {  # of what a node warns of
    "membership": ("not_in_mesh", "banned", "identity_copied"),
    "root key": ("no_backup",),
    "peer": (
        "nobody_reached",
        "name_shared",
        "peer_suspended",
        "peer_lost",
        "peer_unreachable",
        "peer_faults",
    ),
    "network": ("mdns_silent", "relayed"),
    "version": ("version_refused", "version_mismatch", "native_mismatch", "native_differs"),
    "clock": ("clock_off",),
    "llama.cpp": ("child_failed", "child_restarts", "rpc_refused"),
    "model": ("model_failed", "model_waiting", "model_slow", "model_file", "tensors_from_network"),
    "worker": ("unknown_worker",),
    "cache": ("weights_not_kept",),
    "disk": ("disk",),
    "gpu": ("no_cuda",),
    "device": ("device_unfit",),
}


def check_node(home: Path) -> Iterator[Finding]:
    """Report whether a node runs, and what it warns of."""
    try:
        is_closed = home.exists() and not os.access(home, os.X_OK)
    except PermissionError:  # it is in a directory that this user cannot enter
        is_closed = True
    if is_closed:
        return  # folders.py reports it
    try:
        status = ask(home, StatusRequest(), seconds=ANSWER_SECONDS)
    except NotRunning:
        yield Kind.NODE.found(what="not running")
    except NotAnswering as error:
        yield Kind.NODE_STARTING.found(why=error.what, remedy=error.hint)
    except Silent as error:
        yield Kind.NODE_SILENT.found(why=error.what, remedy=error.hint)
    except OtherVersion as error:
        yield Kind.NODE_OTHER_VERSION.found(running=error.version, installed=__version__)
    except MeshdError as error:
        yield Kind.NODE_UNREACHABLE.found(why=error.what, remedy=error.hint)
    else:
        yield Kind.NODE.found(what=f"`{status.node.name}` runs as {status.node.role}")
        if status.node.version != __version__:
            yield Kind.NODE_OTHER_VERSION.found(running=status.node.version, installed=__version__)
        yield from map(_of_warning, status.warnings)


def _of_warning(warning: HealthWarning) -> Finding:
    """Return a warning of the node as it is worded there."""
    name = next((name for name, codes in _NAMES.items() if warning.code in codes), "node")
    return Finding(warning.code, name, warning.severity, warning.what, hint=warning.hint)
