"""Ask other members what their devices can lend, and how fast these devices are."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from meshd.base.errors import MeshdError, RemoteProtocolError
from meshd.base.peer_limits import CAPACITY_MESSAGES
from meshd.base.tasks import Owner, first_error
from meshd.identity.keys import PeerId
from meshd.peer.interface import Mesh
from meshd.peer.messages import MessageStream
from meshd.wire.capacity import CAPACITY_SERVICE, AskCapacity, Capacity, Measuring, decode

WORDLESS_SECONDS = 15.0  # without any message
MEASURED_WITHIN_SECONDS = 660.0  # with progress messages: two GPUs' drivers may compile first
GIVEN_UP = 0  # code of a reset stream that is no longer needed

OnProgress = Callable[[PeerId, str], None]


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
    return any(len({time.kind for time in one.times}) < timed for one in capacity.devices)


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
