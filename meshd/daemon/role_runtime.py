"""The runtime of the roles: real children, tunnels, pipes and the native binaries."""

import contextlib
import functools
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from meshd.admin.socket_path import socket_folder
from meshd.base import log
from meshd.base.processes import is_stopped, work_of
from meshd.base.wakeful_loop import AUTO
from meshd.config.tree import Config, LinksConfig
from meshd.daemon.native import machine_id, runner, sandboxed
from meshd.devices.device_speeds import DeviceSpeeds
from meshd.devices.interface import (
    NativeBuild,
    PlainConnections,
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
from meshd.store.hash_cache import PieceCache
from meshd.tunnel.compressed import COMPRESSED_VERSION, judge
from meshd.tunnel.joined import JoinedTunnel, join
from meshd.wire.compressed import Compression

LOG = log.get("daemon")


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
    plain: PlainConnections | None = None,
) -> RoleRuntime:
    """Build the runtime of one daemon.

    `gives`: whether members get pieces of the models that it serves; `plain`: connections from and to its
    mesh port.
    """
    cache = config.paths.cache
    return RoleRuntime(
        mesh=mesh,
        native=native,
        processes=make_processes(config.node.waiting, config.node.sandbox),
        tunnels=Tunnels(
            open=functools.partial(open_tunnel, config.links, mesh),
            join=join,
            random=secrets.token_bytes,
            compressed=0 if config.links.compress == "off" else COMPRESSED_VERSION,
            always_compressed=config.links.compress == "on",
            local=config.links.is_local,
            plain=plain if config.links.compress != "on" else None,
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


def make_processes(waiting: str = AUTO, sandbox: str = AUTO) -> Processes:
    """Return the real processes, by the settings."""

    def make_child(spec: Callable[[], ChildSpec], name: str) -> Child:
        return OwnedChild(lambda: sandboxed(spec(), sandbox), name=name)

    return Processes(
        make_child=make_child,
        run_to_end=runner(sandbox),
        http_ready=socket_answers,
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
            compression_of(links.compress, mesh, asked.peer, always=asked.always)
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


def compression_of(setting: str, mesh: Mesh, peer: PeerId, *, always: bool) -> Compression:
    """Return how a stream to `peer` is compressed: as requested, or by its current path."""
    if setting != "auto" or always:
        return Compression.NOTHING if setting == "off" else Compression.ALL
    verdict = judge(next((status.paths for status in mesh.peers() if status.peer == peer), ()))
    LOG.info("tunnel_opened", peer=peer.short, compressed=verdict.how.value, why=verdict.why)
    return verdict.how


def socket_answers(place: Path) -> ReadyProbe:
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
