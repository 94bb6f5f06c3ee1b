"""Compares versions of meshd: which of two nodes is older, and what its user has to run.

A node speaks its own version of each protocol and the one before: docs/decisions/0079 has the rules.
"""

import re
from dataclasses import dataclass

WIRE_VERSION = 1  # of everything on a link, from the proof on
OLDEST_WIRE_VERSION = 1  # the one before, which this node speaks as well: at most one less
VERSION_CODE = "version"  # of a refusal because of them
_RELEASE = re.compile(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})", re.ASCII)

Release = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class NodeVersion:
    """A node as people call it, and its version of meshd (empty: unknown)."""

    name: str
    version: str


def release_of(version: str) -> Release | None:
    """Return the numbers of a released version; None for any other text."""
    found = _RELEASE.fullmatch(version)
    if found is None:
        return None
    first, second, third = (int(number) for number in found.groups())
    return first, second, third


def upgrade_hint(one: NodeVersion, other: NodeVersion) -> str:
    """Return what to do about two nodes that differ: upgrade the older one, if their versions tell which."""
    here, there = release_of(one.version), release_of(other.version)
    if here is None or there is None or here == there:
        both = f"{one.name} and {other.name}"
        return f"install the same version of meshd on {both}, and run `meshd native build` on both"
    older, newer = (one, other) if here < there else (other, one)
    return f"run `meshd upgrade` on {older.name}: it has meshd {older.version}, {newer.name} {newer.version}"


def older_hint(node: str) -> str:
    """Return the hint of a refusal for lack of a common protocol; `node`: the short id of the older one."""
    return f"run `meshd upgrade` on node {node}, whose meshd is older"


def checked_hint(hint: str, *nodes: str) -> str:
    """Return `hint` if it is what a refusal says of one of these nodes, else our own words.

    A refusal is not proven: whoever answers at an address may have written it.
    """
    usual = "run `meshd upgrade` on the older of the two (`meshd --version`)"
    return hint if hint in map(older_hint, nodes) else usual
