"""The mesh-server of one lease (docs/native-backend.md): one connection with its head, which it ends with.

It watches itself and says what it does (PROGRESS), so this daemon needs no picture of its work, but ends it
when it says nothing any more.
"""

import os
from pathlib import Path
from socket import socket

from meshd.base.errors import Refused
from meshd.base.wakeful_loop import children_may_poll
from meshd.peer.interface import Stream
from meshd.peer.messages import MessageStream
from meshd.process.interface import ChildSpec
from meshd.role.interface import DescriptorSocket, MeshPrograms, RoleRuntime
from meshd.role.native import command_lines
from meshd.role.native.fd_handover import Outgoing
from meshd.role.worker.child_silence import ChildSilence
from meshd.role.worker.lent_server import AgreedLease, LentServer, OnBroken
from meshd.role.worker.mesh_neighbours import MeshNeighbours
from meshd.rpc.mesh_firewall import MeshFirewall
from meshd.rpc.mesh_keeping import MeshKeeping
from meshd.wire.lease import HEAD_ENDED


class MeshServer(LentServer):
    """meshd's own program."""

    def __init__(
        self,
        runtime: RoleRuntime,
        programs: MeshPrograms,
        agreed: AgreedLease,
        *,
        messages: MessageStream,
        threads: int | None,
        outgoing: Outgoing,
        log_path: Path,
    ) -> None:
        """`messages` lead to the head. Raises OSError.

        Users know the child of a worker by one name, whichever program it is.
        """
        super().__init__("rpc-server", runtime.processes, agreed, outgoing=outgoing, log_path=log_path)
        self._program = str(programs.server)
        self._threads = threads if threads is not None else max(1, (os.cpu_count() or 2) // 2)
        self._join = runtime.tunnels.join
        self._silence = ChildSilence()
        self._firewall: MeshFirewall | None = None  # while there is a connection
        self._end: socket | None = None
        self._descriptors: DescriptorSocket | None = None
        try:
            self._end, self._child_end = runtime.processes.socket_pair()
            outgoing.add(self._child_end)
            self._descriptors = runtime.processes.make_descriptors()
            outgoing.add(self._descriptors.child_end)
        except OSError:
            self.close()
            raise
        self._neighbours = MeshNeighbours(
            runtime.mesh, runtime.tunnels, messages, self._descriptors, runtime.processes.socket_pair
        )
        self.neighbours = self._neighbours
        if (lease_cache := agreed.lease_cache) is not None:
            lease_cache.allow(sum(agreed.memory))

    def spec(self) -> ChildSpec:
        """See LentServer."""
        assert self._descriptors is not None
        descriptors = command_lines.MeshDescriptors(
            head=self._child_end,
            weights=self.hand_over_weights(),
            neighbours=self._descriptors.child_end,
            report=self.report.child_end,
        )
        return ChildSpec(
            name=self.name,
            argv=command_lines.mesh_server(
                self._program,
                devices=self.agreed.devices,
                threads=self._threads,
                memory=self.agreed.memory,
                descriptors=descriptors,
            ),
            log=self.log_path,
            env=command_lines.mesh_server_environment(looks_out=children_may_poll()),
            hand_over=self.outgoing.give(),
        )

    async def serve_head(self, stream: Stream, on_broken: OnBroken) -> None:
        """See LentServer: the only one. When it ends the server does."""
        if self._end is None:
            raise Refused("this lease has its connection already", code="busy")
        end, self._end = self._end, None
        lease_cache = self.agreed.lease_cache
        firewall = MeshFirewall(keeping=MeshKeeping(lease_cache) if lease_cache is not None else None)
        self._firewall = firewall
        try:
            await self._join(
                stream,
                end,
                inspector=firewall,
                flow=self._silence,
                on_broken=on_broken,
                asks=True,
                pause=firewall.pause,
            )
        finally:
            self._firewall = None  # it has nobody to say anything to, and ends by itself

    async def serve_neighbour(self, stream: Stream, on_broken: OnBroken) -> None:
        """See LentServer."""
        await self._neighbours.serve(stream, on_broken)

    def why_still(self, _pid: int) -> str:
        """See LentServer."""
        return self._silence.look(self._firewall.answered) if self._firewall is not None else ""

    def code_of_end(self) -> str:
        """See LentServer. mesh-server exits with 0 when its head has ended, and with 1 after a failure."""
        return HEAD_ENDED if self.child.status.exit_code == 0 else super().code_of_end()

    def close(self) -> None:
        """See LentServer."""
        super().close()
        for held in (self._end, self._descriptors):
            if held is not None:
                held.close()
