"""Lease: one worker's part in a run, from the question to its end, with the tunnel to its mesh-server.

A worker's end of that tunnel is llama-server's connection (`MeshEnd`), on which this node sees which weights
are sent, which the worker had, and when llama-server waits.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from socket import socket

from meshd import __version__
from meshd.base import log
from meshd.base.errors import Broken, EndOfStream, MeshdError, Refused, RemoteProtocolError, UserError
from meshd.base.peer_limits import LEASE_MESSAGES, PROGRESS_SHOWN
from meshd.base.units import in_memory
from meshd.devices.command_lines import count_of
from meshd.devices.interface import Tunnel, TunnelRequest, Tunnels
from meshd.gateway.interface import Readiness
from meshd.head.measures import AwayTimes
from meshd.identity.keys import PeerId
from meshd.model.layers import is_of_layer
from meshd.model.status import NetworkTensor, WorkerWeights
from meshd.model.weights_index import WeightsIndex
from meshd.peer.interface import Mesh, PeerStatus
from meshd.peer.messages import MessageStream
from meshd.rpc.frames import NodeReading
from meshd.rpc.mesh_head_view import AbsentWeights, MeshHeadView
from meshd.tunnel.interface import LISTEN_LOCAL
from meshd.wire.lease import (
    LEASE_SERVICE,
    RPC_SERVICE,
    Acquire,
    Admit,
    Begin,
    Fetched,
    Grant,
    Introduced,
    LeaseMessage,
    Loaded,
    Lost,
    Needs,
    Neighbour,
    Progress,
    Reached,
    Reserve,
    WorkerOffer,
    decode,
    in_messages,
)
from meshd.wire.versions import VERSION_CODE, NativeVersion, NodeVersion, difference, understand, upgrade_hint

ANSWER_SECONDS = 30.0  # without a word of progress
OFFER_SECONDS = (
    600.0  # with it: what a worker does meanwhile, hashing above all, goes on when it is asked again
)
FETCH_SECONDS = 600.0  # for weights from members, and a second more for each SLOW_FETCH_BYTES of a part
SLOW_FETCH_BYTES = 100_000
MAX_KEPT = 4096  # tensors from the network that are kept by name; the bytes of all are counted
GRANT_SECONDS = 120.0  # with it: a mesh-server that does not start is given up after 60 s
LOG = log.get("serve")


def why_unfit(mine: NativeVersion, worker: PeerStatus) -> Refused | None:
    """Return why the llama.cpp of a worker cannot work with ours, so that it need not be asked; or None."""
    found = difference(mine, worker.native) if worker.native is not None else None
    if found is None or found.fits:
        return None
    hint = upgrade_hint(NodeVersion("this node", __version__), NodeVersion(worker.name, worker.software))
    error = Refused(f"{worker.name} {found.what}", code=VERSION_CODE, hint=hint)
    LOG.warning("worker_left_out", peer=worker.peer.short, name=worker.name, why=error.what)
    return error


class Lease:
    """Hold one worker's part in a run. In time: `ask`, `reserve`, `until_granted`, `until_lost`, `release`.

    Before `reserve` the worker may `fetch` what it lacks.
    """

    def __init__(
        self,
        mesh: Mesh,
        tunnels: Tunnels,
        *,
        peer: PeerId,
        name: str,
        on_progress: Callable[[str], None],
        mesh_end: "MeshEnd",
    ) -> None:
        """Ask nothing yet. `mesh_end`: what our llama-server inherits for the connection with this worker."""
        self._mesh = mesh
        self._tunnels = tunnels
        self._messages: MessageStream | None = None
        self._on_progress = on_progress
        self.peer = peer
        self.name = name
        self.offer: WorkerOffer | None = None
        self.progress = "it has not answered"  # its last word
        self._shown_progress = PROGRESS_SHOWN.bucket(asyncio.get_running_loop().time())
        self.tunnel: Tunnel | None = None
        self.unreached: dict[int, str] = {}  # neighbours that it cannot reach, and why
        self.direct: set[int] = set()  # neighbours that it reaches past both daemons
        self._introduced: set[int] = set()
        self.mesh_end = mesh_end
        self._reserved: tuple[int, ...] = ()  # bytes of each device of the offer
        self.place = 0  # in the list of workers that llama-server gets

    @property
    def is_here(self) -> bool:
        """Return True if its worker is on this machine: what is between us is no line."""
        return any(peer.peer == self.peer and peer.is_here for peer in self._mesh.peers())

    @property
    def is_direct(self) -> bool:
        """Return True if its tunnel goes past the link, from process to process on this machine."""
        return self.tunnel is not None and self.tunnel.status.listen == LISTEN_LOCAL

    @property
    def sent_bytes(self) -> int:
        """Count the bytes sent through its tunnel."""
        return self.tunnel.status.sent_bytes if self.tunnel is not None else 0

    @property
    def lent(self) -> tuple[int, ...]:
        """Return the bytes of each device of which a part is reserved."""
        return tuple(count for count in self._reserved if count)

    @property
    def devices(self) -> list[str]:
        """Name the devices of which a part is reserved: its server runs these, in their order."""
        offered = self.offer.devices if self.offer is not None else ()
        return [device.name for device, count in zip(offered, self._reserved, strict=False) if count]

    async def ask(self, acquire: Acquire) -> WorkerOffer:
        """Ask what the worker could lend. Raises Refused with its reason, Broken."""
        stream = self._mesh.open_stream(self.peer, LEASE_SERVICE, metadata={})
        self._messages = MessageStream(stream, LEASE_MESSAGES)
        await self._messages.send(acquire.encode())
        answer = await self._answer(OFFER_SECONDS)
        if not isinstance(answer, WorkerOffer):
            raise RemoteProtocolError("lease: expected `offer`", code="lease")
        if not understand(acquire.protocol, answer.protocol):
            raise Refused(
                f"{self.name} speaks the native protocol `{answer.protocol}`, this node `{acquire.protocol}`",
                code="native_protocol",
                hint="run `meshd upgrade` on the older of the two (`meshd --version`)",
            )
        self.offer = answer
        return answer

    async def reserve(
        self, bytes_per_device: tuple[int, ...], place: int = 0, *, fetched: bool = False
    ) -> None:
        """Take a part of the offer, as the worker at this place. Raises MeshdError, OSError.

        `fetched`: it was taken with `fetch`, and the worker may begin. The tunnel is there at once: what goes
        through it waits at the worker for the mesh-server.
        """
        assert self._messages is not None and self.offer is not None
        self.place = place
        self._reserved = bytes_per_device
        await self._messages.send((Begin() if fetched else Reserve(bytes_per_device)).encode())
        self._open_tunnel(self.offer)

    async def fetch(self, bytes_per_device: tuple[int, ...], needs: Needs, *, hold: bool = False) -> Fetched:
        """Take a part of the offer; the worker takes weights that it lacks from members. Raises MeshdError.

        It waits for `begin` then. `hold`: it reads all that it needs, and keeps it in memory meanwhile.
        """
        assert self._messages is not None
        await self._messages.send(Reserve(bytes_per_device, fetch=True, hold=hold).encode())
        for some in in_messages(needs):
            await self._messages.send(some.encode())
        size = sum(tensor.size for tensor in needs.tensors)
        answer = await self._answer(FETCH_SECONDS + size / SLOW_FETCH_BYTES)
        if not isinstance(answer, Fetched):
            raise RemoteProtocolError("lease: expected `fetched`", code="lease")
        return answer

    async def until_granted(self) -> None:
        """Wait until the mesh-server is there. Raises Refused, Broken."""
        answer = await self._answer(GRANT_SECONDS)
        if not isinstance(answer, Grant):
            raise RemoteProtocolError("lease: expected `grant`", code="lease")
        if self.offer is None or answer.lease_id != self.offer.lease_id:
            raise RemoteProtocolError("lease: the grant differs from the offer", code="lease")

    def _open_tunnel(self, offer: WorkerOffer) -> None:
        self.tunnel = self._tunnels.open(
            TunnelRequest(
                peer=self.peer,
                service=RPC_SERVICE,
                metadata={"lease": offer.lease_id},
                end=self.mesh_end.open(str(self.place)),
                endpoint=str(self.place),
                inspector=self.mesh_end.view,
                on_broken=self._tunnel_broken,
                compressed=offer.compressed,
                flow=self.mesh_end.away,
                local=True,
            )
        )

    async def say_loaded(self) -> None:
        """Tell the worker that no more weights come that it could keep."""
        await self._tell(Loaded())

    def has_neighbour(self, other: "Lease") -> bool:
        """Return True if its mesh-server has told llama-server of a connection with the other's."""
        return other.place in self.mesh_end.neighbours

    @property
    def endpoint(self) -> str:
        """Return llama-server's name for it; empty before `reserve`."""
        return self.tunnel.endpoint if self.tunnel is not None else ""

    async def admit(self, other: "Lease") -> None:
        """Tell the worker that another one of ours may push to its server."""
        await self._tell(Admit(other.peer.raw, other.place))

    async def say_introduced(self) -> None:
        """Tell the worker that it knows all its neighbours now: a mesh-server waits for that."""
        await self._tell(Introduced())

    async def introduce(self, number: int, other: "Lease", *, may_seal: bool) -> None:
        """Tell the worker that its server may push to that of another one of ours, by this number.

        What goes between the two is ours as well: compressed as we want it, if all three take it. `may_seal`:
        it may have a connection past both daemons, which no other link replaces when its path is lost.
        """
        assert other.offer is not None
        self._introduced.add(number)
        lease_id = other.offer.lease_id
        compressed = other.offer.compressed if self._tunnels.compressed else 0
        always = self._tunnels.always_compressed
        seals = may_seal and other.offer.seals
        await self._tell(Neighbour(number, other.peer.raw, lease_id, compressed, always, seals))

    async def _tell(self, message: LeaseMessage) -> None:
        # a lease that is lost meanwhile is the matter of `until_lost`
        if self._messages is not None:
            with contextlib.suppress(Broken):
                await self._messages.send(message.encode())

    def _tunnel_broken(self, error: MeshdError) -> None:
        LOG.warning("tunnel_broken", peer=self.peer.short, why=error.what)

    async def until_lost(self) -> Lost:
        """Wait until the worker has ended the lease; return why, in its own words or in ours."""
        assert self._messages is not None
        try:
            while True:
                match decode(await self._messages.receive()):
                    case Lost() as lost:
                        return lost
                    case Reached() as reached:
                        self._reached(reached)
                    case _:
                        continue
        except EndOfStream:
            return Lost("ended", "the worker ended the lease")
        except MeshdError as error:
            return Lost("broken", error.what)

    def _reached(self, reached: Reached) -> None:
        if reached.why_not and reached.number in self._introduced:
            self.unreached[reached.number] = reached.why_not
        elif reached.direct and reached.number in self._introduced:
            self.direct.add(reached.number)

    def release(self) -> None:
        """Give the lease back: the worker ends its server."""
        if self.tunnel is not None:
            self.tunnel.close()
        self.mesh_end.close()
        if self._messages is not None:
            self._messages.stream.write_eof()
            self._messages = None

    async def _answer(self, timeout: float) -> LeaseMessage:
        """Wait for the next message that is not about progress. Raises Refused, Broken."""
        try:
            async with asyncio.timeout(timeout):
                return await self._next_answer()
        except TimeoutError:
            raise Broken(f"{self.name} is not ready after {timeout:.0f} s: {self.progress}") from None

    async def _next_answer(self) -> LeaseMessage:
        assert self._messages is not None
        while True:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    message = decode(await self._messages.receive())
            except TimeoutError:
                raise Broken(f"no answer from {self.name} within {ANSWER_SECONDS:.0f} s") from None
            except EndOfStream:
                raise Broken(f"{self.name} ended the lease") from None
            match message:
                case Progress(text=text):
                    self.progress = text
                    if self._shown_progress.spend(1, asyncio.get_running_loop().time()):
                        self._on_progress(f"{self.name}: {text}")
                case Lost(code=code, text=text, hint=hint):
                    raise Refused(f"{self.name}: {text}", code=code, hint=hint)
                case Reached() as reached:  # it may have been introduced before its server was there
                    self._reached(reached)
                case _:
                    return message


@dataclass(slots=True)
class NodeWeights:
    """Count what one node read from its own files, and what it lacks; in bytes."""

    local_bytes: int = 0
    network_bytes: int = 0


@dataclass(slots=True)
class WeightsReport:
    """Sum up where the tensors of one load came from; `names` maps an endpoint to the node behind it."""

    names: dict[str, str]
    local_bytes: int = 0
    network_bytes: int = 0
    fetched_bytes: int = 0
    """What workers took from members before the load; what they needed of it counts as local."""
    from_network: tuple[NetworkTensor, ...] = ()
    exceeded: str = ""
    """What llama-server asked of a worker beyond its reservation, as far as it said: no worker's fault."""
    by_node: dict[str, NodeWeights] = field(default_factory=dict)

    def line(self, text: str) -> None:
        """Take one line in; what is not understood is a later version's and is left alone."""
        match text.split(" "):
            case ["exceeded", endpoint, _device, needed, lent] if (
                count_of(needed) is not None and count_of(lent) is not None
            ):
                node = self.names.get(endpoint, endpoint)
                self.exceeded = (
                    f"llama-server needs {in_memory(int(needed))} on a device of {node}, "
                    f"{in_memory(int(lent))} are reserved there; use a smaller `--ctx-size` or batch"
                )

    def placed(self, endpoint: str, name: str, size: int, why: str) -> None:
        """Count a tensor in a worker's memory, as its tunnel tells; `why` it was sent, or empty."""
        weights = self._of(endpoint)
        if not why:
            self.local_bytes += size
            weights.local_bytes += size
            return
        self.network_bytes += size
        weights.network_bytes += size
        if len(self.from_network) < MAX_KEPT:
            node = self.names.get(endpoint, endpoint)
            self.from_network = (*self.from_network, NetworkTensor(name, size, node, why.replace("_", " ")))

    def load_of(self, node: str, total: int, passed: int) -> WorkerWeights:
        """Return how far a node is with `total` bytes; at most `passed` of them went through its tunnel."""
        weights = self.by_node.get(node, NodeWeights())
        missing = weights.network_bytes
        return WorkerWeights(node, total, weights.local_bytes, missing, min(passed, missing))

    def _of(self, endpoint: str) -> NodeWeights:
        return self.by_node.setdefault(self.names.get(endpoint, endpoint), NodeWeights())


def with_loads(now: Readiness, loads: Sequence[WorkerWeights]) -> Readiness:
    """Add how far the weights of all workers are."""
    reason = "; ".join([now.reason, *(load.text for load in loads)])
    done = sum(load.share * load.total_bytes for load in loads)
    done /= max(1, sum(load.total_bytes for load in loads))
    return replace(now, reason=reason, progress=done, workers=tuple(loads))


class ModelHeader:
    """Know what a head with only the header of a model lacks; `fails` is told once why it cannot load."""

    def __init__(self, name: str, index: WeightsIndex, fails: Callable[[MeshdError], None]) -> None:
        self._name = name
        self._fails = fails
        self.absent = frozenset(tensor.digest for tensor in index.tensors if is_of_layer(tensor.name))
        """Hashes of all tensors of layers. One that is here as well, with the same bytes, counts too:
        llama-server would read it where the layer has it.
        """

    def is_lacked(self, worker: str, tensor: str | None) -> None:
        """Fail: a worker needs this tensor, and nothing of this file may be sent in its place."""
        what = f"tensor `{tensor}`" if tensor is not None else "weights that are known by no hash"
        self._fails(
            UserError(
                f"worker {worker} lacks {what}, and this node has only the header of `{self._name}`",
                hint="start that worker with `--model`, or let a member give it the model (`give_models` "
                "there, `--keep-weights` on the worker); without `--header-only` this node takes all of it",
            )
        )


class MeshEnd:
    """Connect one worker with our llama-server: what that inherits, and what is seen of it.

    `open` once, `give` what it made to llama-server, `close` what nobody took. A head that has only the
    header of a model learns here that a worker lacks tensors.
    """

    def __init__(
        self,
        socket_pair: Callable[[], tuple[socket, int]],
        *,
        weights: Mapping[bytes, str],
        report: WeightsReport,
        away: AwayTimes,
        header: ModelHeader | None = None,
        reading: NodeReading | None = None,
    ) -> None:
        """Tell `report` of each tensor, and `away` of what passes.

        `weights`: the names of the model's tensors, by content. `header`: set if this node has no more than
        that of the model. `reading`: see MeshHeadView.
        """
        self.away = away
        self._socket_pair = socket_pair
        self._weights = weights
        self._report = report
        absent = None if header is None else AbsentWeights(header.absent, self._lacked)
        self.view = MeshHeadView(self._placed, seen=away.seen, absent=absent, reading=reading)
        self._header = header
        self._child_end = -1
        self._endpoint = ""

    @property
    def neighbours(self) -> frozenset[int]:
        """Return the workers that this one has a connection with, by their places in the list."""
        return self.view.neighbours

    def open(self, endpoint: str) -> socket:
        """Return our end of a new connection, which llama-server calls `endpoint`.

        Raises OSError where this node has no descriptors left: no MeshdError, for those of a lease are taken
        for its worker's.
        """
        ours, self._child_end = self._socket_pair()
        self._endpoint = endpoint
        return ours

    def give(self) -> int:
        """Return the other end, whose owner the caller is now."""
        given, self._child_end = self._child_end, -1
        return given

    def close(self) -> None:
        """Close what llama-server did not take. Idempotent."""
        if self._child_end >= 0:
            os.close(self.give())

    def _placed(self, digest: bytes, size: int, why: str) -> None:
        name = self._weights.get(digest, digest.hex())
        self._report.placed(self._endpoint, name, size, why)

    def _lacked(self, digest: bytes) -> None:
        assert self._header is not None
        worker = self._report.names.get(self._endpoint, self._endpoint)
        self._header.is_lacked(worker, self._weights.get(digest))
