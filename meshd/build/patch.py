"""Applies unified diffs exactly: the source is pinned, so a line that does not match is an error.
Pure.

Knows what `git format-patch` writes for added and changed text files, and nothing else: no fuzz, no
offsets, no renames, no modes. Neither git nor patch(1) need be there where meshd is installed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from meshd.base.errors import UserError

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NEW_FILE = "/dev/null"


@dataclass(frozen=True, slots=True)
class Hunk:
    """`old` lines, the first of which is number `start` (from 1), become `new`; lines have no line end."""

    start: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FilePatch:
    """What one patch does to one file."""

    patch: str  # name of the patch, for errors
    path: str  # relative, with slashes
    is_new: bool
    hunks: tuple[Hunk, ...]


def parse_patch(text: str, *, name: str) -> tuple[FilePatch, ...]:
    """The changes in a patch; text before the first `diff --git` is its header. Raises UserError."""
    lines = text.split("\n")
    starts = [number for number, line in enumerate(lines) if line.startswith("diff --git ")]
    if not starts:
        raise UserError(f"patch `{name}` changes nothing", hint="reinstall meshd")
    ends = [*starts[1:], len(lines)]
    return tuple(_parse_file(lines[start:end], name) for start, end in zip(starts, ends, strict=True))


def _parse_file(lines: list[str], name: str) -> FilePatch:
    old = _header(lines, "--- ", name)
    new = _header(lines, "+++ ", name)
    path = new.removeprefix("b/")
    parts = path.split("/")
    if not new.startswith("b/") or "\\" in path or any(part in ("", ".", "..") for part in parts):
        raise _fault(name, f"the path `{new}` is outside the tree")
    hunks = tuple(_parse_hunks(lines, name))
    if not hunks:
        raise _fault(name, f"`{path}` has no changes")
    return FilePatch(name, path, old == _NEW_FILE, hunks)


def _header(lines: list[str], mark: str, name: str) -> str:
    for line in lines[:8]:
        if line.startswith(mark):
            return line.removeprefix(mark).split("\t")[0]
    raise _fault(name, f"`{lines[0]}` has no line `{mark.strip()}`")


def _parse_hunks(lines: list[str], name: str) -> Iterator[Hunk]:
    position = next((number for number, line in enumerate(lines) if line.startswith("@@ ")), len(lines))
    while position < len(lines) and (match := _HUNK.match(lines[position])):
        start, old_count, _, new_count = (int(group) if group is not None else 1 for group in match.groups())
        old: list[str] = []
        new: list[str] = []
        position += 1
        while len(old) < old_count or len(new) < new_count:
            line = lines[position] if position < len(lines) else ""
            mark, rest = line[:1], line[1:]
            if mark not in ("+", "-", " "):
                raise _fault(name, f"line `{line[:60]}` inside a hunk")
            if mark != "+":
                old.append(rest)
            if mark != "-":
                new.append(rest)
            position += 1
        if len(old) != old_count or len(new) != new_count:
            raise _fault(name, "a hunk is longer than announced")
        yield Hunk(start, tuple(old), tuple(new))


def apply_patch(text: str | None, change: FilePatch) -> str:
    """The changed text of a file; None stands for no such file. Raises UserError if it does not fit."""
    if (text is None) != change.is_new:
        raise _fault(
            change.patch, f"`{change.path}` {'exists already' if change.is_new else 'does not exist'}"
        )
    if text is not None and not text.endswith("\n"):
        raise _fault(change.patch, f"`{change.path}` does not end with a newline")
    lines = text.split("\n")[:-1] if text else []
    result: list[str] = []
    done = 0
    for hunk in change.hunks:
        first = max(0, hunk.start - 1) if hunk.old else hunk.start
        if first < done or tuple(lines[first : first + len(hunk.old)]) != hunk.old:
            raise _fault(
                change.patch, f"`{change.path}` differs from the expected content at line {hunk.start}"
            )
        result += lines[done:first]
        result += hunk.new
        done = first + len(hunk.old)
    result += lines[done:]
    return "".join(f"{line}\n" for line in result)


def _fault(name: str, what: str) -> UserError:
    return UserError(
        f"patch `{name}` cannot be applied: {what}",
        hint="use unchanged upstream source at the pinned commit",
    )
