"""The head's side of one lease: asks a worker, holds the lease and the tunnel to its mesh-server."""

import asyncio
import contextlib
from collections.abc import Callable

from meshd.base import log
from meshd.base.errors import Broken, EndOfStream, MeshdError, Refused, RemoteProtocolError
from meshd.base.peer_limits import LEASE_MESSAGES, PROGRESS_SHOWN
from meshd.devices.interface import Tunnel, TunnelRequest, Tunnels
from meshd.head.mesh_end import MeshEnd
from meshd.identity.keys import PeerId
from meshd.peer.interface import Mesh, PeerStatus
from meshd.peer.messages import MessageStream
from meshd.wire.lease import (
    LEASE_SERVICE,
    RPC_SERVICE,
    Acquire,
    Admit,
    Grant,
    Introduced,
    LeaseMessage,
    Loaded,
    Lost,
    Neighbour,
    Progress,
    Reached,
    Reserve,
    WorkerOffer,
    decode,
)
from meshd.wire.native import NativeVersion, difference, other_protocol
from meshd.wire.needs import Begin, Fetched, Needs, in_messages

ANSWER_SECONDS = 30.0  # without a word of progress
OFFER_SECONDS = (
    600.0  # with it: what a worker does meanwhile, hashing above all, goes on when it is asked again
)
FETCH_SECONDS = 600.0  # for weights from members, and a second more for each SLOW_FETCH_BYTES of a part
SLOW_FETCH_BYTES = 100_000
GRANT_SECONDS = 120.0  # with it: a mesh-server that does not start is given up after 60 s
LOG = log.get("serve")


def why_unfit(mine: NativeVersion, worker: PeerStatus) -> Refused | None:
    """Why the llama.cpp of a worker cannot work with ours: it need not be asked."""
    found = difference(mine, worker.native) if worker.native is not None else None
    if found is None or found.fits:
        return None
    error = Refused(f"{worker.name} {found.what}", code="version", hint=found.hint)
    LOG.warning("worker_left_out", peer=worker.peer.short, name=worker.name, why=error.what)
    return error


class LeaseClient:
    """A head's lease of one worker. `until_lost` runs after `until_granted`."""

    def __init__(
        self,
        mesh: Mesh,
        tunnels: Tunnels,
        *,
        peer: PeerId,
        name: str,
        on_progress: Callable[[str], None],
        mesh_end: MeshEnd,
    ) -> None:
        """`mesh_end`: what our llama-server inherits for the connection with this worker."""
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
        self._introduced: set[int] = set()
        self.mesh_end = mesh_end
        self.lent: tuple[int, ...] = ()  # bytes of each device of which a part is reserved
        self.place = 0  # in the list of workers that llama-server gets

    @property
    def is_here(self) -> bool:
        """Its worker is on this machine: what is between us is no line."""
        return any(peer.peer == self.peer and peer.is_here for peer in self._mesh.peers())

    @property
    def sent_bytes(self) -> int:
        """Through its tunnel."""
        return self.tunnel.status.sent_bytes if self.tunnel is not None else 0

    async def ask(self, acquire: Acquire) -> WorkerOffer:
        """What the worker could lend. Raises Refused with its reason, Broken."""
        stream = self._mesh.open_stream(self.peer, LEASE_SERVICE, metadata={})
        self._messages = MessageStream(stream, LEASE_MESSAGES)
        await self._messages.send(acquire.encode())
        answer = await self._answer(OFFER_SECONDS)
        if not isinstance(answer, WorkerOffer):
            raise RemoteProtocolError("lease: expected `offer`", code="lease")
        if (other := other_protocol(acquire.protocol, answer.protocol)) is not None:
            raise Refused(f"{self.name} {other.what}", code="native_protocol", hint=other.hint)
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
        self.lent = tuple(count for count in bytes_per_device if count)
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
        """The mesh-server is there. Raises Refused, Broken."""
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
            )
        )

    async def say_loaded(self) -> None:
        """No weights come any more that the worker could keep."""
        await self._tell(Loaded())

    def has_neighbour(self, other: "LeaseClient") -> bool:
        """Its mesh-server has a connection with that one's, as it has told llama-server."""
        return other.place in self.mesh_end.neighbours

    @property
    def endpoint(self) -> str:
        """As llama-server names it; empty before the lease."""
        return self.tunnel.endpoint if self.tunnel is not None else ""

    async def admit(self, other: "LeaseClient") -> None:
        """Another worker of ours may push to its server."""
        await self._tell(Admit(other.peer.raw, other.place))

    async def say_introduced(self) -> None:
        """It knows all its neighbours now: a mesh-server waits for that."""
        await self._tell(Introduced())

    async def introduce(self, number: int, other: "LeaseClient") -> None:
        """Its server may push to that of another worker of ours, by this number.

        What goes between the two is ours as well: compressed as we want it, if all three take it.
        """
        assert other.offer is not None
        self._introduced.add(number)
        lease_id = other.offer.lease_id
        compressed = other.offer.compressed if self._tunnels.compressed else 0
        always = self._tunnels.always_compressed
        await self._tell(Neighbour(number, other.peer.raw, lease_id, compressed, always))

    async def _tell(self, message: LeaseMessage) -> None:
        """A lease that is lost meanwhile is `until_lost`'s matter."""
        if self._messages is not None:
            with contextlib.suppress(Broken):
                await self._messages.send(message.encode())

    def _tunnel_broken(self, error: MeshdError) -> None:
        LOG.warning("tunnel_broken", peer=self.peer.short, why=error.what)

    async def until_lost(self) -> Lost:
        """Why the lease has ended on the worker's side, in its own words or in ours."""
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

    def release(self) -> None:
        """Give the lease back: the worker ends its server."""
        if self.tunnel is not None:
            self.tunnel.close()
        self.mesh_end.close()
        if self._messages is not None:
            self._messages.stream.write_eof()
            self._messages = None

    async def _answer(self, timeout: float) -> LeaseMessage:
        """The next that is not about progress, within `timeout` seconds. Raises Refused, Broken."""
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
