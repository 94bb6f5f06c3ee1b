"""Compare the versions of two nodes: which meshd is older, and whether their native parts work together.

A node speaks its own version of each protocol and the one before: docs/decisions/0079 has the rules.
"""

import re
from dataclasses import dataclass
from typing import Annotated

from meshd.wire.limits import Text

WIRE_VERSION = 1  # of everything on a link, from the proof on
OLDEST_WIRE_VERSION = 1  # the one before, which this node speaks as well: at most one less
VERSION_CODE = "version"  # of a refusal because of them
_RELEASE = re.compile(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})", re.ASCII)

Release = tuple[int, int, int]

MAX_VERSION_BYTES = 128  # of one part of a NativeVersion
UNKNOWN = "unknown"  # pin of binaries that meshd did not build
_MESH = "mesh "  # before the version of the protocol of native/mesh
_SPOKEN = re.compile(r"mesh (\d{1,5})(?:-(\d{1,5}))?", re.ASCII)
_SHOWN = 12  # digits of a hash that a short form keeps


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


def upgrade_hint(node: NodeVersion, other: NodeVersion) -> str:
    """Return what to do about two nodes that differ: upgrade the older one, if their versions tell which."""
    here, there = release_of(node.version), release_of(other.version)
    if here is None or there is None or here == there:
        both = f"{node.name} and {other.name}"
        return f"install the same version of meshd on {both}, and run `meshd native build` on both"
    older, newer = (node, other) if here < there else (other, node)
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


@dataclass(frozen=True, slots=True)
class NativeVersion:
    """The version of a node's native part: the protocol of its processes, the pin of upstream, the hash of
    our own sources, and the backend.
    """

    protocol: Annotated[str, Text(MAX_VERSION_BYTES)]
    pin: Annotated[str, Text(MAX_VERSION_BYTES)]
    sources: Annotated[str, Text(MAX_VERSION_BYTES)]
    backend: Annotated[str, Text(MAX_VERSION_BYTES)]


def mesh_protocol(version: int) -> str:
    """Return the protocol of native/mesh, for NativeVersion.protocol."""
    return f"{_MESH}{version}"


def understand(mine: str, theirs: str) -> bool:
    """Return True if two nodes have a protocol in common, given both NativeVersion.protocol.

    A later version of meshd that also speaks the version before says both: `mesh 5-6`.
    """
    ours, others = _SPOKEN.fullmatch(mine), _SPOKEN.fullmatch(theirs)
    if ours is None or others is None:
        return mine == theirs
    (low, high), (least, most) = _spoken(ours), _spoken(others)
    return low <= most and least <= high


def _spoken(found: re.Match[str]) -> tuple[int, int]:
    return int(found[1]), int(found[2] or found[1])


@dataclass(frozen=True, slots=True)
class Difference:
    """`fits`: they take part in one model all the same. `what` begins with a verb: `runs …`."""

    fits: bool
    what: str


def difference(mine: NativeVersion, theirs: NativeVersion) -> Difference | None:
    """Return the difference worth reporting between two nodes' builds; None if there is none.

    Applies the worker's check of a lease: either node may become the other's worker.
    """
    if not understand(mine.protocol, theirs.protocol):
        what = f"speaks the native protocol `{theirs.protocol}`, this node `{mine.protocol}`"
        return Difference(fits=False, what=what)
    if UNKNOWN not in (mine.pin, theirs.pin) and mine.pin != theirs.pin:
        what = f"runs llama.cpp {theirs.pin[:_SHOWN]}, this node {mine.pin[:_SHOWN]}"
        return Difference(fits=False, what=what)
    ours, others = mine.sources[:_SHOWN], theirs.sources[:_SHOWN]
    if ours == others or UNKNOWN in (ours, others):
        return None
    what = f"has another version of meshd's backend ({others}) than this node ({ours})"
    return Difference(fits=True, what=what)
