"""Build llama.cpp's web UI into `meshd/gateway/chat`, from which the gateway serves it and wheels are packed.

The source is in the archive of the pinned llama.cpp, and so are the versions and hashes of all packages of
npm (`package-lock.json`): what is fetched is pinned by the archive's hash. No package may run a script of its
own when it is installed. The files in `wheels/chat` take the place of upstream's configuration, and
`changes.toml` there changes its code. What the page is made of stays in build/chat-page.
docs/decisions/0090 has the reasons.
"""

import argparse
import asyncio
import base64
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from meshd import __version__
from meshd.base.errors import UserError
from meshd.build.fetch import fetch
from meshd.build.interface import BuildProgress
from meshd.build.pin import Pin, read_pin
from meshd.config.tree import find_cache
from meshd.gateway.pages import CHAT_FOLDER, INDEX_NAME

from wheels.parts import Part, bill

ROOT = Path(__file__).resolve().parents[1]
OURS = Path(__file__).with_name("chat")
NODE = 20
_PLACES = {"app.html": "src/app.html", "state.css": "static/state.css", "state.js": "static/state.js"}
INSTALL = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
_BUILD = ("node", "node_modules/vite/bin/vite.js", "build", "--logLevel", "warn")
_LOGO, _COLOURS = "src/lib/assets/logo.svg", {"favicon.svg": "#111111", "favicon-dark.svg": "#fafafa"}
_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".txt": "text/plain",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
}
_COMPRESSED = frozenset({".png", ".woff2"})
CHANGES = "changes.toml"
BILL_NAME, LICENCES_NAME = "meshd.cdx.json", "LICENSES.txt"
_NOTICE = re.compile(r"(?:\A|\n-{80}\n\n)(\S+)(?: (\S+))?: ([^\n]+)\n\n")  # as notices.ts writes them
_POLICY = re.compile(rb'<meta http-equiv="Content-Security-Policy" content="([^"]+)"')  # of a page's own
_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m wheels.chat_page", description=__doc__)
    parser.add_argument("--build", type=Path, default=ROOT / "build/chat-page", help="where to build")
    parser.add_argument("--out", type=Path, default=CHAT_FOLDER)
    asked = parser.parse_args()
    try:
        packed = asyncio.run(make(asked.build, asked.out))
    except UserError as error:
        sys.stderr.write(f"error: {error.what}\nhint: {error.hint}\n")
        return 1
    sys.stdout.write(f"{asked.out} {packed / 1e6:.1f} MB\n")
    return 0


async def make(build: Path, out: Path) -> int:
    """Build the page in `build` and pack it into `out`; return its size. Raises UserError."""
    check_node()
    pin = read_pin()
    archive = await fetch(pin.sdist, find_cache(os.environ) / "downloads", _told)
    source = build / "source"
    unpack(archive, pin, source)
    change(source, (OURS / CHANGES).read_text(encoding="utf-8"))
    run_in(source, INSTALL)
    run_in(source, _BUILD, {"MESHD_CHAT_VERSION": pin.commit[:9], "NODE_ENV": "production"})
    (source / "dist/build.json").write_text(json.dumps({"version": pin.release}), encoding="utf-8")
    size = pack(source / "dist", out)
    describe((source / "dist" / LICENCES_NAME).read_text(encoding="utf-8"), out, pin)
    return size


def _told(progress: BuildProgress) -> None:
    sys.stdout.write(f"{progress.text}\n")


def check_node() -> None:
    """Raise UserError unless Node.js and npm are there."""
    hint = f"install Node.js {NODE} or later with npm, or do without (`make dist CHAT=`): a small page stays"
    if shutil.which("npm") is None or (node := shutil.which("node")) is None:
        raise UserError("the chat page is built with Node.js and npm, which are missing", hint=hint)
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < NODE:
        raise UserError(f"the chat page cannot be built with Node.js `{version}`", hint=hint)


def unpack(archive: Path, pin: Pin, source: Path) -> None:
    """Put the UI's source there, with our configuration; installed packages stay."""
    kept = source / "node_modules"
    for entry in source.iterdir() if source.exists() else ():
        if entry != kept:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    top = PurePosixPath(pin.sdist.folder)
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            if path == top / "LICENSE":
                member.name = "LICENSE"
            elif path.is_relative_to(top / "tools/ui"):
                member.name = str(path.relative_to(top / "tools/ui"))
            else:
                continue
            tar.extract(member, source, filter="data")
    shutil.copytree(OURS / "lazy", source / "lazy")
    for file in OURS.glob("*.*"):
        shutil.copyfile(file, source / _PLACES.get(file.name, file.name))
    logo = (source / _LOGO).read_text(encoding="utf-8")
    for name, colour in _COLOURS.items():
        (source / "static" / name).write_text(logo.replace("currentColor", colour), encoding="utf-8")


def change(source: Path, changes: str) -> None:
    """Make these changes (TOML) in upstream's files. Raises UserError if one does not fit."""
    for wanted in tomllib.loads(changes)["change"]:
        file, times = source / wanted["file"], wanted.get("times", 1)
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        if (found := text.count(wanted["old"])) != times:
            raise UserError(
                f"`{wanted['file']}` has the text of a change {found} times, not {times}: {wanted['why']}",
                hint=f"llama.cpp has changed it: mend or drop the change in wheels/chat/{CHANGES}",
            )
        file.write_text(text.replace(wanted["old"], wanted["new"]), encoding="utf-8")


def run_in(
    folder: Path, command: tuple[str, ...], variables: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Run a command of the build in `folder`. Raises UserError if it fails."""
    sys.stdout.write(f"{' '.join(command)}\n")
    sys.stdout.flush()
    if subprocess.run(command, cwd=folder, env={**os.environ, **variables}, check=False).returncode:
        raise UserError(f"`{command[0]}` failed in `{folder}`", hint="read its output above")


def pack(built: Path, out: Path, page: str = "/", below: str = "/") -> int:
    """Write the files of a build and their index, the same bytes for the same files; return their size.

    `page`: the path of `index.html`; `below`: what the paths of the other files begin with. Raises UserError
    for a file of an unknown kind.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    files: dict[str, dict[str, object]] = {}
    size = 0
    for place in sorted(path for path in built.rglob("*") if path.is_file()):
        name = place.relative_to(built).as_posix()
        kind = _TYPES.get(place.suffix)
        if kind is None:
            raise UserError(f"the build has a file of an unknown kind: `{name}`", hint="add it to `_TYPES`")
        body, is_gzip = place.read_bytes(), place.suffix not in _COMPRESSED
        packed = gzip.compress(body, 9, mtime=0) if is_gzip else body
        target = out / (f"{name}.gz" if is_gzip else name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(packed)
        size += len(packed)
        files[page if name == "index.html" else f"{below}{name}"] = {
            "name": target.relative_to(out).as_posix(),
            "type": kind,
            "gzip": is_gzip,
            "sha256": hashlib.sha256(body).hexdigest(),
            **({"policy": policy[1].decode()} if (policy := _POLICY.search(body)) else {}),
        }
    scripts = [script_digest(script) for script in _SCRIPT.findall((built / "index.html").read_bytes())]
    index = json.dumps({"scripts": scripts, "files": files}, indent=1, sort_keys=True)
    (out / INDEX_NAME).write_text(f"{index}\n", encoding="utf-8")
    return size


def describe(licences: str, out: Path, pin: Pin, bill_name: str = BILL_NAME) -> None:
    """Write the licences and the bill of what is in the page, for the wheel's metadata; neither is served.

    The bill is meshd's, so that meshd is no part of it.
    """
    parts = [part for part in page_parts(licences) if part.name != "meshd"]
    (out / LICENCES_NAME).write_text(licences, encoding="utf-8")
    (out / bill_name).write_text(bill("meshd", __version__, parts, {}, pin), encoding="utf-8")


def page_parts(licences: str) -> list[Part]:
    """Return what is in the page. Raises UserError for a package whose licence nobody knows."""
    notices = list(_NOTICE.finditer(licences))
    ends = [*(notice.start() for notice in notices[1:]), len(licences)]
    parts = []
    for notice, end in zip(notices, ends, strict=False):
        name, version, licence = notice[1], notice[2] or "", notice[3]
        text = licences[notice.end() : end]
        if licence == "undefined" and re.match(r"(The )?MIT License\b", text):
            licence = "MIT"  # its package.json does not say so
        if licence == "undefined":
            raise UserError(
                f"the licence of `{name}` is not known", hint="name it in `page_parts`, as its text says"
            )
        purl = f"pkg:npm/{name.replace('@', '%40')}@{version}" if version else ""
        parts.append(Part(name, version, licence, text, purl))
    return parts


def script_digest(script: bytes) -> str:
    """Return the hash of a script within HTML as a policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script).digest()).decode()


if __name__ == "__main__":
    sys.exit(main())
