"""Install a newer meshd over this one, from wheels in a directory or on a web page.

No package index is asked for `meshd`: the one on PyPI is somebody else's. Without --from, the place counts
from which this meshd was installed.
"""

import argparse
import importlib.metadata
import json
import platform
import re
import shlex
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshd import __version__
from meshd.base.errors import MeshdError, UserError
from meshd.cli.options import Arguments
from meshd.cli.output import Output
from meshd.config.tree import home_here
from meshd.identity.folder import DAEMON, lock_holder
from meshd.wire.versions import Release, release_of

NATIVE = "meshd-native"  # the wheel of programs, or the beginning of its name
_PAGE_SECONDS = 20.0
_PAGE_BYTES = 4 << 20
_LINK = re.compile(r"""href\s*=\s*["']([^"'\s]+)["']""", re.IGNORECASE)
_WHEEL = re.compile(r"(meshd(?:_native[a-z0-9_]*)?)-([0-9.]+)-[a-z0-9.]+-[a-z0-9]+-([a-z0-9_.]+)\.whl")
_HERE = ("localhost", "127.0.0.1", "::1")
_DEB = "deb"
_CLONE = "clone"


@dataclass(frozen=True, slots=True)
class Installation:
    """Say how meshd was installed: `by` uv, pipx, pip, uv-pip, deb or clone; and from where, if known."""

    by: str
    origin: str = ""
    natives: tuple[str, ...] = ()  # installed wheels of programs

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
    """Add --from, --check."""
    parser.add_argument(
        "--from",
        dest="origin",
        metavar="DIR|URL",
        help="directory, or page, with the wheels (default: where this meshd came from)",
    )
    parser.add_argument("--check", action="store_true", help="only say what would be done")


def run(args: Arguments, out: Output) -> int:
    """Find the newest version, and install it, or print the command where that is the user's to run."""
    found = installation(Path(sys.prefix))
    out.line(f"installed  meshd {__version__} ({_described(found)})")
    if found.by == _CLONE and args.origin:
        raise UserError(
            "this meshd runs from a clone, which `--from` does not replace",
            hint=f"run `{_update_of_clone(found)}`",
        )
    if found.by == _CLONE or (found.clone is not None and not args.origin):
        out.line("to update, run:")
        out.line(f"  {_update_of_clone(found)}")
        return 0
    origin = args.origin or found.origin
    if not origin:
        raise UserError(
            "it is unknown where newer versions of meshd are: no package index has them",
            hint="download the wheels of the new version, and run `meshd upgrade --from DIR`",
        )
    pattern = debian_names() if found.by == _DEB else _WHEEL
    offers = offered(origin, pattern)
    newest = max((offer for offer in offers if offer.package == "meshd"), key=_release, default=None)
    if newest is None:
        raise UserError(
            f"there is no meshd in `{origin}`",
            hint=f"give a directory or page with `{_example(found.by)}`: `meshd upgrade --from DIR`",
        )
    out.line(f"newest     meshd {newest.version} in {origin}")
    if newest.release <= (release_of(__version__) or (0, 0, 0)):
        out.line("nothing to do")
        return 0
    natives = [
        offer for offer in offers if offer.package in found.natives and offer.release == newest.release
    ]
    steps = commands(found, newest, natives)
    missing = sorted(set(found.natives) - {offer.package for offer in natives})
    if missing:
        lacks = f"no {', '.join(missing)} {newest.version} for this machine there"
        out.note(f"{lacks}: run `meshd native build` afterwards")
    if args.check or found.by == _DEB:
        out.line("to upgrade, run:")
        for step in steps:
            out.line(f"  {shlex.join(step)}")
    else:
        _install(steps, newest, out)
    return 0


def _install(steps: Sequence[Sequence[str]], newest: Offer, out: Output) -> None:
    for step in steps:
        out.note(shlex.join(step))
        try:
            code = subprocess.run(step, check=False).returncode
        except OSError as error:
            raise MeshdError(f"cannot run `{step[0]}`: {(error.strerror or str(error)).lower()}") from None
        if code:
            raise MeshdError(
                f"`{shlex.join(step)}` failed (exit code {code})",
                hint="fix what it says, and run `meshd upgrade` again",
            )
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "meshd", "--version"], capture_output=True, text=True, check=False
    )
    if ran.stdout.split("\n")[0] != f"meshd {newest.version}":
        raise MeshdError(
            f"meshd {newest.version} was installed, but `{sys.executable}` does not run it",
            hint=f"run `{sys.executable} -m meshd --version`: it should say so",
        )
    out.line(f"installed  meshd {newest.version}")
    home = home_here()
    if (pid := lock_holder(home, purpose=DAEMON)) is not None:
        out.line(f"the node of `{home}` (process {pid}) still runs {__version__}:")
        out.line("  meshd stop, then start it again")


# -- what is installed


def installation(prefix: Path) -> Installation:
    """Find out how the running meshd was installed; `prefix` is that of its Python environment."""
    package = Path(__file__).parent.parent
    try:
        installed = importlib.metadata.distribution("meshd")
    except importlib.metadata.PackageNotFoundError:
        return Installation(_CLONE, str(package.parent))
    natives = {name for name in (one.name for one in importlib.metadata.distributions()) if name}
    found = tuple(sorted(name for name in natives if name.replace("_", "-").startswith(NATIVE)))
    found = tuple(name.replace("_", "-") for name in found)
    origin, editable = read_origin(installed.read_text("direct_url.json"))
    if editable:
        return Installation(_CLONE, origin)
    if _is_of_a_package(package / "__init__.py"):
        return Installation(_DEB, "", found)
    if (prefix / "uv-receipt.toml").is_file():
        return Installation("uv", origin, found)
    if (prefix / "pipx_metadata.json").is_file():
        return Installation("pipx", origin, found)
    return Installation(
        "uv-pip" if (installed.read_text("INSTALLER") or "").strip() == "uv" else "pip", origin, found
    )


def read_origin(text: str | None) -> tuple[str, bool]:
    """Read direct_url.json (PEP 610): the directory or page that has the file, and whether it is editable."""
    try:
        fields = json.loads(text or "")
        url, is_folder = fields["url"], fields.get("dir_info")
        parts = urllib.parse.urlsplit(url)
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", False
    if not isinstance(url, str):
        return "", False
    place = urllib.parse.unquote(parts.path) if parts.scheme == "file" else url
    if isinstance(is_folder, Mapping):
        return place, is_folder.get("editable") is True
    return place.rpartition("/")[0] + "/", False


def _is_of_a_package(file: Path) -> bool:
    if not Path("/var/lib/dpkg/info").is_dir():
        return False
    try:
        ran = subprocess.run(["dpkg-query", "--search", str(file)], capture_output=True, check=False)
    except OSError:
        return False
    return ran.returncode == 0


def _described(found: Installation) -> str:
    if found.by == _CLONE:
        return f"from the clone {found.origin}"
    how = {"uv": "uv tool", "uv-pip": "uv pip", _DEB: "Debian package"}.get(found.by, found.by)
    return f"{how}, {sys.prefix}" if found.by in ("pip", "uv-pip") else how


# -- what there is


def offered(origin: str, pattern: re.Pattern[str]) -> list[Offer]:
    """List the files of released versions in a directory, or linked from a page, that fit this machine."""
    if "://" in origin:
        places = _linked(origin)
    else:
        folder = Path(origin).expanduser()
        try:
            places = [str(path.resolve()) for path in sorted(folder.iterdir())]
        except OSError as error:
            raise UserError(
                f"cannot read `{origin}`: {(error.strerror or str(error)).lower()}",
                hint="give the directory that has the wheels: `meshd upgrade --from DIR`",
            ) from None
    found = []
    for place in places:
        name = urllib.parse.unquote(
            urllib.parse.urlsplit(place).path if "://" in place else place
        ).rpartition("/")[2]
        match = pattern.fullmatch(name)
        release = release_of(match[2]) if match is not None else None
        if match is not None and release is not None and fits(match[3], sys.platform, platform.machine()):
            found.append(Offer(match[1].replace("_", "-"), release, place))
    return found


def debian_names() -> re.Pattern[str]:
    """Return a pattern for packages that are made for this release of Debian or Ubuntu, or for any."""
    try:
        system = platform.freedesktop_os_release()
    except OSError:
        system = {}
    here = re.escape(system.get("ID", "") + system.get("VERSION_ID", ""))
    return re.compile(rf"(meshd)_([0-9.]+)(?:-[0-9.]+)?(?:\+{here})?_([a-z0-9]+)\.deb")


def fits(tag: str, system: str, machine: str) -> bool:
    """Return True if a platform tag (`any`, `manylinux_2_28_x86_64`, `amd64`) is of this kind of machine."""
    if tag in ("any", "all"):
        return True
    names = {"x86_64": ("x86_64", "amd64"), "aarch64": ("aarch64", "arm64"), "arm64": ("arm64", "universal2")}
    of_system = "macosx" in tag if system == "darwin" else "macosx" not in tag
    return of_system and tag.endswith(names.get(machine, (machine,)))


def _linked(url: str) -> list[str]:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _HERE):
        raise UserError(f"cannot use `{url}`", hint="give a page by https://, or a directory")
    try:
        with urllib.request.urlopen(url, timeout=_PAGE_SECONDS) as answer:
            text = answer.read(_PAGE_BYTES).decode("utf-8", "replace")
            base = answer.url
    except (OSError, urllib.error.URLError, ValueError) as error:
        raise UserError(
            f"cannot read `{url}`: {getattr(error, 'reason', None) or error}",
            hint="give a page with links to the wheels, or download them: `meshd upgrade --from DIR`",
        ) from None
    links = (link.replace("&amp;", "&") for link in _LINK.findall(text))
    return [urllib.parse.urljoin(base, link) for link in links if ".whl" in link]


# -- what to run


def commands(found: Installation, newest: Offer, natives: Sequence[Offer]) -> list[list[str]]:
    """Return the commands that install these files in place of the installed ones."""
    meshd, others = newest.place, [offer.place for offer in natives]
    if found.by == _DEB:
        return [["sudo", "apt", "install", meshd]]
    if found.by == "uv":
        return [
            ["uv", "tool", "install", "--force", meshd, *(part for one in others for part in ("--with", one))]
        ]
    if found.by == "pipx":
        return [
            ["pipx", "install", "--force", meshd],
            *(["pipx", "inject", "--force", "meshd", one] for one in others),
        ]
    pip = ["uv", "pip", "install", "--python", sys.executable] if found.by == "uv-pip" else None
    return [[*(pip or [sys.executable, "-m", "pip", "install", "--upgrade"]), meshd, *others]]


def _update_of_clone(found: Installation) -> str:
    folder = shlex.quote(found.origin)
    if found.by == _CLONE:
        return f"git -C {folder} pull && make -C {folder} build"
    of_clone = Offer("meshd", (0, 0, 0), f"{found.origin}[build]")
    again = [shlex.join(step) for step in commands(found, of_clone, ())]
    return " && ".join([f"git -C {folder} pull", *again, "meshd native build"])


def _release(offer: Offer) -> Release:
    return offer.release


def _example(by: str) -> str:
    return "meshd_VERSION_ARCH.deb" if by == _DEB else "meshd-VERSION-py3-none-any.whl"
