"""Whether the llama.cpp of two nodes works together, and what to do where it does not."""

from dataclasses import dataclass

UNKNOWN = "unknown"  # pin of binaries that meshd did not build, and their patches where they have any
STOCK_PATCHES = "stock"  # in place of the patches' hash: upstream as it is
RPC_PROTOCOL = "rpc"  # llama.cpp's protocol, whose version its own greeting compares
_MESH = "mesh "  # that of native/mesh, before its version
_BUILD = f"`meshd native build --native-protocol {RPC_PROTOCOL}`"  # of the patched llama.cpp
_PATCHES_SHOWN = 12  # digits of the hash that a short form keeps


@dataclass(frozen=True, slots=True)
class NativeVersion:
    """What the native part of a node speaks: RPC protocol, upstream pin, patches' hash, backend."""

    rpc: str
    pin: str
    patches: str
    backend: str

    @property
    def protocol(self) -> str:
        """What its processes speak: RPC_PROTOCOL, or `mesh` and a version."""
        return self.rpc if self.rpc.startswith(_MESH) else RPC_PROTOCOL


def mesh_protocol(version: int) -> str:
    """The protocol of native/mesh, for NativeVersion.rpc."""
    return f"{_MESH}{version}"


@dataclass(frozen=True, slots=True)
class Difference:
    """`fits`: they take part in one model all the same. `what` begins with a verb: `runs …`."""

    fits: bool
    what: str
    hint: str


def difference(mine: NativeVersion, theirs: NativeVersion) -> Difference | None:
    """What somebody should know of another node's build; None where there is nothing to say.

    As the worker's check of a lease, and llama.cpp's own of a server (major version equal, minor not newer
    than the client's): either may become the other's worker.
    """
    if other := other_protocol(mine.protocol, theirs.protocol):
        return other
    ours, others = _protocol(mine.rpc), _protocol(theirs.rpc)
    if ours and others and ours != others:
        older = "this node" if ours < others else "it"
        return Difference(
            fits=False,
            what=f"speaks llama.cpp's RPC protocol {theirs.rpc}, this node {mine.rpc}",
            hint=f"{older} has the older llama.cpp: build both from one version ({_BUILD} on both, without "
            "--native-bin)",
        )
    if UNKNOWN not in (mine.pin, theirs.pin) and mine.pin != theirs.pin:
        return Difference(
            fits=False,
            what=f"runs llama.cpp {theirs.pin[:12]}, this node {mine.pin[:12]}",
            hint="install the same version of meshd on both and run `meshd native build`",
        )
    return _by_patches(mine.patches[:_PATCHES_SHOWN], theirs.patches[:_PATCHES_SHOWN])


def other_protocol(mine: str, theirs: str) -> Difference | None:
    """None where both speak the same (NativeVersion.protocol)."""
    if mine == theirs:
        return None
    hint = "start all nodes with the same `--native-protocol` (default: mesh; in older versions: rpc)"
    if mine.startswith(_MESH) and theirs.startswith(_MESH):
        hint = "install the same version of meshd on both and run `meshd native build`"
    return Difference(
        fits=False, what=f"speaks the native protocol `{theirs}`, this node `{mine}`", hint=hint
    )


def _by_patches(ours: str, others: str) -> Difference | None:
    if ours == others:
        return None
    if STOCK_PATCHES in (ours, others):
        who = "runs" if others == STOCK_PATCHES else "has meshd's patches, this node runs"
        return Difference(
            fits=True,
            what=f"{who} a llama.cpp without meshd's patches",
            hint=f"run {_BUILD} for a faster one; this one works, with weights from local files",
        )
    if UNKNOWN in (ours, others):
        return None
    return Difference(
        fits=True,
        what=f"has other patches of llama.cpp ({others}) than this node ({ours})",
        hint=f"the common features are used; install the same meshd on both and run {_BUILD}",
    )


def _protocol(version: str) -> tuple[int, int] | None:
    """Major and minor; None for what is none, or not known."""
    parts = version.split(".")
    if len(parts) < 2 or not all(len(part) < 10 and part.isascii() and part.isdigit() for part in parts):
        return None
    return int(parts[0]), int(parts[1])
