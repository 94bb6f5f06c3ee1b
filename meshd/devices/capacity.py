"""Ask other members what their devices can lend, and how fast these devices are; answer them.

Whoever answers reserves nothing, and disturbs no running computation: while a lease computes here, or did a
moment ago, the answer contains only earlier measurements, and a measurement ends as soon as a lease computes.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from meshd.base import log
from meshd.base.admission import Rates, Release
from meshd.base.errors import Broken, EndOfStream, MeshdError, RemoteProtocolError
from meshd.base.peer_limits import CAPACITY_ASKED, CAPACITY_MESSAGES, SPEEDS_ASKED
from meshd.base.tasks import Owner, first_error
from meshd.devices.device_speeds import DeviceSpeeds
from meshd.devices.path_probe import GIVEN_UP, PathProber
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member, Role
from meshd.identity.naming import WORKER_ROLE
from meshd.link.interface import LOOPBACK
from meshd.peer.interface import Mesh, MetadataValue, PeerStatus, Stream
from meshd.peer.messages import MessageStream
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
from meshd.wire.lease import OfferedDevice, as_bits
from meshd.wire.limits import MAX_CAPACITY_PATHS

WORDLESS_SECONDS = 15.0  # without any message
MEASURED_WITHIN_SECONDS = 660.0  # with progress messages: two GPUs' drivers may compile first

OnProgress = Callable[[PeerId, str], None]
NOT_FOR_YOU = "its certificate lacks the role `use`"
CAPACITY_ASK_SECONDS = 30.0  # for the question, once the stream is open
_LOOK_SECONDS = 0.02  # between two checks whether a lease computes, while devices are measured
LOG = log.get("worker")
ComputedFor = Callable[[PeerId, bytes, Sequence[tuple[float, float]]], tuple[ComputedSpan, ...]]
"""Return how long this lease of this member has computed in each span, given in seconds before now."""


@dataclass(frozen=True, slots=True)
class CapacityAnswer:
    """One node's answer, or why there is none."""

    capacity: Capacity | None = None
    why_not: str = ""


async def ask_capacity(
    mesh: Mesh, peer: PeerId, asked: AskCapacity, on_progress: Callable[[str], None]
) -> Capacity:
    """Ask one node for its capacity.

    Raises Broken, EndOfStream, Refused, RemoteProtocolError, TimeoutError.
    """
    stream = mesh.open_stream(peer, CAPACITY_SERVICE, metadata={})
    try:
        messages = MessageStream(stream, CAPACITY_MESSAGES)
        await messages.send(asked.encode())
        async with asyncio.timeout(MEASURED_WITHIN_SECONDS):
            while True:
                async with asyncio.timeout(WORDLESS_SECONDS):
                    answer = decode(await messages.receive())
                if isinstance(answer, Capacity):
                    return answer
                if not isinstance(answer, Measuring):
                    raise RemoteProtocolError("capacity: expected `capacity`", code="capacity")
                on_progress(answer.text)
    finally:
        stream.reset(GIVEN_UP, "")


async def ask_all(
    mesh: Mesh,
    peers: Sequence[PeerId],
    timed: Sequence[str],
    on_progress: OnProgress,
    *,
    measure: bool = True,
    recent: bool = False,
    marks: bytes = b"",
    before_measuring: Callable[[], Awaitable[None]] | None = None,
) -> dict[PeerId, CapacityAnswer]:
    """Ask each node for its capacity, and let nodes measure what they lack.

    With `measure`, nodes that lack times of devices, or rates of the paths between these nodes, then measure
    them, one node at a time on each machine, as two measurements at the same time disturb each other.
    `recent` and `marks` as in AskCapacity. `before_measuring` is awaited before any node is asked to measure.
    """
    # Ask all nodes at once for what they know.
    found: dict[PeerId, CapacityAnswer] = {}
    known = AskCapacity(tuple(timed), recent=recent, marks=marks)
    await _ask(mesh, [list(peers)], known, found, on_progress, at_once=True)
    if before_measuring is not None:
        await before_measuring()
    # Group the nodes that lack figures by machine, and let each group measure one by one.
    by_machine: dict[str, list[PeerId]] = {}
    for peer, answer in found.items():
        if measure and answer.capacity is not None and _lacks(answer.capacity, len(timed), peers):
            by_machine.setdefault(answer.capacity.machine or str(peer), []).append(peer)
    measuring = replace(known, measure=True)
    await _ask(mesh, list(by_machine.values()), measuring, found, on_progress, at_once=False)
    return found


def _lacks(capacity: Capacity, timed: int, peers: Sequence[PeerId]) -> bool:
    return lacks_times(capacity, timed) or (not capacity.busy and lacks_rates(capacity, peers))


def lacks_rates(capacity: Capacity, peers: Sequence[PeerId]) -> bool:
    """Say whether the path to one of `peers` has no measured rate."""
    asked = {peer.raw for peer in peers}
    return any(path.rate == 0 and path.peer in asked for path in capacity.paths)


def lacks_times(capacity: Capacity, timed: int) -> bool:
    """Say whether some device lacks one of the `timed` measurements."""
    return any(len({time.kind for time in device.times}) < timed for device in capacity.devices)


async def _ask(
    mesh: Mesh,
    groups: Sequence[Sequence[PeerId]],
    asked: AskCapacity,
    found: dict[PeerId, CapacityAnswer],
    on_progress: OnProgress,
    *,
    at_once: bool,
) -> None:
    async def ask(peers: Sequence[PeerId]) -> None:
        for peer in peers:
            try:
                answer = await ask_capacity(mesh, peer, asked, partial(on_progress, peer))
                found[peer] = CapacityAnswer(answer)
            except TimeoutError:
                found.setdefault(peer, CapacityAnswer(why_not="it does not answer"))
            except MeshdError as error:
                found.setdefault(peer, CapacityAnswer(why_not=error.what))

    parts = [[peer] for group in groups for peer in group] if at_once else groups
    try:
        async with Owner() as owner:
            for part in parts:
                owner.start_for(part[0].short, ask(part), name="capacity")
    except ExceptionGroup as group:
        raise first_error(group) from None


class ListDevices(Protocol):
    """List the devices that can be lent; `recent` accepts the last listing."""

    def __call__(self, *, recent: bool) -> Awaitable[Sequence[OfferedDevice]]: ...


class CapacityTeller:
    """Answer questions about capacity."""

    def __init__(
        self,
        mesh: Mesh,
        speeds: DeviceSpeeds,
        *,
        devices: ListDevices,
        machine: str,
        is_busy: Callable[[], bool],
        are_wireless: Callable[[Sequence[str]], Sequence[bool]],
        is_lending: Callable[[], bool] = lambda: False,
        computed: ComputedFor = lambda _peer, _lease_id, _spans: (),
        lacks: Callable[[bytes], bytes] = lambda _marks: b"",
        may_seal: Callable[[PeerId], bool] = lambda _peer: False,
    ) -> None:
        """Register the service.

        `devices` lists what can be lent now. `is_busy`: the devices compute for somebody, or did a moment
        ago. `is_lending`: leases occupy memory of the devices. `lacks` returns a bit for each tensor mark,
        set if the tensor is missing here. `may_seal`: mesh-servers could exchange sealed data with its own.
        `are_wireless`: which of these addresses of this machine (`host:port`) belong to a Wi-Fi adapter.
        """
        self._mesh = mesh
        self._may_seal = may_seal
        self._are_wireless = are_wireless
        self._computed = computed
        self._lacks = lacks
        self._speeds = speeds
        self._devices = devices
        self._machine = machine
        self._is_busy = is_busy
        self._is_lending = is_lending
        self._prober = PathProber(mesh)
        self._asking: Counter[PeerId] = Counter()
        self._asked = Rates(SPEEDS_ASKED)
        mesh.handle(CAPACITY_SERVICE, self._serve, allow=self._may_ask)

    async def _serve(self, stream: Stream) -> None:
        try:
            await self._answer(MessageStream(stream, CAPACITY_MESSAGES))
        except (Broken, EndOfStream, TimeoutError):
            return  # the asker has gone
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
            return "it is still answering earlier questions from this node: try again later"
        self._asking[peer] += 1

        def release() -> None:
            self._asking[peer] -= 1
            self._asking += Counter()  # drops those at zero

        return release

    async def _answer(self, messages: MessageStream) -> None:
        # The question.
        async with asyncio.timeout(CAPACITY_ASK_SECONDS):
            asked = decode(await messages.receive())
        if not isinstance(asked, AskCapacity):
            raise RemoteProtocolError("capacity: expected `ask`", code="capacity")
        peer = messages.stream.peer
        # A measurement beside other programs needs the memory that is free now.
        devices = await self._devices(recent=asked.recent and not asked.measure)
        busy = self._is_busy()
        # Measure devices, then paths, unless a lease computes.
        lacks = asked.measure and self._speeds.lacks(devices, asked.timed)
        if lacks and not busy and self._asked.spend(peer, asyncio.get_running_loop().time()):
            await self._measure(messages, devices, asked.timed)
            busy = self._is_busy()
        if asked.measure and not busy:
            await self._prober.probe(other.peer for other in self._mesh.peers() if other.role == WORKER_ROLE)
        # The answer.
        paths = measured_paths(self._mesh.peers())
        answer = Capacity(
            devices=tuple(
                MeasuredDevice(device, self._speeds.known(device, asked.timed)) for device in devices
            ),
            machine=self._machine,
            paths=tuple(path for path, _ in paths),
            busy=busy,
            cpu_share=self._speeds.cpu_share,
            core_set=self._speeds.core_set,
            computed=self._computed(
                peer, asked.lease, [(begin / 1e6, end / 1e6) for begin, end in asked.spans]
            ),
            lacks=self._lacks(asked.marks) if asked.marks else b"",
            sealable=as_bits([self._may_seal(PeerId(path.peer)) for path, _ in paths]),
            wireless=as_bits(self._are_wireless([local for _, local in paths])),
        )
        await messages.send(answer.encode())

    async def _measure(
        self, messages: MessageStream, devices: Sequence[OfferedDevice], timed: Sequence[str]
    ) -> None:
        """Measure until all is known, or a lease computes here."""
        peer = messages.stream.peer

        async def on_progress(text: str) -> None:
            await messages.send(Measuring(text).encode())

        member = self._mesh.member(peer)
        asker = str(peer if member is None else member.chain.admitter)
        beside = self._is_lending()
        measure = self._speeds.measure(devices, timed, on_progress, asker=asker, beside_model=beside)
        try:
            async with Owner() as owner:
                measuring = owner.start(measure, name="measuring")
                computing = owner.start(self._until_busy(), name="computing")
                await asyncio.wait([measuring, computing], return_when=asyncio.FIRST_COMPLETED)
                owner.cancel()
        except ExceptionGroup as group:
            raise first_error(group) from None

    async def _until_busy(self) -> None:
        while not self._is_busy():  # noqa: ASYNC110 - frames pass by the thousand, and tell nobody
            await asyncio.sleep(_LOOK_SECONDS)


def measured_paths(peers: Sequence[PeerStatus]) -> tuple[tuple[MeasuredPath, str], ...]:
    """Return the paths that carry data now, the one with the shortest round trip first.

    With each goes the address of this machine (`host:port`) from which it leaves, empty if it does not.
    """
    found = []
    for peer in peers:
        path = next((path for path in peer.paths if path.selected), None)
        rtt = None if path is None else path.idle_rtt
        if path is not None and rtt is not None:
            measured = MeasuredPath(peer.peer.raw, max(0, int(rtt * 1e6)), int(path.rate or 0))
            found.append((measured, "" if path.link.path == LOOPBACK else path.link.local))
    return tuple(sorted(found, key=lambda each: each[0].rtt_us))[:MAX_CAPACITY_PATHS]
