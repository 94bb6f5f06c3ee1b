"""The patches as commits of git, and back: `python -m tests.native.patch_series open DIR`, and `write DIR`.

`open` unpacks the pinned source into a new DIR and commits each patch on top of it; `write` makes
native/patches from the commits. A patch whose message and changes are as they were keeps its file to the
letter: nodes compare a hash over all of them, and another git counts lines and cuts names in another way.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from meshd.build.fetch import PinnedFile, fetch
from meshd.build.interface import BuildProgress
from meshd.build.patch import FilePatch, parse_patch
from meshd.build.pin import native_folder, read_pin
from meshd.build.tree import Tree
from meshd.config.tree import find_cache

PATCHES = native_folder() / "patches"
_AUTHOR = ("-c", "user.name=meshd maintainers", "-c", "user.email=meshd@localhost")
_FORMAT = ("--zero-commit", "--no-signature", "--no-numbered", "--filename-max-length=100")


def git(folder: Path, *words: str) -> str:
    """What git says, whatever its user has set. Raises CalledProcessError."""
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", *_AUTHOR, *words]
    return subprocess.run(command, cwd=folder, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout


def commit_series(source: Path, patches: Path = PATCHES) -> None:
    """Make a repository of `source`, whose first commit is stock, with one more for each patch."""
    git(source, "init", "--quiet")
    git(source, "add", "--all", "--force", ".")
    git(source, "commit", "--quiet", "--message", "stock")
    series = sorted(patches.glob("*.patch"))
    if series:
        git(source, "am", "--quiet", *(str(path.resolve()) for path in series))


def write_series(source: Path, patches: Path = PATCHES) -> list[str]:
    """Make `patches` what the commits behind the first one are; returns the names of files that changed."""
    before = {path.name: path.read_text("utf-8") for path in sorted(patches.glob("*.patch"))}
    kept = {_said(text): (name, text) for name, text in before.items()}
    stock = git(source, "rev-list", "--max-parents=0", "HEAD").strip()
    after: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        git(source, "format-patch", "--quiet", *_FORMAT, "--output-directory", folder, stock)
        for path in sorted(Path(folder).glob("*.patch")):
            text = path.read_text("utf-8")
            name, text = kept.get(_said(text), (path.name, text))
            after[path.name[:4] + name[4:]] = text
    changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    for name in changed:
        if name in after:
            (patches / name).write_text(after[name], "utf-8")
        else:
            (patches / name).unlink()
    return changed


def _said(text: str) -> tuple[str, tuple[FilePatch, ...]]:
    """The message, and the changes: all of a patch but how git writes it."""
    message = text.partition("\nSubject: ")[2].partition("\n---\n")[0]
    return " ".join(message.split()), parse_patch(text, name="")


async def _unpack(folder: Path) -> Path:
    pin, cache = read_pin(), find_cache(os.environ)
    wanted = PinnedFile(pin.sdist.requirement, pin.sdist.file, pin.sdist.sha256, from_source=True)
    archive = await fetch(wanted, cache / "downloads", _told)
    tree = Tree(folder)
    tree.fill_from_archive(archive, pin, origin=pin.commit)
    return tree.source


def _told(progress: BuildProgress) -> None:
    sys.stdout.write(f"{progress.text}\n")


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m tests.native.patch_series", description=__doc__)
    parser.add_argument("what", choices=("open", "write"))
    parser.add_argument("folder", type=Path, metavar="DIR")
    args = parser.parse_args()
    if args.what == "open":
        if args.folder.exists():
            parser.error(f"`{args.folder}` is there already")
        source = asyncio.run(_unpack(args.folder))
        commit_series(source)
        sys.stdout.write(f"the series is in {source}: one commit a patch\n")
        return
    source = args.folder / "src" if (args.folder / "src" / ".git").exists() else args.folder
    changed = write_series(source)
    sys.stdout.write("".join(f"written: {name}\n" for name in changed) or "nothing has changed\n")


if __name__ == "__main__":
    main()
