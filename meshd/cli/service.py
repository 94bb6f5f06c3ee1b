"""Run a worker, head, client or relay as a service: it starts automatically, and again after a failure.

It becomes a systemd unit (Linux) or a launchd agent (macOS). Without --system it is your own service, and
starts when you log in, or at boot after `loginctl enable-linger`. With --system it starts at boot, as the
user `meshd`.
Options of the role go after `--`.

examples:
  meshd service install worker -- --memory 8G
  meshd service install serve --join-file invite.txt -- --model model.gguf
  sudo meshd service install relay --system -- --listen :443 --public-host relay.example.org
  meshd service logs worker -f
"""

import argparse
import os
import pwd
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from meshd.base.errors import MeshdError, UsageError, UserError
from meshd.base.files import expanded
from meshd.base.units import in_number, in_time
from meshd.cli.options import VARIABLES, Arguments, Parser, number, split_rest
from meshd.cli.output import Output
from meshd.cli.roles import Client, Relay, RoleVerb, Serve, Worker, read_join
from meshd.config import forms
from meshd.config.load import LoadedConfig
from meshd.config.setting import Setting
from meshd.config.tree import SETTINGS, Config, NodeConfig, find_cache, find_home
from meshd.identity.folder import DAEMON, INVITE, lock_holder
from meshd.service.control import ServiceControl, ServiceState, check_user, find_control, lingers
from meshd.service.files import ROLES, SYSTEM_CACHE, SYSTEM_STATE, SYSTEM_USER, Service

if TYPE_CHECKING:
    from meshd.admin.api import DrainReply

START_SECONDS = 60.0  # for which a start is watched; it may take longer
DRAIN_SECONDS = 600
DEFAULT_LINES = 100
_LOOK_SECONDS = 0.2
_END_SECONDS = 3.0  # until a process ends that has said why it fails; one that is started again takes longer
_HIDDEN = ("/home", "/root", "/run/user")  # from services of the system (ProtectHome=)
_GPU_GROUPS = ("render", "video")  # whose members may use GPUs
_CARRIED = ("MESHD_HOME", "MESHD_CACHE", "MESHD_CONFIG")
_RELAY = "relay"
_KEEP_INVITE = 'umask 077; mkdir -p "$1" && cat > "$1/join.new" && mv "$1/join.new" "$1/join"'
_VERBS: Mapping[str, Callable[[], RoleVerb | Relay]] = {
    "worker": Worker,
    "serve": Serve,
    "client": Client,
    _RELAY: Relay,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions, each with its role."""
    below = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    about = {
        "install": "Write the service, and start it now.",
        "uninstall": "Stop the service, and remove it. The node's state stays.",
        "status": "Show whether the service runs, since when, and why it failed. Exit code 1 unless it runs.",
        "logs": "Show the output of the service.",
        "restart": "Let running requests finish, then restart the service, for example after an upgrade.",
    }
    made = {}
    for action, description in about.items():
        made[action] = parser = below.add_parser(action, description=description)
        parser.add_argument("role", metavar="ROLE", choices=ROLES, help=f"one of {', '.join(ROLES)}")
        parser.add_argument(
            "--system", action="store_true", help="use the system's service instead of your own"
        )
    made["install"].usage = "meshd service install ROLE [--system] [--join-file FILE] [-- OPTIONS_OF_ROLE...]"
    made["install"].add_argument(
        "--join-file",
        metavar="FILE",
        help="file with an invite, for the first start; deleted once the node has joined",
    )
    made["restart"].add_argument(
        "--timeout",
        metavar="SECONDS",
        default=str(DRAIN_SECONDS),
        help=f"how long to wait for running requests (default: {DRAIN_SECONDS})",
    )
    made["logs"].add_argument(
        "-f", "--follow", action="store_true", help="keep printing new lines until interrupted"
    )
    made["logs"].add_argument(
        "--lines",
        metavar="N",
        default=str(DEFAULT_LINES),
        help=f"number of lines to show (default: {DEFAULT_LINES})",
    )


def run(args: Arguments, out: Output) -> int:
    """Carry out the action."""
    if args.rest is not None and args.action != "install":
        raise UsageError(f"`meshd service {args.action}` takes no options of the role")
    control = find_control(args.role, system=args.system)
    if args.action == "install":
        return _install(args, control, out)
    if not control.file.exists():
        raise _absent(args, control)
    if args.action == "status":
        return _show(control, out)
    if args.action == "logs":
        return _show_logs(args, control)
    check_user(system=args.system)
    if args.action == "restart":
        seconds = number("--timeout", args.timeout, 1, 86400)
        return _restart(args.role, control, seconds, out)
    return _uninstall(args, control, out)


def _absent(args: Arguments, control: ServiceControl) -> UserError:
    other = find_control(args.role, system=not args.system) if sys.platform == "linux" else control
    hint = f"run `meshd service install {args.role}`"
    if other.file.exists():
        hint = f"{'omit' if args.system else 'add'} --system: `{other.file}` is there"
    return UserError(f"there is no service `{control.name}`: `{control.file}` does not exist", hint=hint)


# -- install


def _install(args: Arguments, control: ServiceControl, out: Output) -> int:
    check_user(system=args.system)
    carried = {name: value for name in _CARRIED if (value := os.environ.get(name))}
    words = role_words(args.role, args.rest or (), carried)
    token = _read_invite(args.role, args.join_file)
    home = Path(SYSTEM_STATE, args.role) if args.system else find_home(os.environ)
    service = Service(args.role, [*program(), args.role, *words], _variables(home, system=args.system))
    text = control.text(service)
    _check_free(args, control, text, home)
    _note_variables(args.role, out)
    if args.system:
        _make_user()
        _check_readable(service.command, program())
    control.install(text)
    if token:
        _keep_invite(home, token, user=SYSTEM_USER if args.system else None)
    control.start()
    out.line(f"installed  {control.file}")
    state = _watch_start(control, out)
    if token and state.is_running:
        expanded(args.join_file).unlink(missing_ok=True)
    _say_started(args, control, state, home, out)
    return 0


def program() -> list[str]:
    """Return the words that start this meshd: the command by which it was called, if it has a path."""
    called = Path(sys.argv[0])
    if called.name == "meshd" and os.access(called, os.X_OK):
        return [str(called.absolute())]
    return [sys.executable, "-P", "-m", "meshd"]


def role_words(role: str, argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the options of a role, checked, with absolute paths; `environ` is the service's. Raises
    UserError.
    """
    verb = _VERBS[role]()
    parser = Parser(prog=f"meshd {role}")
    verb.add_arguments(parser)
    if isinstance(verb, Relay):
        verb.settings(parser.parse(argv, passes_to=""))
        return list(argv)
    before, after = split_rest(argv) if verb.passes_to else (argv, None)
    args = parser.parse(before, passes_to=verb.passes_to)
    args.rest = after
    args.config = args.config or environ.get("MESHD_CONFIG")
    loaded = verb.load(args, environ)
    verb.check(loaded.config)
    words = list(_written(args, loaded))
    if loaded.config.serve.llama_args and after:
        words += ["--", *loaded.config.serve.llama_args]
    return words


def _written(args: Arguments, loaded: LoadedConfig) -> Iterator[str]:
    """Yield the options that were given, in the order of the settings."""
    if args.config:
        yield from ("--config", str(expanded(args.config).absolute()))
    for word in args.set:
        name, _, raw = word.partition("=")
        setting = next(candidate for candidate in SETTINGS if candidate.name == name)
        _refuse_secret(setting)
        value = _value(loaded, setting)
        yield from ("--set", f"{name}={value}" if isinstance(value, Path) else word)
    for setting in SETTINGS:
        if (raw := vars(args).get(setting.name)) is None or not setting.option:
            continue
        _refuse_secret(setting)
        if setting.is_switch:
            yield setting.option
            continue
        texts = [raw] if isinstance(raw, str) else list(raw)
        if setting.form is forms.PATH or setting.names_models:
            value = _value(loaded, setting)
            texts = [str(item) for item in (value if isinstance(value, tuple) else (value,))]
        for text in texts:
            yield from (f"{setting.option}={text}",) if text.startswith("-") else (setting.option, text)


def _value(loaded: LoadedConfig, setting: Setting) -> object:
    return next(found.value for found in loaded.values if found.setting.name == setting.name)


def _refuse_secret(setting: Setting) -> None:
    if setting.secret:
        raise UsageError(
            f"`{setting.option}` would put a secret where all users of this machine can read it",
            hint="give the invite in a file: `--join-file FILE`, before the `--`",
        )


def _read_invite(role: str, file: str | None) -> str:
    """Return the invite in a file; empty without one. Raises UserError."""
    if file is None:
        return ""
    if role == _RELAY:
        raise UsageError("a relay joins no mesh", hint="omit --join-file")
    return read_join(Config(node=NodeConfig(name="", join=f"@{file}"))).node.join


def _variables(home: Path, *, system: bool) -> dict[str, str]:
    if system:
        return {"MESHD_HOME": str(home), "MESHD_CACHE": SYSTEM_CACHE}
    cache = {"MESHD_CACHE": str(find_cache(os.environ))} if os.environ.get("MESHD_CACHE") else {}
    return {"MESHD_HOME": str(home), **cache}


def _note_variables(role: str, out: Output) -> None:
    """Say which settings of this shell the service will not have."""
    lost = [name for name in VARIABLES if os.environ.get(name) and name not in _CARRIED]
    if lost:
        names = ", ".join(f"`{name}`" for name in lost)
        out.note(f"the service does not get {names} of this shell: give options of `meshd {role}` instead")


def _check_free(args: Arguments, control: ServiceControl, text: bytes, home: Path) -> None:
    """Check that nothing is in the way: another unit, a node of the same home. Raises UserError."""
    running = control.state().pid  # also checks that the service manager answers, before anything is written
    try:
        before = control.file.read_bytes()
    except FileNotFoundError:
        before = None
    except OSError as error:
        raise UserError(f"cannot read `{control.file}`: {error.strerror}", hint="check its owner") from None
    if before is not None and before != text:
        raise UserError(
            f"`{control.file}` exists, and differs from what would be written",
            hint=f"run `meshd service uninstall {args.role}{control.option}` first; the node's state stays",
        )
    nodes = [role for role in ROLES if role != _RELAY]  # which has a directory of its own in its home
    for role in nodes:
        other = find_control(role, system=args.system)
        if args.role in nodes and role != args.role and other.home() == home:
            raise UserError(
                f"the service `{other.name}` already uses `{home}`, and each node needs its own directory",
                hint=f"name another: `MESHD_HOME={home}-{args.role} meshd service install {args.role} …`",
            )
    pid = lock_holder(home, purpose=DAEMON)
    if pid is not None and pid != running:
        raise UserError(
            f"a node of `{home}` already runs (process {pid}), not as this service",
            hint="run `meshd stop` first",
        )


def _make_user() -> None:
    """Create the system user `meshd`, who may use GPUs, unless it exists. Raises UserError."""
    import grp

    try:
        pwd.getpwnam(SYSTEM_USER)
        return
    except KeyError:
        pass
    groups = [name for name in _GPU_GROUPS if any(group.gr_name == name for group in grp.getgrall())]
    more = ["--groups", ",".join(groups)] if groups else []
    shell = shutil.which("nologin", path="/usr/sbin:/sbin:/usr/bin:/bin") or "/bin/false"
    words = [
        "--system",
        "--user-group",
        "--no-create-home",
        "--home-dir",
        SYSTEM_STATE,
        "--shell",
        shell,
        *more,
    ]
    try:
        done = subprocess.run(["useradd", *words, SYSTEM_USER], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UserError("there is no `useradd` here", hint=f"create the user `{SYSTEM_USER}`") from None
    if done.returncode:
        raise UserError(
            f"cannot create the user `{SYSTEM_USER}`: {done.stderr.strip()}",
            hint="create it, and run this again",
        )


def _check_readable(command: Sequence[str], own: Sequence[str]) -> None:
    """Check that a service of the system can use meshd and the files that it is given. Raises UserError."""
    places = [Path(own[0]), Path(own[0]).resolve(), Path(sys.prefix), Path(sys.base_prefix)]
    for place in places:
        if str(place).startswith(tuple(f"{hidden}/" for hidden in _HIDDEN)):
            raise UserError(
                f"a service of the system cannot run meshd from `{place}`",
                hint="install meshd for all users, by the Debian package or below /opt; or omit --system",
            )
    if _as_service_user([*own, "--version"]):
        raise UserError(
            f"the user `{SYSTEM_USER}` cannot run `{own[0]}`",
            hint="install meshd where all users can read it, such as below /opt",
        )
    for word in command[len(own) :]:
        text = word.partition("=")[2] if word.startswith("--") else word
        path = Path(text)
        if not path.is_absolute() or not path.exists():
            continue
        if str(path).startswith(tuple(f"{hidden}/" for hidden in _HIDDEN)):
            raise UserError(
                f"a service of the system cannot see `{path}`",
                hint=f"move it to another directory, such as {SYSTEM_STATE}; or omit --system",
            )
        if _as_service_user(["test", "-r", str(path)]):
            raise UserError(
                f"the user `{SYSTEM_USER}` cannot read `{path}`",
                hint=f"change its mode or owner until `sudo -u {SYSTEM_USER} head -c 1 {path}` can read it",
            )


def _as_service_user(words: Sequence[str]) -> int:
    """Run a program as the user `meshd`; return its exit code."""
    try:
        return subprocess.run(
            words,
            user=SYSTEM_USER,
            group=SYSTEM_USER,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            check=False,
        ).returncode
    except OSError:
        return 1


def _keep_invite(home: Path, token: str, *, user: str | None) -> None:
    """Leave the invite for the first start, by a process of that user: the directory is that user's."""
    words = ["sh", "-c", _KEEP_INVITE, "sh", str(home)]
    if user is None:
        done = subprocess.run(words, input=token.encode(), capture_output=True, check=False)
    else:
        state = Path(SYSTEM_STATE)
        if not state.exists():
            state.mkdir(mode=0o700)
            shutil.chown(state, user, user)
        done = subprocess.run(
            words,
            input=token.encode(),
            capture_output=True,
            check=False,
            user=user,
            group=user,
            extra_groups=[],
        )
    if done.returncode:
        raise UserError(
            f"cannot write `{home / INVITE}`: {done.stderr.decode(errors='replace').strip()}",
            hint="check that directory, its owner and its disk",
        )


def _drop_invite(home: Path, *, user: str | None) -> None:
    """Remove an invite that no start has used, by a process of that user: root follows none of its links."""
    words = ["rm", "-f", "--", str(home / INVITE)]
    with suppress(OSError, LookupError):  # the user is gone, and so is what it had
        if user is None:
            subprocess.run(words, capture_output=True, check=False)
        else:
            subprocess.run(words, capture_output=True, check=False, user=user, group=user, extra_groups=[])


def _watch_start(control: ServiceControl, out: Output) -> ServiceState:
    """Wait until the service runs, or the time is over; return its state. Raises UserError if it fails."""
    deadline = time.monotonic() + START_SECONDS
    while not (state := control.state()).is_running:
        if state.has_failed:
            raise _failed(control, _when_ended(control, state))
        if time.monotonic() >= deadline:
            break
        out.progress(f"waiting for {control.name} to start")
        time.sleep(_LOOK_SECONDS)
    return state


def _when_ended(control: ServiceControl, state: ServiceState) -> ServiceState:
    """Return the state in which a failed start ends: only its exit code says whether there is another."""
    deadline = time.monotonic() + _END_SECONDS
    while state.changes and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        state = replace(now := control.state(), why=now.why or state.why)
    return state


def _failed(control: ServiceControl, state: ServiceState) -> UserError:
    what = "failed, and will be started again" if state.waits else "failed"
    why = state.why or f"exit code {state.exit_code}"
    which = f"{control.role}{control.option}"
    return UserError(
        f"`{control.name}` {what}: {why}",
        hint=f"run `meshd service logs {which}` for more; after a remedy, `meshd service restart {which}`",
    )


def _say_started(
    args: Arguments, control: ServiceControl, state: ServiceState, home: Path, out: Output
) -> None:
    """Say what runs now, when it will, and what to do next."""
    if state.is_running:
        out.line(f"running    process {state.pid}, starts {state.starts}")
    else:
        out.line(f"starting   see `meshd service status {control.role}{control.option}`")
        if args.join_file:
            out.note(f"`{args.join_file}` stays until you delete it: this node has not joined yet")
    if not args.system and sys.platform == "linux" and not lingers():
        name = pwd.getpwuid(os.getuid()).pw_name
        out.note(
            "it stops when you log out; to start it at boot, and let it run without you:\n"
            f"  sudo loginctl enable-linger {name}"
        )
    if args.role == _RELAY:
        return
    meshd = _speaking_to(home, system=args.system)
    out.note(f"its state: {meshd} status\nto let others join: {meshd} invite")


def _speaking_to(home: Path, *, system: bool) -> str:
    """Return the words for commands to the service's node."""
    if system:
        return f"sudo -u {SYSTEM_USER} env MESHD_HOME={home} {shlex.join(program())}"
    return f"MESHD_HOME={shlex.quote(str(home))} meshd" if os.environ.get("MESHD_HOME") else "meshd"


# -- look


def _show(control: ServiceControl, out: Output) -> int:
    state = control.state()
    out.line(f"service    {control.file}")
    out.line(f"starts     {state.starts or 'only by hand'}")
    if state.has_failed:
        raise _failed(control, state)
    if not state.is_running:
        which = f"{control.role}{control.option}"
        remedy = f"start it with `meshd service restart {which}`"
        if state.changes:
            remedy = f"wait, or see `meshd service logs {which}`"
        raise UserError(f"`{control.name}` is {state.state}", hint=remedy)
    since = f" for {in_time(max(0.0, time.time() - state.since))}" if state.since else ""
    restarts = f", {in_number(state.restarts, 'restart')} after failures" if state.restarts else ""
    out.line(f"running    process {state.pid}{since}{restarts}")
    return 0


def _show_logs(args: Arguments, control: ServiceControl) -> int:
    lines = number("--lines", args.lines, 0, 1_000_000)
    words = control.logs(lines, follow=args.follow)
    environ = dict(os.environ)
    if words is None:
        words = [*program(), "logs", "meshd", "--lines", str(lines), *(["-f"] if args.follow else [])]
        environ["MESHD_HOME"] = str(control.home() or find_home(os.environ))
    try:
        return subprocess.run(words, env=environ, check=False).returncode
    except FileNotFoundError:
        raise UserError(f"there is no `{words[0]}` here", hint="run `meshd logs`") from None


# -- restart and uninstall


def _restart(role: str, control: ServiceControl, seconds: float, out: Output) -> int:
    home = control.home()
    if control.state().is_running and role != _RELAY and home is not None:
        _drain(home, control, seconds, out)
    control.restart()
    state = _watch_start(control, out)
    where = f"see `meshd service status {control.role}{control.option}`"
    out.line(f"running    process {state.pid}" if state.is_running else f"starting   {where}")
    return 0


class _StillRunning(UserError):
    """Something runs longer than one is willing to wait."""


def _drain(home: Path, control: ServiceControl, seconds: float, out: Output) -> None:
    """Wait until nothing runs on the node, which begins nothing new. Raises UserError after `seconds`."""
    from meshd.admin.api import DrainRequest
    from meshd.admin.client import Client as AdminClient

    deadline = time.monotonic() + seconds
    try:
        with AdminClient(home, user=control.user) as client:
            try:
                while running := _running(client.ask(DrainRequest())):
                    if time.monotonic() >= deadline:
                        raise _StillRunning(
                            f"{running} still running here",
                            hint="run this again to keep waiting, or restart it by "
                            f"`{control.restart_command}` to end them now",
                        )
                    out.progress(f"waiting for {running} to end")
                    time.sleep(_LOOK_SECONDS)
            except BaseException:
                with suppress(MeshdError):
                    client.ask(DrainRequest(on=False))
                raise
    except _StillRunning:
        raise
    except MeshdError as error:  # an older daemon, or one that ends by itself
        out.note(f"restarting without waiting for running requests: {error.what}")


def _running(now: "DrainReply") -> str:
    """Return what runs, as a phrase; empty if nothing does."""
    counts = ((now.requests, "request"), (now.leases, "lease"))
    return " and ".join(in_number(count, thing) for count, thing in counts if count)


def _uninstall(args: Arguments, control: ServiceControl, out: Output) -> int:
    home = control.home()
    control.uninstall()
    out.line(f"removed    {control.file}")
    if home is None:
        return 0
    _drop_invite(home, user=SYSTEM_USER if args.system else None)
    if not args.system:
        out.note(f"left: `{home}` (identity and membership), and its cache, as docs/install.md names them")
    elif not any(find_control(role, system=True).file.exists() for role in ROLES):
        out.note(
            f"left: the user `{SYSTEM_USER}`, `{SYSTEM_STATE}` (identity and membership) and "
            f"`{SYSTEM_CACHE}`; to remove them:\n"
            f"  sudo userdel {SYSTEM_USER}; sudo rm -r {SYSTEM_STATE} {SYSTEM_CACHE}"
        )
    else:
        out.note(f"left: `{home}`, the node's identity and membership")
    return 0
