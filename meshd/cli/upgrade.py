"""Install a newer meshd over this one, from wheels in a directory or on a web page.

No package index is asked for `meshd`: the one on PyPI is somebody else's. Without --from, the place counts
from which this meshd was installed. What is installed runs with this user's rights, often from a place that
was noted long ago: so a directory counts only if no other user can change it, and a page only by https://.
"""

import argparse
import http.client
import importlib.metadata
import json
import lzma
import os
import platform
import re
import shlex
import stat
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from meshd import __version__
from meshd.base.errors import MeshdError, UserError
from meshd.cli.options import Arguments
from meshd.cli.output import Output
from meshd.config.tree import home_here
from meshd.identity.folder import DAEMON, lock_holder
from meshd.service.control import restart_commands
from meshd.wire.versions import Release, release_of

if TYPE_CHECKING:  # the module costs time to import, and `--help` does not need it
    from meshd.build.pin import Pin

NATIVE = "meshd-native"  # the wheel of programs, or the beginning of its name
_PAGE_SECONDS = 20.0  # for all of it, with redirects
_PAGE_BYTES = 4 << 20
_MOST_NATIVE_BYTES = 64 << 20  # of native/ in a wheel, unpacked
_LINK = re.compile(r"""href\s*=\s*["']([^"'\s]+)["']""", re.IGNORECASE)
WHEEL_NAME = re.compile(r"(meshd(?:_native[a-z0-9_]*)?)-([0-9.]+)-[a-z0-9.]+-[a-z0-9]+-([a-z0-9_.]+)\.whl")
_HERE = ("localhost", "127.0.0.1", "::1")
_COPY = "copy trusted wheels to a directory that only you can write: `meshd upgrade --from DIR`"
_DEB = "deb"  # as build/machine.py says it
_CLONE = "clone"
_Version = tuple[int, int]  # of glibc or macOS


@dataclass(frozen=True, slots=True)
class Installation:
    """Say how meshd was installed: `by` uv, pipx, pip, uv-pip, deb or clone; and from where, if known."""

    by: str
    origin: str = ""
    natives: Mapping[str, str] = field(default_factory=dict)  # installed wheels of programs: their versions

    @property
    def clone(self) -> Path | None:
        """The checkout that it was installed from."""
        path = Path(self.origin) if self.origin.startswith("/") else None
        return path if path is not None and (path / "pyproject.toml").is_file() else None


@dataclass(frozen=True, slots=True)
class Offer:
    """A file that can be installed: its package, version and place (a path or URL)."""

    package: str
    release: Release
    place: str

    @property
    def version(self) -> str:
        """The version as people write it."""
        return ".".join(map(str, self.release))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --from, --check, --force."""
    where = "directory, or page, with the wheels (default: where this meshd came from)"
    parser.add_argument("--from", dest="origin", metavar="DIR|URL", help=where)
    parser.add_argument("--check", action="store_true", help="only say what would be done")
    without = "upgrade even if wheels of programs are missing there, and uninstall the old ones"
    parser.add_argument("--force", action="store_true", help=without)


def run(args: Arguments, out: Output) -> int:
    """Find the newest version, and install it, or print the command where that is the user's to run."""
    # What is installed, and how; a clone is updated by its user.
    found = installation(Path(sys.prefix))
    out.line(f"installed  meshd {__version__} ({_described(found)})")
    if found.by == _CLONE and args.origin:
        raise UserError(
            "this meshd runs from a clone, which `--from` does not replace",
            hint=f"run `{_update_of_clone(found)}`",
        )
    if found.by == _CLONE or (found.clone is not None and not args.origin):
        found = replace(found, origin=trusted(found.origin, 0o002, remedy="install from a clone of your own"))
        out.line("to update, run:")
        out.line(f"  {_update_of_clone(found)}")
        return 0
    # The newest meshd where newer ones are.
    origin = args.origin or found.origin
    if found.by == _DEB and "://" in origin:
        raise UserError(
            "a Debian package is not installed from a page",
            hint="download the .deb, and run `meshd upgrade --from DIR`",
        )
    if not origin:
        raise UserError(
            "it is unknown where newer versions of meshd are: no package index has them",
            hint="download the wheels of the new version, and run `meshd upgrade --from DIR`",
        )
    pattern = debian_names() if found.by == _DEB else WHEEL_NAME
    offers = offered(origin, pattern)
    newest = max(
        (offer for offer in offers if offer.package == "meshd"), key=lambda offer: offer.release, default=None
    )
    if newest is None:
        file = "meshd_VERSION_ARCH.deb" if found.by == _DEB else "meshd-VERSION-py3-none-any.whl"
        hint = f"give a directory or page with `{file}`: `meshd upgrade --from DIR`"
        raise UserError(f"there is no meshd in `{origin}`", hint=hint)
    out.line(f"newest     meshd {newest.version} in {origin}")
    # Its programs; the installed ones stay if it can use them.
    current = release_of(__version__) or (0, 0, 0)
    behind = {name for name, version in found.natives.items() if release_of(version) != newest.release}
    if newest.release < current or (newest.release == current and not behind):
        return _nothing(out)
    natives = [
        wheel for wheel in offers if wheel.package in found.natives and wheel.release == newest.release
    ]
    staying = set(found.natives) - {offer.package for offer in natives}
    unfit = _unfit(found, staying, newest)
    if newest.release == current and behind <= staying and not unfit:
        return _nothing(out)
    if unfit:
        _without(unfit, newest, origin, out, force=args.force)
    # Install, or print the commands.
    steps = [*commands(found, newest, natives), *removal(found, unfit)]
    if args.check or found.by == _DEB:
        out.line("to upgrade, run:")
        for step in steps:
            out.line(f"  {shlex.join(step)}")
    else:
        _install(steps, newest, out)
    return 0


def _nothing(out: Output) -> int:
    out.line("nothing to do")
    return 0


def _unfit(found: Installation, staying: Collection[str], newest: Offer) -> list[str]:
    """Return those of the wheels of programs that nothing replaces which the new meshd cannot use."""
    from meshd.build.wheel import installed_wheel

    if not staying or found.by == "uv":  # which makes the environment again, of the files that it gets
        return sorted(staying)
    wheel, pin = installed_wheel(), carried_pin(newest.place)
    if wheel is None or pin is None:
        return sorted(staying)
    fits = {NATIVE: replace(wheel, cuda=None).fault(pin) is None}
    return sorted(name for name in staying if not fits.get(name, wheel.cuda == pin.commit))


def carried_pin(place: str) -> "Pin | None":
    """Return the pin of a wheel of meshd; None if it cannot be read, or only after a download."""
    from meshd.build.pin import read_pin

    inside = "meshd/native/"
    if "://" in place:
        return None
    try:
        with zipfile.ZipFile(place) as wheel, tempfile.TemporaryDirectory() as folder:
            files = [file for file in wheel.infolist() if file.filename.startswith(inside)]
            if sum(file.file_size for file in files) > _MOST_NATIVE_BYTES:
                return None
            wheel.extractall(folder, files)
            return read_pin(Path(folder) / inside)
    except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, UserError):
        return None
    except (TypeError, AttributeError, ValueError):  # a file in it has another form
        return None


def _without(unfit: Sequence[str], newest: Offer, origin: str, out: Output, *, force: bool) -> None:
    """Refuse an upgrade that leaves the node without these programs, or say what to do after it."""
    files = " and ".join(f"`{name.replace('-', '_')}-{newest.version}-….whl`" for name in unfit)
    lacks = f"`{origin}` has no {files} for this machine"
    after = "`meshd native build`, which needs a compiler" if NATIVE in unfit else "`meshd native add`"
    if not force:
        raise UserError(
            f"{lacks}: meshd {newest.version} would run without {', '.join(unfit)}",
            hint=f"put what is missing there; or uninstall the old with `--force`, and then run {after}",
        )
    out.note(f"{lacks}: then run {after}")


def _install(steps: Sequence[Sequence[str]], newest: Offer, out: Output) -> None:
    for step in steps:
        out.note(shlex.join(step))
        try:
            code = subprocess.run(step, check=False, cwd="/").returncode  # this directory may be another's
        except OSError as error:
            raise MeshdError(f"cannot run `{step[0]}`: {(error.strerror or str(error)).lower()}") from None
        if code:
            raise MeshdError(
                f"`{shlex.join(step)}` failed (exit code {code})",
                hint="fix what it says, and run `meshd upgrade` again",
            )
    version = [sys.executable, "-P", "-m", "meshd", "--version"]
    ran = subprocess.run(version, capture_output=True, text=True, check=False)
    if ran.stdout.split("\n")[0] != f"meshd {newest.version}":
        raise MeshdError(
            f"meshd {newest.version} was installed, but `{sys.executable}` does not run it",
            hint=f"run `{sys.executable} -m meshd --version`: it should say so",
        )
    out.line(f"installed  meshd {newest.version}")
    home = home_here()
    if services := restart_commands():
        out.line(f"running services still have {__version__}; restart them:")
        for command in services:
            out.line(f"  {command}")
    elif (pid := lock_holder(home, purpose=DAEMON)) is not None:
        out.line(f"the node of `{home}` (process {pid}) still runs {__version__}:")
        out.line("  meshd stop, then start it again")


# -- what is installed


def installation(prefix: Path) -> Installation:
    """Find out how the running meshd was installed; `prefix` is that of its Python environment."""
    from meshd.build.machine import packaged_as

    try:
        installed = importlib.metadata.distribution("meshd")
    except importlib.metadata.PackageNotFoundError:
        return Installation(_CLONE, str(Path(__file__).parents[2]))
    named = (
        (distribution, (distribution.name or "").replace("_", "-"))
        for distribution in importlib.metadata.distributions()
    )
    found = {name: distribution.version for distribution, name in named if name.startswith(NATIVE)}
    origin, editable = read_origin(installed.read_text("direct_url.json"))
    if editable:
        return Installation(_CLONE, origin)
    if packaged_as(prefix) == _DEB:
        return Installation(_DEB)
    by = "uv-pip" if (installed.read_text("INSTALLER") or "").strip() == "uv" else "pip"
    for file, tool in (("uv-receipt.toml", "uv"), ("pipx_metadata.json", "pipx")):
        if (prefix / file).is_file():
            by = tool
    return Installation(by, origin, found)


def read_origin(text: str | None) -> tuple[str, bool]:
    """Read direct_url.json (PEP 610): the directory or page that has the file, and whether it is editable."""
    try:
        fields = json.loads(text or "")
        url, is_folder = fields["url"], fields.get("dir_info")
        parts = urllib.parse.urlsplit(url)
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", False
    if not isinstance(url, str) or "vcs_info" in fields:  # a repository has no wheels
        return "", False
    place = urllib.parse.unquote(parts.path) if parts.scheme == "file" else url
    if isinstance(is_folder, Mapping):
        return place, is_folder.get("editable") is True
    return place.rpartition("/")[0] + "/", False


def _described(found: Installation) -> str:
    if found.by == _CLONE:
        return f"from the clone {found.origin}"
    how = {"uv": "uv tool", "uv-pip": "uv pip", _DEB: "Debian package"}.get(found.by, found.by)
    return f"{how}, {sys.prefix}" if found.by in ("pip", "uv-pip") else how


# -- what there is


def offered(origin: str, pattern: re.Pattern[str]) -> list[Offer]:
    """List the files of released versions in a directory, or linked from a page, that fit this machine.

    There is one of each package and version: the one made for the newest system that this machine satisfies.
    """
    linked, glibc = "://" in origin, _glibc()
    found: dict[tuple[str, Release], tuple[_Version, Offer]] = {}
    for place in _links(origin) if linked else _files(origin):
        path = urllib.parse.unquote(urllib.parse.urlsplit(place).path) if linked else place
        match = pattern.fullmatch(path.rpartition("/")[2])
        release = release_of(match[2]) if match is not None else None
        if match is None or release is None or not (linked or Path(place).is_file()):
            continue
        needs = fits(match[3], sys.platform, platform.machine(), glibc)
        package = match[1].replace("_", "-")
        best = found.get((package, release))
        if needs is not None and (best is None or needs > best[0]):
            offer = Offer(package, release, place if linked else trusted(place))
            found[package, release] = needs, offer
    return [offer for _needs, offer in found.values()]


def trusted(path: str, writable: int = 0o022, *, remedy: str = _COPY) -> str:
    """Resolve a path that no other user can have written or replaced; any other raises UserError.

    Its directories count up to the root; only in those above it does the sticky bit protect what is ours.
    `writable` are the bits of a mode that say who writes.
    """
    try:
        real = Path(os.path.realpath(path))
        modes = [(parent, parent.lstat()) for parent in (real, *real.parents)]
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    for parent, about in modes:
        sticky, ours = bool(about.st_mode & stat.S_ISVTX), about.st_uid == os.geteuid()
        if not ours and about.st_uid != 0:
            why = f"belongs to another user (uid {about.st_uid})"
        elif about.st_mode & writable and (parent == real or not sticky):
            why = f"can be written by other users (mode {stat.S_IMODE(about.st_mode):04o})"
            if ours and not sticky:
                remedy = f"check what is there, and run `chmod go-w {shlex.quote(str(parent))}`; or {remedy}"
        else:
            continue
        raise UserError(f"cannot trust `{path}`: `{parent}` {why}", hint=remedy)
    return str(real)


def _files(origin: str) -> list[str]:
    try:
        folder = Path(trusted(str(Path(origin).expanduser())))
        return [os.path.realpath(path) for path in sorted(folder.iterdir())]
    except (OSError, ValueError, RuntimeError) as error:
        raise _unreadable(origin, error) from None


def _unreadable(place: str, error: Exception) -> UserError:
    reason = (getattr(error, "strerror", None) or str(error)).lower()
    hint = "give the directory that has the wheels: `meshd upgrade --from DIR`"
    return UserError(f"cannot read `{place}`: {reason}", hint=hint)


def debian_names() -> re.Pattern[str]:
    """Return a pattern for packages that are made for this release of Debian or Ubuntu, or for any."""
    try:
        system = platform.freedesktop_os_release()
    except OSError:
        system = {}
    here = re.escape(system.get("ID", "") + system.get("VERSION_ID", ""))
    return re.compile(rf"(meshd)_([0-9.]+)(?:-[0-9.]+)?(?:\+{here})?_([a-z0-9]+)\.deb")


def fits(tag: str, system: str, machine: str, glibc: _Version | None) -> _Version | None:
    """Return which version of the system a platform tag needs ((0, 0): any); None if it is not for this one.

    A tag is `any`, `manylinux_2_28_x86_64`, `amd64` or the like; `glibc` is None where there is another libc.
    """
    if tag in ("any", "all"):
        return 0, 0
    names = {"x86_64": ("x86_64", "amd64"), "aarch64": ("aarch64", "arm64"), "arm64": ("arm64", "universal2")}
    if ("macosx" in tag) != (system == "darwin") or not tag.endswith(names.get(machine, (machine,))):
        return None
    match = re.match(r"[a-z]+_(\d+)_(\d+)_", tag)
    needs = (int(match[1]), int(match[2])) if match is not None else (0, 0)
    if glibc is None:
        return None if tag.startswith("manylinux") else needs
    return None if tag.startswith("musllinux") or (tag.startswith("manylinux") and needs > glibc) else needs


def _glibc() -> _Version | None:
    name, version = platform.libc_ver()
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if name == "glibc" and match is not None else None


def _links(url: str) -> list[str]:
    check_url(url)
    page: Future[tuple[str, str]] = Future()

    def read() -> None:
        try:
            with urllib.request.build_opener(_Checked).open(url, timeout=_PAGE_SECONDS) as answer:
                page.set_result((answer.url, answer.read(_PAGE_BYTES).decode("utf-8", "replace")))
        except (OSError, http.client.HTTPException, ValueError, UserError) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            page.set_exception(error)

    # A thread: no time-out of urllib bounds a server that sends a byte now and then.
    threading.Thread(target=read, daemon=True, name="page").start()
    try:
        base, text = page.result(_PAGE_SECONDS)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error) or f"it takes more than {_PAGE_SECONDS:.0f} s"
        hint = "give a page with links to the wheels, or download them: `meshd upgrade --from DIR`"
        raise UserError(f"cannot read `{url}`: {reason}", hint=hint) from None
    links = []
    for link in _LINK.findall(text):
        with suppress(ValueError):
            links.append(urllib.parse.urljoin(base, link.replace("&amp;", "&")))
    return [link for link in links if _is_safe(link)]


class _Checked(urllib.request.BaseHandler):
    def https_request(self, request: urllib.request.Request) -> urllib.request.Request:
        check_url(request.full_url)  # of each redirect: the next could lead back to https://
        return request

    ftp_request = http_request = https_request


def check_url(url: str) -> None:
    """Raise UserError, without a password, unless `url` is safe to read from."""
    if not _is_safe(url):
        what = "cannot use a URL with a user name or password" if "@" in url else f"cannot use `{url}`"
        raise UserError(what, hint="give a page by https://, without a user name, or a directory")


def _is_safe(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
        here = parts.hostname in _HERE
    except ValueError:
        return False
    return "@" not in parts.netloc and (parts.scheme == "https" or (parts.scheme == "http" and here))


# -- what to run


def commands(found: Installation, newest: Offer, natives: Sequence[Offer]) -> list[list[str]]:
    """Return the commands that install these files in place of the installed ones."""
    meshd, others = newest.place, [offer.place for offer in natives]
    if found.by == _DEB:
        return [["sudo", "apt", "install", meshd]]
    if found.by == "uv":
        programs = [part for other in others for part in ("--with", other)]
        return [["uv", "tool", "install", "--force", meshd, *programs]]
    if found.by == "pipx":
        return [
            ["pipx", "install", "--force", meshd],
            *(["pipx", "inject", "--force", "meshd", other] for other in others),
        ]
    if found.by == "uv-pip":  # which would obey an uv.toml of the current directory
        return [["uv", "pip", "install", "--directory", "/", "--python", sys.executable, meshd, *others]]
    return [[sys.executable, "-P", "-m", "pip", "install", "--upgrade", meshd, *others]]


def removal(found: Installation, packages: Sequence[str]) -> list[list[str]]:
    """Return the commands that uninstall these packages; `uv tool install` does so without one."""
    if not packages or found.by == "uv":
        return []
    if found.by == "pipx":  # knows of no packages that pip installed there
        return [["pipx", "runpip", "meshd", "uninstall", "--yes", *packages]]
    if found.by == "uv-pip":
        return [["uv", "pip", "uninstall", "--directory", "/", "--python", sys.executable, *packages]]
    return [[sys.executable, "-P", "-m", "pip", "uninstall", "--yes", *packages]]


def _update_of_clone(found: Installation) -> str:
    folder = shlex.quote(found.origin)
    if found.by == _CLONE:
        return f"git -C {folder} pull && make -C {folder} build"
    of_clone = Offer("meshd", (0, 0, 0), f"{found.origin}[build]")
    again = [shlex.join(step) for step in commands(found, of_clone, ())]
    return " && ".join([f"git -C {folder} pull", *again, "meshd native build"])
