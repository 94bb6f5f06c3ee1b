"""Derive warnings from the status: what is wrong, how severe it is, and what to do about it. Pure.

They are about the node and its links, the model that it serves, and what it lends: files, devices, kept
weights. Codes are stable and listed in docs/errors.md.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from meshd.admin.status import HealthWarning, PeerView, Status
from meshd.base.errors import BANNED_HINT, IN_USE_HINT
from meshd.base.units import in_bytes, in_number
from meshd.identity import naming
from meshd.identity.naming import WORKER_ROLE
from meshd.model.status import NOT_HELD, ModelStatus, NetworkTensor, StoreStatus
from meshd.wire.versions import NativeVersion, NodeVersion, difference, upgrade_hint

SLOW_SHARE = 0.5  # of the predicted speed: below that something else computes, or the prediction is wrong
_TENSORS_NAMED = 3
_LOG_HINT = "run `meshd logs llama-server` for details"
_PLAN_HINT = "change that and restart the head; it also tries again when workers come or go"
_FILE_HINT = "if that was not intended, put the right file there; the next load uses it"
_UNFIT_HINT = (
    "try another driver, or exclude the device with `--device CPU`; run `meshd logs device-trial` for "
    "details. It is tried again after ten minutes"
)
_NO_CUDA_HINT = "run `meshd doctor`: it says how to add CUDA, or that this GPU is too old for it"
_KEEP_HINT = (
    "free space on that disk, raise `--keep-weights`, or give this worker the model's file; until then each "
    "load sends them again"
)
SUSPENDED_SECONDS = 10.0  # shorter gaps are what sessions are made for
CLOCK_SECONDS = 120.0
RESTARTS = 3
ALONE_SECONDS = 60.0  # without any other node since the start, until that is worth a remark
AWAY_SECONDS = 600.0  # a node gone for longer was switched off: shown as away, no fault to be mended
MAX_NODES_NAMED = 3
_REVOKE_HINT = "; if the node is malicious, ban it with `meshd revoke`"
_FAULTS_HINT = "if it persists, report the `work_failed` lines of `meshd logs`."
_UNKNOWN_HINT = (
    "correct the name, or start that worker: it is used once it is there; `meshd peers` lists all nodes"
)
_NAME_HINT = "restart one of them once with another `--name`"
_DISK_HINT = (
    "free space on that disk, and check that it is mounted read-write. Do not restart the node before: it "
    "keeps the content in memory, and writes the file as soon as it can"
)


def model_warnings(model: ModelStatus, status: Status) -> Iterator[HealthWarning]:
    """Yield the warnings of one model; `status` knows the workers."""
    if model.state == "failed":
        yield HealthWarning(
            code="model_failed",
            severity="error",
            what=f"`{model.name}` is not served{_because(model.reason)}",
            hint=_LOG_HINT if "llama-server" in model.reason else _PLAN_HINT,
        )
    if model.state == "waiting":
        yield HealthWarning(
            code="model_waiting",
            severity="info",
            what=f"`{model.name}` is not loaded{_because(model.reason)}",
            hint=_waits_hint(model, status),
        )
    if (slow := _slower(model)) is not None:
        yield HealthWarning(
            code="model_slow",
            severity="info",
            what=f"`{model.name}` is much slower than predicted: {slow}",
            hint="look for other programs that compute on these machines; if there are none, run "
            "`meshd capacity --again` on each, then restart the head",
        )
    if model.tensors_from_network:
        yield _weights_that_crossed(model.tensors_from_network)


def _weights_that_crossed(tensors: Sequence[NetworkTensor]) -> HealthWarning:
    """Warn of copies that workers could not use; weights that no worker has are only worth a remark."""
    unusable = [tensor for tensor in tensors if tensor.reason != NOT_HELD]
    named = unusable or tensors
    names = ", ".join(t.name for t in named[:_TENSORS_NAMED]) + (", …" if len(named) > _TENSORS_NAMED else "")
    size = in_bytes(sum(t.bytes for t in named))
    came = f"{in_number(len(named), 'tensor')} ({size}) came over the network: {names}"
    hint = "for faster loads, give the workers the same file with --model"
    if unusable:
        hint = (
            f"give the workers an intact copy of the same file with --model; first reason: {named[0].reason}"
        )
    return HealthWarning(
        code="tensors_from_network", severity="warning" if unusable else "info", what=came, hint=hint
    )


def _waits_hint(model: ModelStatus, status: Status) -> str:
    """Return the hint that ends the waiting."""
    workers = [peer for peer in status.peers if peer.role == WORKER_ROLE]
    paused = [peer.name for peer in workers if peer.paused and not peer.fetching]
    # what does not fit here is not helped by waiting for fewer
    few = model.too_few_workers
    alone = "; with `--min-workers 0` it needs none if it fits on this node" if few else ""
    if paused:
        return f"run `meshd resume` on {' and '.join(paused)}{alone}"
    fetching = [peer.name for peer in workers if peer.fetching]
    if fetching:
        models = "its model" if len(fetching) == 1 else "their models"
        return (
            f"wait until {' and '.join(fetching)} {'has' if len(fetching) == 1 else 'have'} {models}{alone}"
        )
    if not workers:
        return f"run `meshd worker --join INVITE` on another machine: `meshd invite` prints an invite{alone}"
    return f"start the workers that it waits for, or others{alone}"


def _slower(model: ModelStatus) -> str | None:
    """Return the measured speeds that are less than half of the predicted ones, in words; None if none is."""
    measured, predicted = model.measured, model.predicted
    if measured is None or predicted is None:
        return None
    pairs = (
        ("generation", measured.generate_tok_s, predicted.generate_tok_s),
        ("prompts", measured.prompt_tok_s, predicted.prompt_tok_s),
    )
    slower = [
        f"{what} {have:.1f} tokens/s, predicted {hoped:.1f}"
        for what, have, hoped in pairs
        if have is not None and hoped is not None and have < hoped * SLOW_SHARE
    ]
    return "; ".join(slower) or None


def _because(why: str) -> str:
    return f": {why}" if why else ""


def worker_warnings(
    store: StoreStatus | None, file_notes: Sequence[str], unfit: Sequence[str]
) -> Iterator[HealthWarning]:
    """Yield warnings. `file_notes`: changes to its model files. `unfit`: devices that failed their trial."""
    if store is not None and store.problem:
        what = f"downloaded weights cannot be kept in `{store.path}`: {store.problem}"
        yield HealthWarning(code="weights_not_kept", severity="warning", what=what, hint=_KEEP_HINT)
    for note in file_notes:
        yield HealthWarning(code="model_file", severity="warning", what=note, hint=_FILE_HINT)
    for device in unfit:
        yield HealthWarning(code="device_unfit", severity="warning", what=device, hint=_UNFIT_HINT)


def examine(
    status: Status,
    *,
    clock_offsets: dict[str, float] | None = None,
    native: NativeVersion | None = None,
    file_notes: Sequence[str] = (),
    refused: Sequence[tuple[str, str]] = (),
    unfit: Sequence[str] = (),
    unknown: Sequence[str] = (),
    unwritten: Mapping[str, str] = MappingProxyType({}),
    no_backup: bool = False,
    restored: bool = False,
    copied: bool = False,
) -> Status:
    """Return the same status with its warnings.

    `clock_offsets`: seconds that a peer's wall clock (by id) is ahead of ours. `native`: our own build, to
    compare with those of the peers. `file_notes`: changes to this worker's model files.
    `refused`: messages that broke the protocol of native programs, and hints. `unfit`: devices that failed
    their trial.
    `unknown`: workers that the user has named and nobody knows.
    `unwritten`: files that could not be written, and why. `no_backup`: the mesh's root key is here alone.
    `restored`: the root key came from a backup. `copied`: a copy of this node runs elsewhere.
    """
    found = [
        # this node in its mesh
        *_mesh(status),
        *_banned(status),
        *_copied(status, copied=copied),
        *_alone(status, restored=restored),
        *_no_backup(status, no_backup=no_backup),
        *_names(status),
        # peers, and this machine
        *(w for peer in status.peers for w in _peer(peer, status, (clock_offsets or {}), native)),
        *_mdns(status),
        *_children(status),
        *_slower_gpus(status),
        # models, weights and workers
        *(warning for model in _served(status) for warning in model_warnings(model, status)),
        *worker_warnings(status.store, file_notes, unfit),
        *(
            HealthWarning(code="rpc_refused", severity="warning", what=what, hint=f"{hint}{_REVOKE_HINT}")
            for what, hint in refused
        ),
        # what the user can change
        *(
            HealthWarning(
                code="disk", severity="error", what=f"`{name}` cannot be written: {why}", hint=_DISK_HINT
            )
            for name, why in unwritten.items()
        ),
        *(
            HealthWarning(code="unknown_worker", severity="warning", what=worker, hint=_UNKNOWN_HINT)
            for worker in unknown
        ),
    ]
    return replace(status, warnings=tuple(found))


def _mesh(status: Status) -> Iterator[HealthWarning]:
    if status.mesh is None:
        yield HealthWarning(
            code="not_in_mesh",
            severity="warning",
            what="this node is not in a mesh",
            hint="run `meshd invite` on the node that founded the mesh, and restart this node with "
            "`--join INVITE`",
        )


def _mdns(status: Status) -> Iterator[HealthWarning]:
    near = [peer.name for peer in status.peers if peer.link is not None and peer.link.path == "lan"]
    if near and status.mdns is not None and status.mdns.state == "silent":
        yield HealthWarning(
            code="mdns_silent",
            severity="info",
            what=f"mDNS hears no other node, although `{near[0]}` is nearby: multicast is filtered, "
            "or a router is in between",
            hint="nothing to do while nodes find each other; otherwise allow UDP port 5353, "
            "or multicast between Wi-Fi clients",
        )


def _slower_gpus(status: Status) -> Iterator[HealthWarning]:
    """Yield a warning if an NVIDIA GPU computes through Vulkan."""
    found = [
        device
        for device in status.devices
        if device.name.startswith("Vulkan") and "NVIDIA" in device.description
    ]
    if found:
        what = f"{found[0].description} computes through Vulkan; CUDA is faster"
        yield HealthWarning(code="no_cuda", severity="info", what=what, hint=_NO_CUDA_HINT)


def _banned(status: Status) -> Iterator[HealthWarning]:
    judges = [peer for peer in status.peers if peer.says_banned]
    if judges:
        others = f" and {len(judges) - 1} more" if len(judges) > 1 else ""
        yield HealthWarning(
            code="banned",
            severity="error",
            what=f"this node is banned, according to `{judges[0].name}`{others}: {judges[0].says_banned}",
            hint=BANNED_HINT,
        )


def _copied(status: Status, *, copied: bool) -> Iterator[HealthWarning]:
    judge = next((peer for peer in status.peers if peer.says_in_use), None)
    if judge is not None or copied:
        how = "members pass on its records" if judge is None else f"`{judge.name}` says: {judge.says_in_use}"
        yield HealthWarning(
            code="identity_copied",
            severity="error",
            what=f"another machine runs with this node's identity: {how}",
            hint=IN_USE_HINT,
        )


def _alone(status: Status, *, restored: bool) -> Iterator[HealthWarning]:
    """Yield what to do if this node has reached no other one since its start."""
    if status.mesh is None or status.node.uptime_s < ALONE_SECONDS or any(map(_answers, status.peers)):
        return
    if status.peers:
        what = f"none of the other nodes has answered since the start ({len(status.peers)} known)"
        invite, joins = "on the node that founded the mesh", "this node, which stays a member,"
        if "invite" in status.mesh.roles:
            invite, joins = "here", "one of the others"
        hint = (
            "start one of them. If one runs, the known addresses are out of date: run `meshd invite` "
            f"{invite}, and restart {joins} with `--join INVITE`"
        )
    elif restored:
        what = "this node was made a founder with the recovery code, and knows no other member yet"
        hint = (
            "run `meshd invite`, and restart any one member with `--join INVITE`: the others learn of this "
            "node from that one"
        )
    else:
        return
    yield HealthWarning(code="nobody_reached", severity="info", what=what, hint=hint)


def _answers(peer: PeerView) -> bool:
    """Return True if this peer has answered since the start of this node, if only with a refusal."""
    refuses = peer.says_banned or peer.says_in_use or peer.upgrade
    return is_met(peer) or peer.link is not None or peer.present or bool(refuses)


def _no_backup(status: Status, *, no_backup: bool) -> Iterator[HealthWarning]:
    if no_backup and status.peers:
        yield HealthWarning(
            code="no_backup",
            severity="info",
            what="the root key of this mesh is on this machine only, and has no backup",
            hint="run `meshd mesh export FILE`, and keep FILE secret and away from this machine",
        )


def _names(status: Status) -> Iterator[HealthWarning]:
    present = {peer.id: peer.name for peer in status.peers if not is_away(peer)}
    for name, nodes in naming.shared({**present, status.node.id: status.node.name}).items():
        what = same_name(name, nodes)
        yield HealthWarning(code="name_shared", severity="warning", what=what, hint=_NAME_HINT)


def same_name(name: str, nodes: Sequence[str]) -> str:
    """Say that these nodes, given by id, share a name: two nodes are called `gpu`: ab12, cd34."""
    ids = ", ".join(node[: naming.SHORT_CHARS] for node in nodes[:MAX_NODES_NAMED])
    more = f" and {len(nodes) - MAX_NODES_NAMED} more" if len(nodes) > MAX_NODES_NAMED else ""
    count = "two" if len(nodes) == 2 else str(len(nodes))
    return f"{count} nodes are called `{name}`: {ids}{more}"


def is_away(peer: PeerView) -> bool:
    """Return True if it is stopped, long gone, or not met since this daemon started: it returns once started.

    A node that this daemon has never met is switched off, most likely: members that both know would pass its
    data on, whatever its firewall does.
    """
    gone = peer.state in ("known", "connecting", "lost") and not (peer.says_banned or peer.says_in_use)
    seconds = peer.state_s if peer.state_s is not None else 0.0
    long = seconds >= (AWAY_SECONDS if is_met(peer) else SUSPENDED_SECONDS)
    return gone and not peer.present and (bool(peer.stopped) or long)


def is_met(peer: PeerView) -> bool:
    """Return True if it was connected since this daemon started, and so has told its native protocol."""
    return bool(peer.native_protocol)


def _peer(
    peer: PeerView, status: Status, clocks: dict[str, float], native: NativeVersion | None
) -> Iterator[HealthWarning]:
    who = f"`{peer.name}` ({peer.id[:10]})"
    long = peer.state_s if peer.state_s is not None else 0.0
    # Its connection.
    if peer.state == "suspended":
        yield from _suspended(peer, who, long, status)
    if peer.state == "lost" and not is_away(peer):
        yield HealthWarning(
            code="peer_lost",
            severity="error",
            what=f"{who} is lost{_because(peer.last_error)}",
            hint="start it again; it needs no invite",
        )
    unseen = peer.state in ("known", "connecting") and not (
        peer.says_banned or peer.says_in_use or peer.upgrade or is_away(peer)
    )
    if unseen and not peer.present and peer.last_error and long >= SUSPENDED_SECONDS:
        yield HealthWarning(
            code="peer_unreachable",
            severity="warning",
            what=f"cannot connect to {who}{_because(peer.last_error)}",
            hint="check that it is running and that its firewall allows its mesh port",
        )
    # Its behaviour.
    if peer.faults:
        times = "once" if peer.faults == 1 else f"{peer.faults} times"
        yield HealthWarning(
            code="peer_faults",
            severity="warning",
            what=f"{who} broke the protocol or caused unexpected failures here {times} in the last "
            "hour; the last time"
            f"{_because(peer.last_fault)}",
            hint=f"{_upgrade_hint(peer, who, status)}; {_FAULTS_HINT} If the node is malicious, "
            f"run `meshd revoke {peer.id[:10]}`",
        )
    # Its version and its clock.
    yield from _versions(peer, who, status, native)
    offset = clocks.get(peer.id, 0.0)
    if abs(offset) >= CLOCK_SECONDS:
        side = "ahead" if offset > 0 else "behind"
        yield HealthWarning(
            code="clock_off",
            severity="warning",
            what=f"the clock of {who} is {abs(offset):.0f} s {side} of this node's",
            hint="set both clocks (NTP): the expiry of invites depends on them",
        )
    # The path to it.
    if peer.link is not None and peer.link.path == "relayed":
        yield HealthWarning(
            code="relayed",
            severity="info",
            what=f"{who} is reached through a relay{_because(peer.why_not_direct or '')}",
            hint="run `meshd netcheck` on both nodes to see why; each change of address triggers a "
            "new attempt",
        )


def _suspended(peer: PeerView, who: str, long: float, status: Status) -> Iterator[HealthWarning]:
    if _is_used(peer, status):
        left = max(0.0, peer.grace_s - long)
        yield HealthWarning(
            code="peer_suspended",
            severity="warning",
            what=f"requests have waited {long:.0f} s for a link to {who}{_because(peer.last_error)}; "
            f"without one {_then(status, left)}",
            hint="check its network, power and sleep; requests continue when a link is back. If it crashed, "
            "start it again to shorten the wait",
        )
    elif long >= SUSPENDED_SECONDS:
        yield HealthWarning(
            code="peer_suspended",
            severity="warning",
            what=f"no link to {who} for {long:.0f} s{_because(peer.last_error)}",
            hint="check its network, power and sleep; its streams resume when a link is back",
        )


def _then(status: Status, left: float) -> str:
    """Say what happens in `left` seconds to the requests that wait for a worker."""
    if status.api is None or not status.api.continue_s:
        return f"they fail in {left:.0f} s"
    ready = [f"`{standby.node}`" for model in _served(status) for standby in model.standby if standby.ready]
    how = f"with standby worker {ready[0]}" if ready else "without it, or when it is back"
    return f"it counts as lost in {left:.0f} s; then the model is reloaded {how}, and they continue"


def _is_used(peer: PeerView, status: Status) -> bool:
    """Return True for a worker of the model that is served here: its loss stops the model at once."""
    served = any(model.state in ("ready", "degraded") for model in _served(status))
    return served and any(tunnel.peer == peer.id and not tunnel.user for tunnel in status.tunnels)


def _versions(
    peer: PeerView, who: str, status: Status, native: NativeVersion | None
) -> Iterator[HealthWarning]:
    if peer.upgrade:
        yield HealthWarning(
            code="version_refused",
            severity="error",
            what=f"no link to {who}{_because(peer.last_error)}",
            hint=peer.upgrade,
        )
    hint = _upgrade_hint(peer, who, status)
    if peer.version and peer.version != status.node.version:
        yield HealthWarning(
            code="version_mismatch",
            severity="info",
            what=f"{who} runs meshd {peer.version}, this node {status.node.version}",
            hint=hint,
        )
    if native is not None and peer.native:
        pin, _, sources = peer.native.partition("+")
        found = difference(native, NativeVersion(peer.native_protocol, pin, sources, ""))
        if found is not None and found.fits:
            yield HealthWarning(
                code="native_differs",
                severity="info",
                what=f"{who} {found.what}",
                hint=f"the two understand each other; {hint}",
            )
        elif found is not None:
            yield HealthWarning(
                code="native_mismatch",
                severity="error",
                what=f"{who} {found.what}: they cannot share a model",
                hint=hint,
            )


def _upgrade_hint(peer: PeerView, who: str, status: Status) -> str:
    return upgrade_hint(NodeVersion("this node", status.node.version), NodeVersion(who, peer.version))


def _children(status: Status) -> Iterator[HealthWarning]:
    for child in status.children:
        if child.state == "failed":
            yield HealthWarning(
                code="child_failed",
                severity="error",
                what=f"`{child.name}` has failed{_because(child.reason)}",
                hint=f"run `meshd logs {child.name}` for its last lines",
            )
        elif child.restarts >= RESTARTS:
            yield HealthWarning(
                code="child_restarts",
                severity="warning",
                what=f"`{child.name}` was restarted {child.restarts} times{_because(child.reason)}",
                hint=f"run `meshd logs {child.name}` to see why",
            )


def _served(status: Status) -> Sequence[ModelStatus]:
    return status.models or (() if status.model is None else (status.model,))
