"""Check the settings of this machine: that a node could start with them, and who can read their secrets."""

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from meshd.base.errors import UsageError, UserError
from meshd.base.files import expanded, others_may_use
from meshd.base.hosts import is_loopback
from meshd.config.load import load, unknown_variables
from meshd.config.tree import VARIABLES, Config, Paths, find_cache, find_home
from meshd.doctor.kinds import Finding, Kind
from meshd.identity.invite import parse_relay_url


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """The settings, or the defaults where they cannot be used, and then why. `file`: the one they are in."""

    config: Config
    file: Path | None
    faults: tuple[Finding, ...] = ()
    has_invite: bool = field(default=False)
    """The file contains an invite itself, not the name of a file with one."""


def read_settings(options: Mapping[str, object], file: Path | None) -> ReadSettings:
    """Read the settings as a node would, from options, environment and file. Raises UsageError."""
    if file is None and os.environ.get("MESHD_CONFIG"):
        file = expanded(os.environ["MESHD_CONFIG"])
    try:
        loaded = load(options=options, file=file)
    except UsageError:
        raise
    except UserError as error:
        fault = Kind.CONFIG_UNUSABLE.found(why=error.what, remedy=error.hint)
        return ReadSettings(_without_file(options), file, (fault,))
    join = loaded.config.node.join.strip()
    has_invite = loaded.origin("node.join").startswith("file ") and join[:1] not in ("", "@", "-")
    return ReadSettings(loaded.config, file, has_invite=has_invite)


def _without_file(options: Mapping[str, object]) -> Config:
    """Return what options and variables say, or, if those cannot be used either, the folders alone."""
    environ = {name: value for name, value in os.environ.items() if name != "MESHD_CONFIG"}
    try:
        return load(options=options, environ=environ).config
    except UserError:
        return Config(paths=Paths(home=find_home(environ), cache=find_cache(environ)))


def check_settings(settings: ReadSettings) -> Iterator[Finding]:
    """Report settings with which no node starts, and secrets that others can read."""
    yield from settings.faults
    for unknown in unknown_variables(os.environ, VARIABLES):
        yield Kind.VARIABLE_UNKNOWN.found(why=unknown.what, remedy=unknown.hint)
    if settings.file is not None and settings.has_invite and (mode := _open_mode(settings.file)):
        yield Kind.SETTINGS_READABLE.found(path=settings.file, mode=mode)
    for url in settings.config.links.relays:
        try:
            parse_relay_url(url)
        except UserError as error:
            yield Kind.RELAY_UNREADABLE.found(why=error.what, remedy=error.hint)
    serve = settings.config.serve
    if serve.api_key_file is not None:
        yield from _check_keys(serve.api_key_file)
    elif not is_loopback(serve.host):
        yield Kind.API_OPEN.found(host=serve.host)


def _check_keys(file: Path) -> Iterator[Finding]:
    if mode := _open_mode(file):
        yield Kind.KEYS_READABLE.found(path=file, mode=mode)
        return
    from meshd.gateway.access import load_keys  # aiohttp, which few need here

    try:
        load_keys(file)
    except UserError as error:
        yield Kind.KEYS_UNUSABLE.found(why=error.what, remedy=error.hint)


def _open_mode(file: Path) -> str:
    """Return the mode of a file that other users can use; else nothing."""
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
    except OSError:
        return ""
    return f"{mode:04o}" if others_may_use(file, mode) else ""
