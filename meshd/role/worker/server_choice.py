"""Which program serves a lease: the one whose protocol this node speaks."""

from collections.abc import Callable

from meshd.base.errors import MeshdError
from meshd.peer.messages import MessageStream
from meshd.role.interface import RoleRuntime
from meshd.role.native.fd_handover import Outgoing
from meshd.role.worker.lent_server import AgreedLease, LentServer
from meshd.role.worker.mesh_server import MeshServer
from meshd.role.worker.rpc_server import RpcServer


def make_server(
    runtime: RoleRuntime,
    agreed: AgreedLease,
    *,
    messages: MessageStream,
    threads: int | None,
    outgoing: Outgoing,
    log_number: int,
    sharers: Callable[[], int],
) -> LentServer:
    """For one lease, not started; `outgoing` has the descriptors of the weights, `messages` lead to its head.

    `sharers`: how many other leases compute on one of the devices now. Raises MeshdError.
    """
    log_path = runtime.paths.logs / f"rpc-server-{log_number}.log"
    try:
        if runtime.native.mesh is not None:
            return MeshServer(
                runtime,
                runtime.native.mesh,
                agreed,
                messages=messages,
                threads=threads,
                outgoing=outgoing,
                log_path=log_path,
            )
        return RpcServer(
            runtime,
            agreed,
            messages=messages,
            threads=threads,
            outgoing=outgoing,
            log_path=log_path,
            sharers=sharers,
        )
    except OSError as error:
        raise MeshdError(f"cannot start a server: {error.strerror}") from None
