"""Compares the native parts of two nodes: do they work together, and if not, what to do."""

from dataclasses import dataclass
from typing import Annotated

from meshd.wire.bounds import Text

MAX_VERSION_BYTES = 128  # of one part of a NativeVersion
UNKNOWN = "unknown"  # pin of binaries that meshd did not build
_MESH = "mesh "  # before the version of the protocol of native/mesh
_SHOWN = 12  # digits of a hash that a short form keeps
_ONE_MESHD = "install the same version of meshd on both and run `meshd native build`"


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


@dataclass(frozen=True, slots=True)
class Difference:
    """`fits`: they take part in one model all the same. `what` begins with a verb: `runs …`."""

    fits: bool
    what: str
    hint: str


def difference(mine: NativeVersion, theirs: NativeVersion) -> Difference | None:
    """Return the difference worth reporting between two nodes' builds; None if there is none.

    Applies the worker's check of a lease: either node may become the other's worker.
    """
    if other := other_protocol(mine.protocol, theirs.protocol):
        return other
    if UNKNOWN not in (mine.pin, theirs.pin) and mine.pin != theirs.pin:
        return Difference(
            fits=False,
            what=f"runs llama.cpp {theirs.pin[:_SHOWN]}, this node {mine.pin[:_SHOWN]}",
            hint=_ONE_MESHD,
        )
    ours, others = mine.sources[:_SHOWN], theirs.sources[:_SHOWN]
    if ours == others or UNKNOWN in (ours, others):
        return None
    return Difference(
        fits=True,
        what=f"has another version of meshd's backend ({others}) than this node ({ours})",
        hint=f"the two understand each other; {_ONE_MESHD}",
    )


def other_protocol(mine: str, theirs: str) -> Difference | None:
    """Return the difference of the protocols (NativeVersion.protocol); None if they are the same."""
    if mine == theirs:
        return None
    what = f"speaks the native protocol `{theirs}`, this node `{mine}`"
    return Difference(fits=False, what=what, hint=_ONE_MESHD)
