"""Control a service through systemd or launchd: install, start, look, stop.

Both are asked through their own commands, systemctl and launchctl. Text of launchctl is for people, so less
is known there; nothing here has run on macOS yet.
"""

import os
import pwd
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from meshd.base.errors import UserError
from meshd.base.files import home_folder
from meshd.service.files import (
    ROLES,
    SYSTEM_USER,
    Service,
    launchd_label,
    launchd_plist,
    launchd_service_of,
    service_of,
    systemd_unit,
    unit_name,
)

_BOOTED = Path("/run/systemd/system")  # sd_booted(3)
_LINGERING = Path("/var/lib/systemd/linger")  # has a file for each user whose services start at boot
_SYSTEM_UNITS = Path("/etc/systemd/system")
_OTHER_INIT = (
    "let your own init system run `meshd ROLE`; in a container, make that the main process; in WSL2, write "
    "`systemd=true` below `[boot]` in /etc/wsl.conf, then run `wsl --shutdown` in Windows"
)
_PROPERTIES = (
    *("ActiveState", "SubState", "UnitFileState", "MainPID", "NRestarts", "StatusText"),
    *("ExecMainStatus", "ActiveEnterTimestamp", "Job"),
)


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The state of an installed service. `state` is a word of systemd: active, activating, failed, inactive.

    `starts`: when it starts by itself, as a phrase; empty if it does not. `changes`: it is being started or
    stopped now. `why`: what it said of its failure. `waits`: it has failed, and will be started again.
    `since`: Unix seconds.
    """

    state: str
    starts: str = ""
    pid: int = 0
    restarts: int = 0
    since: int = 0
    why: str = ""
    exit_code: int = 0
    waits: bool = False
    changes: bool = False

    @property
    def is_running(self) -> bool:
        """True if it is up, and stays so."""
        return self.state == "active" and not self.changes

    @property
    def has_failed(self) -> bool:
        """True if its last start has failed."""
        if self.changes:
            return self.state == "activating" and bool(self.why)  # it said so, and takes its time to end
        return self.waits or self.state == "failed" or (self.state == "inactive" and self.exit_code > 0)


class ServiceControl(Protocol):
    """The service of one role. All methods raise UserError."""

    @property
    def role(self) -> str:
        """The role of its node."""
        ...

    @property
    def option(self) -> str:
        """Words that a command line needs to name this service: ` --system`, or nothing."""
        ...

    @property
    def name(self) -> str:
        """The name under which the service manager knows it."""
        ...

    @property
    def file(self) -> Path:
        """The file that describes it; it is there while the service is installed."""
        ...

    @property
    def restart_command(self) -> str:
        """The command of the system that restarts it at once."""
        ...

    @property
    def user(self) -> int | None:
        """The id of the user whose daemon it is; None: the present one."""
        ...

    def text(self, service: Service) -> bytes:
        """Return the content of `file` for a service."""
        ...

    def home(self) -> Path | None:
        """Return the home of the installed service's node."""
        ...

    def installed(self) -> Service | None:
        """Return the service that `file` describes; None if it was not written by meshd."""
        ...

    def install(self, text: bytes) -> None:
        """Write the file, and let the service start by itself from now on."""
        ...

    def start(self) -> None:
        """Begin to start it; returns at once."""
        ...

    def restart(self) -> None:
        """Stop it, and begin to start it again."""
        ...

    def state(self) -> ServiceState:
        """Return its state now."""
        ...

    def uninstall(self) -> None:
        """Stop it, and remove the file."""
        ...

    def logs(self, lines: int, *, follow: bool) -> Sequence[str] | None:
        """Return the command that shows what it has written; None: `meshd logs` does."""
        ...


def find_control(role: str, *, system: bool) -> ServiceControl:
    """Return the control of a role's service: of this user, or of the system. Raises UserError."""
    if sys.platform == "darwin":
        if system:
            raise UserError(
                "on macOS a service is always one of a user",
                hint="omit --system; let that user log in automatically for a start at boot",
            )
        return Launchd(role)
    else:
        if not _BOOTED.is_dir():
            raise UserError("this system was not started by systemd", hint=_OTHER_INIT)
        return Systemd(role, system=system)


def installed_controls() -> Iterator[ServiceControl]:
    """Yield the controls of all services that are installed for this user and the system."""
    for system in (False, True):
        for role in ROLES:
            with suppress(UserError):  # without systemd there is none
                if (control := find_control(role, system=system)).file.exists():
                    yield control


def restart_commands() -> list[str]:
    """Return the commands that restart the running services of this machine and user."""
    found = []
    for control in installed_controls():
        with suppress(UserError):
            if control.state().is_running:
                found.append(
                    f"{'sudo ' * bool(control.option)}meshd service restart {control.role}{control.option}"
                )
    return found


def check_user(*, system: bool) -> None:
    """Check that this user may install and change such a service. Raises UserError."""
    is_root = os.geteuid() == 0
    if system and not is_root:
        raise UserError(
            "a service of the system needs root",
            hint="run it with `sudo`; or omit --system for a service of your own",
        )
    if is_root and not system:
        raise UserError(
            "as root, meshd installs services of the system only",
            hint="add --system; or run it as the user who is to own the service",
        )


class Systemd:
    """A unit of systemd (implements ServiceControl)."""

    def __init__(self, role: str, *, system: bool) -> None:
        self.role = role
        self._system = system
        self.option = " --system" if system else ""
        self.name = unit_name(role)

    @property
    def file(self) -> Path:
        """The unit."""
        return self._units() / self.name

    @property
    def restart_command(self) -> str:
        """The command of systemd."""
        return f"systemctl {'' if self._system else '--user '}restart {self.name}"

    @property
    def user(self) -> int | None:
        """The id of the user `meshd`, for a unit of the system."""
        if not self._system:
            return None
        try:
            return pwd.getpwnam(SYSTEM_USER).pw_uid
        except KeyError:
            return None

    def text(self, service: Service) -> bytes:
        """Return the unit."""
        return systemd_unit(service, system=self._system).encode()

    def home(self) -> Path | None:
        """Return the home that the unit names."""
        service = self.installed()
        found = service.environment.get("MESHD_HOME") if service is not None else None
        return Path(found) if found else None

    def installed(self) -> Service | None:
        """Return the service that the unit starts."""
        try:
            return service_of(self.file.read_text(encoding="utf-8"), self.role)
        except (OSError, UnicodeDecodeError):
            return None

    def install(self, text: bytes) -> None:
        """Write and enable the unit."""
        write_file(self.file, text)
        self._ctl("daemon-reload")
        self._ctl("reset-failed", self.name, check=False)
        self._ctl("enable", "--quiet", self.name)

    def start(self) -> None:
        """Queue a start."""
        self._ctl("start", "--no-block", self.name)

    def restart(self) -> None:
        """Queue a restart; a limit of starts that was reached does not count."""
        self._ctl("reset-failed", self.name, check=False)
        self._ctl("restart", "--no-block", self.name)

    def state(self) -> ServiceState:
        """Return the state as systemd has it."""
        asked = [f"--property={name}" for name in _PROPERTIES]
        shown = self._ctl("show", "--timestamp=unix", *asked, self.name)
        found = dict(line.partition("=")[::2] for line in shown.splitlines())
        return ServiceState(
            state=found.get("ActiveState", ""),
            starts=self._starts() if found.get("UnitFileState") == "enabled" else "",
            pid=_number(found.get("MainPID")),
            restarts=_number(found.get("NRestarts")),
            since=_number(found.get("ActiveEnterTimestamp", "").lstrip("@")),
            why=found.get("StatusText", ""),
            exit_code=_number(found.get("ExecMainStatus")),
            waits=found.get("SubState") == "auto-restart" or found.get("ActiveState") == "activating",
            changes=_number(found.get("Job")) > 0,
        )

    def _starts(self) -> str:
        return "at boot" if self._system or lingers() else "when you log in"

    def uninstall(self) -> None:
        """Stop, disable and remove the unit."""
        self._ctl("disable", "--now", "--quiet", self.name)
        with suppress(FileNotFoundError):
            self.file.unlink()
        self._ctl("daemon-reload")
        self._ctl("reset-failed", self.name, check=False)

    def logs(self, lines: int, *, follow: bool) -> Sequence[str]:
        """Return the command that shows the journal of the unit."""
        whose = [] if self._system else ["--user"]
        more = ["--follow"] if follow else ["--no-pager"]
        return ["journalctl", *whose, f"--unit={self.name}", f"--lines={lines}", "--no-hostname", *more]

    def _units(self) -> Path:
        if self._system:
            return _SYSTEM_UNITS
        given = os.environ.get("XDG_CONFIG_HOME", "")
        folder = Path(given) if given.startswith("/") else home_folder() / ".config"
        return folder / "systemd" / "user"

    def _ctl(self, *words: str, check: bool = True) -> str:
        environ = dict(os.environ)
        if not self._system:
            runtime = environ.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
            if not Path(runtime, "systemd").is_dir():
                raise UserError(
                    "systemd runs nothing for this user now",
                    hint="log in as this user at the machine or by ssh, not with `su`; or first run "
                    f"`sudo loginctl enable-linger {pwd.getpwuid(os.getuid()).pw_name}`",
                )
        whose = ["--system"] if self._system else ["--user"]
        try:
            done = subprocess.run(
                ["systemctl", *whose, *words], env=environ, capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            raise UserError("there is no `systemctl` here", hint=_OTHER_INIT) from None
        if check and done.returncode:
            what = done.stderr.strip() or f"exit code {done.returncode}"
            raise UserError(
                f"`systemctl {' '.join(words)}` failed: {what}", hint=f"see `systemctl status {self.name}`"
            )
        return done.stdout


def lingers() -> bool:
    """Say whether services of this user start at boot, and stay when the user logs out."""
    return (_LINGERING / pwd.getpwuid(os.getuid()).pw_name).exists()


class Launchd:
    """An agent of launchd (implements ServiceControl)."""

    user = None
    option = ""

    def __init__(self, role: str) -> None:
        self.role = role
        self.name = launchd_label(role)
        self._domain = f"gui/{os.getuid()}"

    @property
    def file(self) -> Path:
        """The property list."""
        return home_folder() / "Library" / "LaunchAgents" / f"{self.name}.plist"

    @property
    def restart_command(self) -> str:
        """The command of launchd."""
        return f"launchctl kickstart -k {self._domain}/{self.name}"

    def text(self, service: Service) -> bytes:
        """Return the property list."""
        return launchd_plist(service)

    def home(self) -> Path | None:
        """Return the home that the property list names."""
        service = self.installed()
        found = service.environment.get("MESHD_HOME") if service is not None else None
        return Path(found) if found else None

    def installed(self) -> Service | None:
        """Return the service that the property list starts."""
        try:
            return launchd_service_of(self.file.read_bytes(), self.role)
        except OSError:
            return None

    def install(self, text: bytes) -> None:
        """Write the property list; what is in that folder starts at each login."""
        write_file(self.file, text)
        self._ctl("enable", f"{self._domain}/{self.name}")

    def start(self) -> None:
        """Load the agent, which starts it."""
        self._ctl("bootout", f"{self._domain}/{self.name}", check=False)
        self._ctl("bootstrap", self._domain, str(self.file))

    def restart(self) -> None:
        """Stop it as SIGTERM does, and start it again."""
        self.start()

    def state(self) -> ServiceState:
        """Return what launchctl prints for people."""
        shown = self._ctl("print", f"{self._domain}/{self.name}", check=False)
        pid, code = re.search(r"^\s*pid = (\d+)", shown, re.M), re.search(r"last exit code = (\d+)", shown)
        return ServiceState(
            state="active" if pid is not None else "inactive",
            starts="when you log in",
            pid=int(pid[1]) if pid is not None else 0,
            exit_code=int(code[1]) if code is not None else 0,
        )

    def uninstall(self) -> None:
        """Stop the agent, and remove the property list."""
        self._ctl("bootout", f"{self._domain}/{self.name}", check=False)
        with suppress(FileNotFoundError):
            self.file.unlink()

    def logs(self, lines: int, *, follow: bool) -> None:
        """Return None: launchd keeps no journal."""

    def _ctl(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(["launchctl", *words], capture_output=True, text=True, check=False)
        if check and done.returncode:
            what = done.stderr.strip() or f"exit code {done.returncode}"
            raise UserError(
                f"`launchctl {words[0]}` failed: {what}", hint="run it in the session of a logged-in user"
            )
        return done.stdout


def write_file(path: Path, text: bytes) -> None:
    """Write a file that everybody may read, as a whole or not at all. Raises UserError."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_bytes(text)
        fresh.chmod(0o644)
        fresh.replace(path)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink()
        raise UserError(
            f"cannot write `{path}`: {error.strerror}", hint="check that directory, its owner and its disk"
        ) from None


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0
