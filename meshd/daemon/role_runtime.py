"""What the roles get to work with: real children, tunnels, pipes and the native binaries."""

import contextlib
import functools
import hashlib
import os
import secrets
import socket
import uuid
from collections.abc import Callable
from pathlib import Path

from meshd.admin.socket_path import socket_folder
from meshd.base import log
from meshd.base.listening_socket import LOOPBACK_HOST, listen_in, remove_stale
from meshd.base.stopped_process import is_stopped
from meshd.build import mesh as mesh_build
from meshd.build import native as native_build
from meshd.build.interface import LLAMA_SERVER, MESH_MODULE, MESH_PROGRAM, RPC_SERVER, NativeInfo
from meshd.build.pin import read_pin
from meshd.config import MESH, Config, Paths
from meshd.gateway.interface import ReadyReport
from meshd.identity.keys import PeerId
from meshd.peer.interface import Mesh
from meshd.process.child import OwnedChild
from meshd.process.connections import Address, ConnectionOwners
from meshd.process.handover import DescriptorSender, OrderPipe, ReportPipe, pipe_with, socket_pair
from meshd.process.interface import Child, ChildSpec, ReadyProbe
from meshd.process.ports import listening_socket
from meshd.process.ready import LineSeen, http_200, port_open
from meshd.process.run import run_to_end
from meshd.process.spent import spent
from meshd.role.interface import (
    MeshPrograms,
    NativeBuild,
    Processes,
    RolePaths,
    RoleRuntime,
    Tunnel,
    TunnelRequest,
    Tunnels,
)
from meshd.rpc.mesh_protocol import VERSION as MESH_VERSION
from meshd.tunnel.compressed import COMPRESSED_VERSION
from meshd.tunnel.compression_policy import judge
from meshd.tunnel.expose import connect_through
from meshd.tunnel.forward import Forward
from meshd.tunnel.interface import OwnerCheck
from meshd.tunnel.joined import JoinedTunnel, join
from meshd.wire.native import NativeVersion, mesh_protocol

LOG = log.get("daemon")
NOT_BUILT = "llama.cpp is not built yet"


def find_native(config: Config, *, head: bool = True) -> NativeBuild:
    """The binaries in use; a worker (not `head`) needs no llama-server. Raises UserError without them."""
    if config.native.protocol == MESH:
        return _find_mesh(config.paths, head=head)
    info: NativeInfo | None
    if config.paths.native_bin is not None:
        info = native_build.read_bin_dir(config.paths.native_bin, head=head)
    else:
        info = native_build.find(config.paths.cache)
    if info is None:
        raise native_build.not_built(NOT_BUILT)
    version = NativeVersion(
        rpc=read_pin().rpc_protocol, pin=info.pin, patches=info.patches_sha256, backend=info.backend
    )
    server = info.binaries.get(LLAMA_SERVER, info.bin_dir / LLAMA_SERVER)  # a worker starts none
    return NativeBuild(info.binaries[RPC_SERVER], server, info.patched, version)


def _find_mesh(paths: Paths, *, head: bool) -> NativeBuild:
    named = paths.native_bin
    if named is not None:
        info = mesh_build.read_bin_dir(named, paths.cache, head=head)
    else:
        info = mesh_build.find(paths.cache)
    if info is None:
        raise mesh_build.not_built(paths.cache, NOT_BUILT)
    speaks = mesh_protocol(MESH_VERSION)

    def program(name: str) -> Path:
        return info.binaries.get(name, info.bin_dir / name)  # a worker starts only mesh-server

    return NativeBuild(
        rpc_server=program(RPC_SERVER),
        llama_server=program(LLAMA_SERVER),
        patched=info.patched,
        version=NativeVersion(speaks, info.pin, info.patches_sha256, info.backend),
        mesh=MeshPrograms(program(MESH_PROGRAM), program(MESH_MODULE), read_pin().rpc_protocol),
    )


def machine_id(mesh: bytes) -> str:
    """The same for all nodes of one mesh on this machine, and of no use to anybody else."""
    try:
        seed = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        seed = f"{uuid.getnode():x} {socket.gethostname()}".encode()
    return hashlib.sha256(b"meshd machine\0" + mesh + seed).hexdigest()[:32]


def make_runtime(config: Config, mesh: Mesh, native: NativeBuild) -> RoleRuntime:
    """All of it, for one daemon."""
    sockets = _folder_of_sockets(config.paths.home)
    return RoleRuntime(
        mesh=mesh,
        native=native,
        processes=make_processes(sockets),
        tunnels=Tunnels(
            open=functools.partial(_open_tunnel, config.links.compress, mesh, sockets, ConnectionOwners()),
            connect_through=connect_through,
            join=join,
            random=secrets.token_bytes,
            compressed=0 if config.links.compress == "off" else COMPRESSED_VERSION,
            always_compressed=config.links.compress == "on",
        ),
        paths=RolePaths(
            logs=config.paths.logs, sockets=sockets, trial_cache=config.paths.cache / "device-trials"
        ),
    )


def make_processes(sockets: Path) -> Processes:
    """Real ones; their unix sockets lie in this folder."""
    return Processes(
        make_child=_make_child,
        run_to_end=run_to_end,
        http_ready=_answers,
        line_ready=LineSeen,
        port_open=port_open,
        first_token=_first_token,
        hand_over=pipe_with,
        make_report=ReportPipe,
        make_orders=OrderPipe,
        make_descriptors=DescriptorSender,
        socket_pair=socket_pair,
        unix_listener=functools.partial(_listening, sockets),
        free_port=_free_port,
        is_stopped=is_stopped,
        usage=spent,
    )


def _open_tunnel(
    setting: str, mesh: Mesh, sockets: Path, owners: ConnectionOwners, asked: TunnelRequest
) -> Tunnel:
    takes = asked.compressed == COMPRESSED_VERSION

    def compresses() -> bool:
        return takes and _compresses(setting, mesh, asked.peer, always=asked.always)

    if asked.client.joined is not None:
        return JoinedTunnel(
            mesh=mesh,
            peer=asked.peer,
            service=asked.service,
            metadata=asked.metadata,
            end=asked.client.joined,
            endpoint=asked.endpoint,
            watch=asked.watch,
            on_broken=asked.on_broken,
            compresses=compresses,
        )
    owner_pid, secret = asked.client.owner_pid, asked.client.secret
    return Forward(
        mesh=mesh,
        peer=asked.peer,
        service=asked.service,
        metadata=asked.metadata,
        secret=secret,
        owner_check=None if secret or owner_pid is None else _owned_by(owner_pid, owners),
        listen=sockets if secret else (LOOPBACK_HOST, 0),  # who shows a secret is patched, and knows both
        saved=asked.client.saved,
        watch=asked.watch,
        greeting=asked.greeting,
        on_broken=asked.on_broken,
        compresses=compresses,
    )


def _make_child(spec: Callable[[], ChildSpec], name: str) -> Child:
    return OwnedChild(spec, name=name)


def _compresses(setting: str, mesh: Mesh, peer: PeerId, *, always: bool) -> bool:
    """Whether a stream to `peer` is compressed: by what was asked for, else as its path is now."""
    if setting != "auto" or always:
        return setting != "off"
    verdict = judge(next((status.paths for status in mesh.peers() if status.peer == peer), ()))
    LOG.info("tunnel_opened", peer=peer.short, compressed=verdict.pays, why=verdict.why)
    return verdict.pays


def _answers(place: Path) -> ReadyProbe:
    """llama-server answers at its socket, which is closed to other users whatever its umask made it."""
    ask = http_200(place)

    async def ready() -> bool:
        _make_private(place)
        return await ask()

    return ready


def _make_private(place: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        place.chmod(0o600)


async def _first_token(place: Path) -> ReadyReport:
    from meshd.gateway.ready import one_token  # aiohttp: 11 MB that a worker does without

    return await one_token(place)


def _owned_by(pid: Callable[[], int | None], owners: ConnectionOwners) -> OwnerCheck:
    """For a stock llama-server, which shows no secret: the system must say that the connection is its own.

    Where the system does not tell, every client of the loopback port is taken for it; the log says so once.
    """

    async def owned_by_child(client: Address, server: Address) -> bool:
        child = pid()
        owns = child is not None and await owners.process_has(child, client, server)
        if owns is None:
            _warn_owner_unknown()
        return owns is not False

    return owned_by_child


@functools.cache  # once a daemon
def _warn_owner_unknown() -> None:
    LOG.warning("tunnel_owner_unknown", why="this system does not tell which process owns a connection")


def _folder_of_sockets(home: Path) -> Path:
    """No other daemon uses it: what one that was killed left there is removed."""
    folder = socket_folder(home, os.environ)
    remove_stale(folder)
    return folder


def _listening(folder: Path) -> tuple[int, Path]:
    sock, path = listen_in(folder)
    return sock.detach(), path


def _free_port() -> int:
    with listening_socket() as sock:
        return int(sock.getsockname()[1])
