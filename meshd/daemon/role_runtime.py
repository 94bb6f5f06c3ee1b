"""The runtime of the roles: real children, tunnels, pipes and the native binaries."""

import contextlib
import functools
import hashlib
import os
import secrets
import socket
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from meshd.admin.socket_path import socket_folder
from meshd.base import log
from meshd.base.errors import UserError
from meshd.base.processes import is_stopped, work_of
from meshd.base.wakeful_loop import AUTO
from meshd.build import native as native_build
from meshd.build.interface import LLAMA_SERVER, MESH_MODULE, MESH_PROGRAM, NativeInfo
from meshd.build.pin import read_pin
from meshd.config.tree import Config, LinksConfig, Paths
from meshd.daemon.build_choice import kept_choice
from meshd.devices.device_speeds import DeviceSpeeds
from meshd.devices.interface import (
    NativeBuild,
    Processes,
    RolePaths,
    RoleRuntime,
    Tunnel,
    TunnelRequest,
    Tunnels,
)
from meshd.gateway.interface import AnswerTimings, FindSampling, ReadyReport
from meshd.identity.keys import PeerId
from meshd.library.members.fetch_weights import MemberWeights
from meshd.model.device_sampling import DeviceSampling
from meshd.peer.interface import Mesh
from meshd.process.child import OwnedChild
from meshd.process.handover import DescriptorSender, ReportPipe, pipe_with, socket_pair
from meshd.process.interface import Child, ChildSpec, ReadyProbe
from meshd.process.ready import http_200, http_answer
from meshd.process.run import run_to_end
from meshd.rpc.mesh_protocol import VERSION as MESH_VERSION
from meshd.store.piece_cache import PieceCache
from meshd.tunnel.compressed import COMPRESSED_VERSION, judge
from meshd.tunnel.joined import JoinedTunnel, join
from meshd.wire.compressed import Compression
from meshd.wire.versions import UNKNOWN, NativeVersion, mesh_protocol

LOG = log.get("daemon")
NOT_BUILT = "llama.cpp is not built yet"


def find_native(paths: Paths, *, head: bool = True) -> NativeBuild:
    """Return the binaries in use; a worker (not `head`) needs no llama-server.

    Raises UserError without them.
    """
    natives = natives_here(paths, head=head)
    return kept_choice(natives, paths.cache, machine=machine_id(b"")) or natives[0]


def natives_here(paths: Paths, *, head: bool = True) -> tuple[NativeBuild, ...]:
    """Return the builds that can be used: the one that the user names, else all. Raises UserError if none."""
    found: Sequence[NativeInfo | None]
    if paths.native_bin is not None:
        found = [native_build.read_bin_dir(paths.native_bin, paths.cache, head=head)]
    else:
        found = native_build.candidates(paths.cache)
    natives = tuple(_native(info) for info in found if info is not None)
    if not natives:
        raise native_build.not_built(NOT_BUILT)
    return natives


def _native(info: NativeInfo) -> NativeBuild:
    def program(name: str) -> Path:
        return info.binaries.get(name, info.bin_dir / name)  # a worker starts only mesh-server

    return NativeBuild(
        llama_server=program(LLAMA_SERVER),
        mesh_server=program(MESH_PROGRAM),
        module=program(MESH_MODULE),
        version=NativeVersion(mesh_protocol(MESH_VERSION), info.pin, info.sources_sha256, info.backend),
        plain_rpc=read_pin().rpc_protocol,
    )


def native_if_built(paths: Paths) -> NativeBuild:
    """Return the binaries for a role that starts none, or placeholders.

    `meshd plan` may start a binary, and reports a missing one then.
    """
    try:
        return find_native(paths, head=False)
    except UserError:
        pass
    nowhere = paths.cache / "native" / "none"
    return NativeBuild(
        llama_server=nowhere / LLAMA_SERVER,
        mesh_server=nowhere / MESH_PROGRAM,
        module=nowhere / MESH_MODULE,
        version=NativeVersion(mesh_protocol(MESH_VERSION), UNKNOWN, UNKNOWN, "none"),
        plain_rpc=read_pin().rpc_protocol,
    )


def machine_id(mesh: bytes) -> str:
    """Return an id shared by all nodes of one mesh on this machine; it is of no use to anybody else."""
    try:
        seed = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        seed = f"{uuid.getnode():x} {socket.gethostname()}".encode()
    return hashlib.sha256(b"meshd machine\0" + mesh + seed).hexdigest()[:32]


def device_speeds(runtime: RoleRuntime, threads: int) -> DeviceSpeeds:
    """Return the speeds of this machine's devices, which are the same in all meshes."""
    run_to_end, paths = runtime.processes.run_to_end, runtime.paths
    return DeviceSpeeds(runtime.native, run_to_end, paths, machine=machine_id(b""), threads=threads)


def make_runtime(
    config: Config,
    mesh: Mesh,
    native: NativeBuild,
    pieces: PieceCache,
    *,
    gives: Callable[[], bool],
) -> RoleRuntime:
    """Build the runtime of one daemon. `gives`: whether members get pieces of the models that it serves."""
    cache = config.paths.cache
    return RoleRuntime(
        mesh=mesh,
        native=native,
        processes=make_processes(config.node.waiting),
        tunnels=Tunnels(
            open=functools.partial(open_tunnel, config.links, mesh),
            join=join,
            random=secrets.token_bytes,
            compressed=0 if config.links.compress == "off" else COMPRESSED_VERSION,
            always_compressed=config.links.compress == "on",
            local=config.links.is_local,
        ),
        paths=RolePaths(
            logs=config.paths.logs,
            sockets=socket_folder(config.paths.home, os.environ),
            trial_cache=cache / "device-trials",
            speed_cache=cache / "device-speeds",
            cpu_cache=cache / "device-cpu",
        ),
        from_members=MemberWeights(mesh, pieces, gives=gives),
    )


def make_processes(waiting: str = AUTO) -> Processes:
    """Return the real processes; `waiting`: the setting."""
    return Processes(
        make_child=_make_child,
        run_to_end=run_to_end,
        http_ready=_answers,
        loop_answers=functools.partial(http_answer, path="/slots"),
        first_token=_first_token,
        round_seconds=_round_seconds,
        drafted_rounds=_drafted_rounds,
        hand_over=pipe_with,
        make_report=ReportPipe,
        make_descriptors=DescriptorSender,
        socket_pair=socket_pair,
        is_stopped=is_stopped,
        work_of=work_of,
        waiting=waiting,
    )


def open_tunnel(links: LinksConfig, mesh: Mesh, asked: TunnelRequest) -> Tunnel:
    """Open the requested tunnel."""
    takes = asked.compressed == COMPRESSED_VERSION

    def compresses() -> Compression:
        return (
            _compresses(links.compress, mesh, asked.peer, always=asked.always)
            if takes
            else Compression.NOTHING
        )

    return JoinedTunnel(
        mesh=mesh,
        peer=asked.peer,
        service=asked.service,
        metadata=asked.metadata,
        end=asked.end,
        endpoint=asked.endpoint,
        inspector=asked.inspector,
        on_broken=asked.on_broken,
        compresses=compresses,
        flow=asked.flow,
        asks=asked.asks,
        is_here=lambda: asked.local and links.is_local and _is_here(mesh, asked.peer),
    )


def _is_here(mesh: Mesh, peer: PeerId) -> bool:
    return any(status.is_here for status in mesh.peers() if status.peer == peer)


def _make_child(spec: Callable[[], ChildSpec], name: str) -> Child:
    return OwnedChild(spec, name=name)


def _compresses(setting: str, mesh: Mesh, peer: PeerId, *, always: bool) -> Compression:
    """Return how a stream to `peer` is compressed: as requested, or by its current path."""
    if setting != "auto" or always:
        return Compression.NOTHING if setting == "off" else Compression.ALL
    verdict = judge(next((status.paths for status in mesh.peers() if status.peer == peer), ()))
    LOG.info("tunnel_opened", peer=peer.short, compressed=verdict.how.value, why=verdict.why)
    return verdict.how


def _answers(place: Path) -> ReadyProbe:
    """Return a probe for llama-server's socket, which also closes the socket to other users."""
    ask = http_200(place)

    async def ready() -> bool:
        _make_private(place)
        return await ask()

    return ready


def _make_private(place: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        place.chmod(0o600)


async def _first_token(place: Path, sampling: FindSampling) -> ReadyReport:
    from meshd.gateway.ready import one_token  # aiohttp: 11 MB that a worker avoids

    return await one_token(place, sampling)


async def _round_seconds(place: Path, sampling: DeviceSampling | None) -> float | None:
    from meshd.gateway.ready import one_round

    return await one_round(place, sampling)


async def _drafted_rounds(place: Path, sampling: DeviceSampling | None, length: int) -> AnswerTimings | None:
    from meshd.gateway.ready import drafted_rounds

    return await drafted_rounds(place, sampling, length)
