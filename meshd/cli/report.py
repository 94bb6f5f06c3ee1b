"""Write a text file about this node that others can read to help you, without secrets.

It has versions, settings, what `meshd doctor` finds, the status, and the end of the logs. Keys, invites,
tokens, public addresses and your user name are removed. Nothing is sent: read the file, then attach it where
you ask.
"""

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from meshd.base.errors import MeshdError, UsageError, UserError
from meshd.base.files import expanded
from meshd.base.units import in_bytes, in_time
from meshd.cli.options import Arguments, Parser, split_rest
from meshd.cli.output import Output
from meshd.cli.roles import Client, RoleVerb, Serve, Worker
from meshd.cli.upgrade import installation
from meshd.config.load import LoadedConfig, current_directory, load, with_kept_name
from meshd.config.setting import plain
from meshd.config.tree import Paths, find_cache, home_here, host_name
from meshd.service.control import ServiceState, find_control
from meshd.service.files import ROLES

if TYPE_CHECKING:
    from meshd.doctor.settings import ReadSettings
    from meshd.report.document import Report, Section
    from meshd.report.secrets import RunningNode

_NODES: Mapping[str, type[RoleVerb]] = {verb.role: verb for verb in (Worker, Serve, Client)}
_DOCTOR_SECONDS = 120.0
_LOG_SECONDS = 30.0
_MOST_LOG_BYTES = 768 << 10
_PROXIES = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
_HOST_KEYS = frozenset(
    {
        *("links.relays", "links.stun", "links.listen", "serve.rpc", "serve.host", "serve.allowed_hosts"),
        *("serve.allowed_origins", "client.allowed_hosts", "client.allowed_origins"),
    }
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the file to write."""
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="file to create (default: meshd-report-NODE-DATE.txt in this directory)",
    )


def run(args: Arguments, out: Output) -> int:
    """Write the report, whatever of this node works."""
    current_directory()  # else the file would have no place
    home, now = home_here(), time.time()
    given = _given(home)
    file = expanded(args.file) if args.file else Path(_default_name(given, now))
    with _created(file) as stream:
        with out.reminding():
            out.progress("looking at this machine, its devices and the running node")
            report = _written(home, given, now)
        data = report.text.encode(errors="replace")
        stream.write(data)
    out.line(str(file))
    out.note(f"{in_bytes(len(data))}: {', '.join(report.titles)}")
    for sentence in report.removed:
        out.note(sentence)
    out.note("nothing was sent: read the file, then attach it where you ask for help")
    return 0


# -- settings


@dataclass(frozen=True, slots=True)
class _Given:
    """The settings with which the node was started, else those of this shell; or the fault in them."""

    node: "RunningNode | None"
    file: Path | None
    options: Mapping[str, object]
    loaded: LoadedConfig | None = None
    fault: MeshdError | None = None

    @property
    def environ(self) -> Mapping[str, str]:
        """The variables of the node."""
        return os.environ if self.node is None else self.node.environ

    @property
    def paths(self) -> Paths:
        """Its folders."""
        if self.loaded is not None:
            return self.loaded.config.paths
        return Paths(home=home_here(), cache=find_cache(self.environ))

    @property
    def hosts(self) -> Iterator[str]:
        """Texts that may name hosts."""
        yield from (value for name, value in self.environ.items() if name in _PROXIES)
        for value in self.loaded.values if self.loaded is not None else ():
            if value.setting.name in _HOST_KEYS:
                yield str(plain(value.value))


def _given(home: Path) -> _Given:
    from meshd.report.secrets import running_node

    node = running_node(home)
    role, args = _arguments(node.command) if node is not None else ("", Arguments(config=None))
    environ, folder = (os.environ, Path.cwd()) if node is None else (node.environ, node.folder)
    named = args.config or environ.get("MESHD_CONFIG")
    try:
        file = folder / expanded(named) if named else None
        args.config = str(file) if file is not None else None
        loaded = _NODES[role]().load(args, environ) if role else load(environ=environ, file=file)
        with suppress(UserError):  # the home cannot be read, which other sections say
            loaded = with_kept_name(loaded)
    except MeshdError as error:
        return _Given(node, Path(named) if named else None, {}, fault=error)
    given = {value.setting.name: vars(args).get(value.setting.name) for value in loaded.values}
    return _Given(node, file, {name: value for name, value in given.items() if value is not None}, loaded)


def _arguments(command: Sequence[str]) -> tuple[str, Arguments]:
    """Return the role of a daemon's command line, and its arguments; no role if they cannot be read."""
    at = next((at for at, word in enumerate(command) if word in _NODES), len(command))
    role = command[at] if at < len(command) else ""
    if role:
        verb, parser = _NODES[role](), Parser(prog=f"meshd {role}")
        verb.add_arguments(parser)
        words, rest = command[at + 1 :], None
        if verb.passes_to:
            words, rest = split_rest(words)
        with suppress(UsageError):
            args = parser.parse(words, passes_to=verb.passes_to)
            args.rest = rest
            return role, args
    return "", Arguments(config=None)


# -- the report


def _written(home: Path, given: _Given, now: float) -> "Report":
    from meshd.doctor.settings import read_settings
    from meshd.report.document import write_report
    from meshd.report.secrets import Places

    node, loaded = given.node, given.loaded
    environs = [os.environ, *([] if node is None else [node.environ])]
    config = loaded.config if loaded is not None else None
    places = Places(
        homes=(home, home / "relay"),
        environs=environs,
        command=() if node is None else node.command,
        configs=() if given.file is None else (given.file,),
        key_files=() if config is None or config.serve.api_key_file is None else (config.serve.api_key_file,),
        invites=() if config is None else (config.node.join,),
        folder=Path.cwd() if node is None else node.folder,
    )
    try:
        settings = read_settings(given.options, given.file)
    except UsageError:  # options of a node that another version of meshd has started
        settings = read_settings({}, given.file)
    sections = _sections(home, given, settings, now)
    return write_report(sections, places, given.hosts, now=now)


def _sections(home: Path, given: _Given, settings: "ReadSettings", now: float) -> "list[Section]":
    from meshd.report import sections
    from meshd.report.document import Section

    paths = given.paths
    return [
        Section("versions", sections.versions),
        Section("installation", _installation),
        Section("machine", sections.machine),
        Section("GPUs", sections.gpus, _DOCTOR_SECONDS),
        Section("settings", partial(_settings, given)),
        Section("doctor", partial(sections.findings, settings), _DOCTOR_SECONDS),
        Section("services", partial(_services, now)),
        Section("status", partial(sections.status, home)),
        Section("network", partial(sections.network, home), sections.NETCHECK_SECONDS),
        Section("time of a token", partial(sections.speed, home), sections.WHY_SECONDS),
        Section("disks", partial(sections.disks, paths, now)),
        Section("logs", partial(sections.logs, paths.logs), _LOG_SECONDS, _MOST_LOG_BYTES),
    ]


def _installation() -> Iterator[str]:
    found = installation(Path(sys.prefix))
    yield f"by: {found.by}"
    yield f"from: {found.origin or 'unknown'}"
    yield f"Python environment: {sys.prefix}"
    for name, version in found.natives.items():
        yield f"programs: {name} {version}"


def _settings(given: _Given) -> Iterator[str]:
    from meshd.report.sections import settings

    if given.node is not None:
        yield f"those with which the node was started (process {given.node.pid})"
    else:
        yield "those of the shell of this command: no node runs, or its command line cannot be read"
    if given.fault is not None:
        yield f"not usable: {given.fault.with_hint}"
    elif given.loaded is not None:
        yield from settings(given.loaded)


def _services(now: float) -> Iterator[str]:
    """Yield the state of each installed service."""
    for system in (False, True):
        for role in ROLES:
            try:
                control = find_control(role, system=system)
                if control.file.exists():
                    yield f"{control.name}{control.option}: {control.file}"
                    yield from (f"  {line}" for line in _state(control.state(), now))
            except UserError as error:
                yield f"{role}{' --system' if system else ''}: {error.what}"
                break


def _state(state: ServiceState, now: float) -> Iterator[str]:
    yield f"state: {state.state}, starts {state.starts or 'only by hand'}"
    if state.pid:
        since = f", for {in_time(max(0.0, now - state.since))}" if state.since else ""
        yield f"process: {state.pid}{since}"
    yield f"restarts after failures: {state.restarts}, last exit code: {state.exit_code}"
    if state.why:
        yield f"why: {state.why}"


# -- the file


def _default_name(given: _Given, now: float) -> str:
    """Return the name of a file with the node's name and the date; without a user's name."""
    from meshd.report.scrub import Scrubber
    from meshd.report.secrets import names_of_user

    name = host_name() if given.loaded is None else given.loaded.config.node.name
    homes, users = names_of_user([os.environ])
    shown = re.sub(r"[^\w.-]", "", Scrubber((), homes=homes, users=users).scrub(name)).strip(".-_")
    date = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return "-".join(filter(None, ("meshd-report", shown, date))) + ".txt"


@contextmanager
def _created(file: Path) -> Iterator[BinaryIO]:
    """Create the file with mode 0600; it is removed again if the block fails. Raises UserError."""
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise UserError(f"`{file}` already exists", hint="choose another name: `meshd report FILE`") from None
    except OSError as error:
        raise _unwritable(file, error) from None
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
    except BaseException as error:
        with suppress(OSError):
            file.unlink()
        if isinstance(error, OSError):
            raise _unwritable(file, error) from None
        raise


def _unwritable(file: Path, error: OSError) -> UserError:
    return UserError(
        f"cannot write `{file}`: {(error.strerror or type(error).__name__).lower()}",
        hint="choose a directory that you can write to: `meshd report FILE`",
    )
