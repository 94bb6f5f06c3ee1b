"""The Dockerfile, read; and carried out where there is no Docker, with mmdebstrap and chroot.

    python -m tests.dockerfile DIR --wheels dist    # root, Debian, mmdebstrap

The last stage is left in DIR/1. Only what our Dockerfile uses is understood: FROM, RUN, COPY of names and
patterns, ENV, and the words that need nothing done.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.rules.source import ROOT

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FROM_HERE = ("http_proxy", "https_proxy")  # how this machine reaches its mirrors; so, too:
_CERTIFICATES, _CERTIFICATES_INSIDE = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/tmp/certificates-of-the-host.crt",
)
_NOTHING_TO_DO = ("USER", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD")


@dataclass(slots=True)
class Stage:
    """From one FROM to the next; `steps` are (instruction, text) in their order."""

    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def texts(self, instruction: str) -> list[str]:
        return [text for word, text in self.steps if word == instruction]

    def env(self) -> dict[str, str]:
        """As it is at the end."""
        return {name: value for text in self.texts("ENV") for name, value in _pairs(text).items()}


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.partition("=")[::2] for pair in shlex.split(text))


def stages(text: str) -> list[Stage]:
    """All of a Dockerfile."""
    plain = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    found: list[Stage] = []
    for line in filter(None, map(str.strip, plain.splitlines())):
        word, rest = line.split(None, 1)
        if word == "FROM":
            base, *named = rest.split()
            found.append(Stage(base, named[1] if named else str(len(found))))
        else:
            found[-1].steps.append((word, rest))
    return found


def read() -> list[Stage]:
    """The project's."""
    return stages((ROOT / "Dockerfile").read_text(encoding="utf-8"))


def carry_out(all_stages: Sequence[Stage], folder: Path, context: Path) -> Path:
    """Make each stage below `folder` from the files in `context`; returns the root of the last one."""
    roots: dict[str, Path] = {}
    for stage in all_stages:
        root = roots[stage.name] = folder / stage.name
        suite = stage.base.removeprefix("debian:").removesuffix("-slim")
        if not root.exists():
            folder.mkdir(parents=True, exist_ok=True)
            subprocess.run(["mmdebstrap", "--variant=minbase", suite, root], check=True)
        _as_here(root)
        env = dict[str, str]()
        for word, text in stage.steps:
            print(f"[{stage.name}] {word} {text[:100]}", flush=True)  # noqa: T201
            if word == "COPY":
                _copy(text, root, context, roots)
            elif word == "RUN":
                _run(text, root, env)
            elif word == "ENV":
                env |= _pairs(text)
            elif word not in _NOTHING_TO_DO:
                raise ValueError(f"{word} is not understood")
    return root


def _as_here(root: Path) -> None:
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    shutil.copy(_CERTIFICATES, root / _CERTIFICATES_INSIDE.lstrip("/"))


def _copy(text: str, root: Path, context: Path, roots: Mapping[str, Path]) -> None:
    words = text.split()
    if words[0].startswith("--from="):
        context = roots[words.pop(0).removeprefix("--from=")]
    *patterns, target = words
    place = root / target.lstrip("/")
    for pattern in patterns:
        sources = sorted(context.glob(pattern.lstrip("/")))
        if not sources:
            raise ValueError(f"{context} has no {pattern}")
        for source in sources:
            if source.is_dir():
                shutil.copytree(source, place, symlinks=True, dirs_exist_ok=True)
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, place)


def _run(command: str, root: Path, env: Mapping[str, str]) -> None:
    from_here = {name: os.environ[name] for name in _FROM_HERE if name in os.environ}
    subprocess.run(
        ["chroot", root, "/bin/sh", "-c", command],
        env={"PATH": _PATH, "PIP_CERT": _CERTIFICATES_INSIDE, **from_here, **env},
        check=True,
    )


def main() -> None:
    """See the docstring of the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist", help="those of meshd and meshd-native")
    args = parser.parse_args()
    print(carry_out(read(), args.folder, args.wheels))  # noqa: T201


if __name__ == "__main__":
    main()
