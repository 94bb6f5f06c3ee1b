"""The text of systemd units and launchd property lists for a node. Pure.

`configs/*.service` are units of the system that this module has made (`make reference`). A unit of a user
lacks what only the system's service manager may set: users, file systems, capabilities.
"""

import plistlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from xml.parsers.expat import ExpatError

from meshd.base.errors import UserError
from meshd.base.service_manager import FINAL_EXIT_CODE

SYSTEM_USER = "meshd"
SYSTEM_STATE, SYSTEM_CACHE = "/var/lib/meshd", "/var/cache/meshd"
CREDENTIAL = "/etc/credstore/meshd.join"
STOP_SECONDS = 30  # the last answers get an error, children end, the mesh hears a goodbye
_ABOUT = {
    "worker": "lends this machine's devices to a mesh",
    "serve": "serves a model across the workers of a mesh",
    "client": "offers the API of a mesh's serving nodes on this machine",
    "relay": "forwards encrypted traffic between nodes that cannot connect directly",
}
ROLES = tuple(_ABOUT)
_COMPUTES = frozenset({"worker", "serve"})  # by llama.cpp's programs, and the drivers of GPUs
_PLAIN = re.compile(r"[\w./:=@,+-]+", re.ASCII)
_ESCAPED = re.compile(r'[\\"%\x00-\x1f\x7f]')
_UNSAFE = re.compile(r"[\"'\\\x00-\x1f\x7f]")  # string_is_safe of systemd
_READ = re.compile(r'\\x([0-9a-f]{2})|\\(["\\])|%(%)|([^"\\])')
_ENVIRONMENT = re.compile(r'^Environment=(?:"((?:[^"\\]|\\.)*)"|(\S+))$', re.MULTILINE)
_COMMAND = re.compile(r"^ExecStart=:(.*)$", re.MULTILINE)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"|(\S+)')
# Landlock is not among the calls of a service in systemd before 254; meshd confines llama.cpp with it.
_LANDLOCK = "landlock_create_ruleset landlock_add_rule landlock_restrict_self"
# Calls, sockets and namespaces: all that a service manager without rights can forbid.
_THROUGH = ("/bin/sh", "-c", 'exec "$@"', "sh")  # for a path that systemd refuses
_LIMITS_OF_ALL = (
    "NoNewPrivileges=yes",
    "LockPersonality=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "SystemCallArchitectures=native",
    f"SystemCallFilter=@system-service {_LANDLOCK}",
    "SystemCallFilter=~@privileged",
    "SystemCallErrorNumber=EPERM",
    "UMask=0077",
)
_LIMITS_OF_SYSTEM = (
    "KeyringMode=private",
    "PrivateMounts=yes",
    "PrivateTmp=yes",
    "ProtectControlGroups=yes",
    "ProtectHome=yes",
    "ProtectHostname=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
    "ProtectProc=invisible",
    "ProtectSystem=strict",
    "RemoveIPC=yes",
)


@dataclass(frozen=True, slots=True)
class Service:
    """A role, the words that start it (the program first), and variables."""

    role: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


def unit_name(role: str) -> str:
    """Return the name of a role's unit."""
    return f"meshd-{role}.service"


def launchd_label(role: str) -> str:
    """Return the name of a role's launchd agent."""
    return f"org.meshd.{role}"


def systemd_unit(service: Service, *, system: bool) -> str:
    """Return the text of a unit of the system or of a user. Raises UserError for words that are not text."""
    return "\n".join(_unit_lines(service, system=system)) + "\n"


def _unit_lines(service: Service, *, system: bool) -> Iterator[str]:
    role = service.role
    for_whom = " --system" if system else ""
    yield f"# Written by `meshd service install {role}{for_whom}`."
    yield f"# To change it, run `systemctl{'' if system else ' --user'} edit meshd-{role}`."
    yield "[Unit]"
    yield f"Description=meshd {role}: {_ABOUT[role]}"
    if system:
        yield "Wants=network-online.target"
        yield "After=network-online.target remote-fs.target"
    # Ends a node that crashes again and again; one that waits for a network or a disk takes longer.
    yield "StartLimitIntervalSec=10min"
    yield "StartLimitBurst=30"
    yield ""
    yield "[Service]"
    yield "Type=notify"
    # The colon: no variables in what follows. The path of a program may not have some characters.
    through = _THROUGH if _UNSAFE.search(service.command[0]) else ()
    yield "ExecStart=:" + " ".join(map(quoted, (*through, *service.command)))
    for name, value in service.environment.items():
        yield f"Environment={quoted(f'{name}={value}')}"
    if system:
        yield f"User={SYSTEM_USER}"
        yield "StateDirectory=meshd"
        yield "StateDirectoryMode=0700"
        yield "CacheDirectory=meshd"
        yield "CacheDirectoryMode=0700"
        if role != "relay":
            yield "# a file with an invite in /etc/credstore joins a mesh, and is deleted then"
            yield "LoadCredential=meshd.join"
            yield f"ExecStartPost=+-/bin/rm -f {CREDENTIAL}"
    yield "# started: in the mesh, with an open API that says how far the model is"
    yield "TimeoutStartSec=2min"
    yield "WatchdogSec=2min"
    yield f"TimeoutStopSec={STOP_SECONDS}"
    yield "KillMode=mixed"
    yield "Restart=on-failure"
    yield "RestartSec=5"
    yield "# a command line, configuration or invite that no restart makes better"
    yield f"RestartPreventExitStatus=2 {FINAL_EXIT_CODE}"
    yield "# llama.cpp's programs may run out of memory; meshd starts them again"
    yield "OOMPolicy=continue"
    if role == "relay":
        yield "# its URL, which is no secret"
        yield "StandardOutput=journal"
    else:
        yield "# only the invite goes to stdout, and it must not be in the journal"
        yield "StandardOutput=null"
    yield "StandardError=journal"
    yield from _limits(role, system=system)
    yield ""
    yield "[Install]"
    yield f"WantedBy={'multi-user' if system else 'default'}.target"


def _limits(role: str, *, system: bool) -> Iterator[str]:
    yield from _LIMITS_OF_ALL
    if role not in _COMPUTES:  # drivers of GPUs compile code
        yield "MemoryDenyWriteExecute=yes"
    if not system:
        return
    yield from _LIMITS_OF_SYSTEM
    if role not in _COMPUTES:
        yield "PrivateDevices=yes"
        yield "ProtectClock=yes"  # it would also close the nodes of GPUs
    if role == "relay":
        yield "MemoryMax=1G"
        yield "# ports below 1024"
        yield "AmbientCapabilities=CAP_NET_BIND_SERVICE"
        yield "CapabilityBoundingSet=CAP_NET_BIND_SERVICE"
    else:
        yield "CapabilityBoundingSet="
        yield "PrivateUsers=yes"


def quoted(word: str) -> str:
    """Return a word so that systemd reads back exactly this (systemd.syntax(7), without variables).

    Raises UserError for bytes that are not text.
    """
    try:
        word.encode()
    except UnicodeEncodeError:
        shown = word.encode(errors="replace").decode()
        raise UserError(
            f"`{shown}` is not UTF-8, and cannot be in a unit of systemd", hint="rename the file or directory"
        ) from None
    if _PLAIN.fullmatch(word):
        return word
    return '"' + _ESCAPED.sub(_escape, word) + '"'


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    if character == "%":
        return "%%"
    return f"\\{character}" if character in '"\\' else f"\\x{ord(character):02x}"


def environment_of(unit: str) -> dict[str, str]:
    """Return the variables of a unit that `systemd_unit` made."""
    found = {}
    for match in _ENVIRONMENT.finditer(unit):
        name, _, value = _read(*match.groups()).partition("=")
        found[name] = value
    return found


def service_of(unit: str, role: str) -> Service | None:
    """Return the service for which `systemd_unit` made this text, by any version; None for another text."""
    found = _COMMAND.search(unit)
    if found is None:
        return None
    words = tuple(_read(*match.groups()) for match in _QUOTED.finditer(found[1]))
    if words[: len(_THROUGH)] == _THROUGH:
        words = words[len(_THROUGH) :]
    return Service(role, words, environment_of(unit)) if words else None


def _read(quoted_part: str | None, plain: str) -> str:
    return plain if quoted_part is None else _READ.sub(_unescape, quoted_part)


def _unescape(found: re.Match[str]) -> str:
    code, escaped, percent, plain = found.groups()
    return chr(int(code, 16)) if code else escaped or percent or plain


def launchd_plist(service: Service) -> bytes:
    """Return a property list for an agent of a user (launchd.plist(5))."""
    return plistlib.dumps(
        {
            "Label": launchd_label(service.role),
            "ProgramArguments": list(service.command),
            "EnvironmentVariables": dict(service.environment),
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": 10,
            "ExitTimeOut": STOP_SECONDS,
            "ProcessType": "Interactive",  # otherwise macOS slows it down
        },
        sort_keys=False,
    )


def launchd_environment(plist: bytes) -> dict[str, str]:
    """Return the variables of a property list that `launchd_plist` made; none from another file."""
    service = launchd_service_of(plist, "")
    return {} if service is None else dict(service.environment)


def launchd_service_of(plist: bytes, role: str) -> Service | None:
    """Return the service for which `launchd_plist` made this property list; None for another file."""
    try:
        read = plistlib.loads(plist)
        command = [str(word) for word in read["ProgramArguments"]]
        environment = {str(name): str(value) for name, value in read["EnvironmentVariables"].items()}
    except (plistlib.InvalidFileException, ExpatError, KeyError, TypeError, AttributeError, ValueError):
        return None
    return Service(role, command, environment) if command else None
