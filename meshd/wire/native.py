"""Whether the native parts of two nodes work together, and what to do where they do not."""

from dataclasses import dataclass

UNKNOWN = "unknown"  # pin of binaries that meshd did not build
_MESH = "mesh "  # before the version of the protocol of native/mesh
_SHOWN = 12  # digits of a hash that a short form keeps
_ONE_MESHD = "install the same version of meshd on both and run `meshd native build`"


@dataclass(frozen=True, slots=True)
class NativeVersion:
    """What the native part of a node is: the protocol of its processes, the pin of upstream, the hash of our
    own sources, and the backend.
    """

    protocol: str
    pin: str
    sources: str
    backend: str


def mesh_protocol(version: int) -> str:
    """The protocol of native/mesh, for NativeVersion.protocol."""
    return f"{_MESH}{version}"


@dataclass(frozen=True, slots=True)
class Difference:
    """`fits`: they take part in one model all the same. `what` begins with a verb: `runs …`."""

    fits: bool
    what: str
    hint: str


def difference(mine: NativeVersion, theirs: NativeVersion) -> Difference | None:
    """What somebody should know of another node's build; None where there is nothing to say.

    As the worker's check of a lease: either may become the other's worker.
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
    """None where both speak the same (NativeVersion.protocol)."""
    if mine == theirs:
        return None
    what = f"speaks the native protocol `{theirs}`, this node `{mine}`"
    return Difference(fits=False, what=what, hint=_ONE_MESHD)
