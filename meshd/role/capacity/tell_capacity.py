"""Answers other members that ask what this node's devices could lend, and how fast they are.

Nothing is reserved, and what devices are computing meanwhile is not disturbed: while a lease runs here, only
what was measured before is told.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from meshd.base import log
from meshd.base.errors import Broken, EndOfStream, MeshdError, RemoteProtocolError
from meshd.base.peer_limits import CAPACITY_ASKED, CAPACITY_MESSAGES, SPEEDS_ASKED
from meshd.base.rate_by_key import Rates
from meshd.base.work_slots import Release
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member, Role
from meshd.identity.role_names import WORKER_ROLE
from meshd.peer.interface import Mesh, MetadataValue, PeerStatus, Stream
from meshd.peer.messages import MessageStream
from meshd.role.capacity.path_probe import PathProber
from meshd.role.native.device_speeds import DeviceSpeeds
from meshd.wire.capacity import (
    CAPACITY_SERVICE,
    AskCapacity,
    Capacity,
    ComputedSpan,
    MeasuredDevice,
    MeasuredPath,
    Measuring,
    decode,
)
from meshd.wire.lease import OfferedDevice
from meshd.wire.limits import MAX_CAPACITY_PATHS

NOT_FOR_YOU = "its certificate lacks the role `use`"
CAPACITY_ASK_SECONDS = 30.0  # for the question, once the stream is open
LOG = log.get("worker")


class ListDevices(Protocol):
    """The devices that could be lent; `recent`: as they were the last time."""

    def __call__(self, *, recent: bool) -> Awaitable[Sequence[OfferedDevice]]: ...


ComputedFor = Callable[[PeerId, bytes, Sequence[tuple[float, float]]], tuple[ComputedSpan, ...]]
"""How long this lease of this member has computed, in each of these spans; in seconds before now."""


class CapacityTeller:
    """`devices` lists what could be lent now; `is_busy`: they compute for somebody."""

    def __init__(
        self,
        mesh: Mesh,
        speeds: DeviceSpeeds,
        *,
        devices: ListDevices,
        machine: str,
        is_busy: Callable[[], bool],
        computed: ComputedFor = lambda _peer, _lease_id, _spans: (),
        lacks: Callable[[bytes], bytes] = lambda _marks: b"",
    ) -> None:
        """`lacks`: bits of the tensors with these marks that are not here."""
        self._mesh = mesh
        self._computed = computed
        self._lacks = lacks
        self._speeds = speeds
        self._devices = devices
        self._machine = machine
        self._is_busy = is_busy
        self._prober = PathProber(mesh)
        self._asking: Counter[PeerId] = Counter()
        self._asked = Rates(SPEEDS_ASKED)
        mesh.handle(CAPACITY_SERVICE, self._serve, allow=self._may_ask)

    async def _serve(self, stream: Stream) -> None:
        try:
            await self._answer(MessageStream(stream, CAPACITY_MESSAGES))
        except (Broken, EndOfStream, TimeoutError):
            return  # nobody wants to know any more
        except RemoteProtocolError:
            raise
        except MeshdError as error:
            LOG.warning("capacity_not_told", peer=stream.peer.short, why=error.what)
        stream.write_eof()

    def _may_ask(self, member: Member, _metadata: Mapping[str, MetadataValue]) -> str | Release:
        if Role.USE not in member.roles:
            return NOT_FOR_YOU
        peer = member.peer
        if self._asking[peer] >= CAPACITY_ASKED.most:
            return "too many questions about capacity at once"
        self._asking[peer] += 1

        def release() -> None:
            self._asking[peer] -= 1
            self._asking += Counter()  # drops those at zero

        return release

    async def _answer(self, messages: MessageStream) -> None:
        async with asyncio.timeout(CAPACITY_ASK_SECONDS):
            asked = decode(await messages.receive())
        if not isinstance(asked, AskCapacity):
            raise RemoteProtocolError("capacity: expected `ask`", code="capacity")
        peer = messages.stream.peer
        devices = await self._devices(recent=asked.recent)
        busy = self._is_busy()
        lacks = asked.measure and self._speeds.lacks(devices, asked.timed)
        if lacks and not busy and self._asked.spend(peer, asyncio.get_running_loop().time()):

            async def on_progress(text: str) -> None:
                await messages.send(Measuring(text).encode())

            member = self._mesh.member(peer)
            asker = str(peer if member is None else member.chain.admitter)
            await self._speeds.measure(devices, asked.timed, on_progress, asker=asker)
        if asked.measure and not busy:
            await self._prober.probe(one.peer for one in self._mesh.peers() if one.role == WORKER_ROLE)
        answer = Capacity(
            devices=tuple(MeasuredDevice(one, self._speeds.known(one, asked.timed)) for one in devices),
            machine=self._machine,
            paths=measured_paths(self._mesh.peers()),
            busy=busy,
            cpu_share=self._speeds.cpu_share,
            core_set=self._speeds.core_set,
            computed=self._computed(
                peer, asked.lease, [(begin / 1e6, end / 1e6) for begin, end in asked.spans]
            ),
            lacks=self._lacks(asked.marks) if asked.marks else b"",
        )
        await messages.send(answer.encode())


def measured_paths(peers: Sequence[PeerStatus]) -> tuple[MeasuredPath, ...]:
    """The paths that carry data now, the shortest first."""
    found = []
    for peer in peers:
        path = next((path for path in peer.paths if path.selected), None)
        rtt = None if path is None else path.idle_rtt
        if path is not None and rtt is not None:
            found.append(MeasuredPath(peer.peer.raw, max(0, int(rtt * 1e6)), int(path.rate or 0)))
    return tuple(sorted(found, key=lambda one: one.rtt_us))[:MAX_CAPACITY_PATHS]
