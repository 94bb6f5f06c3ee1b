"""Asks other members what their devices could lend, and how fast they are."""

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

WORDLESS_SECONDS = 15.0  # without a word
MEASURED_WITHIN_SECONDS = 300.0  # with them: a GPU's driver may compile first
GIVEN_UP = 0  # code of a stream that is not needed any more

OnProgress = Callable[[PeerId, str], None]


@dataclass(frozen=True, slots=True)
class CapacityAnswer:
    """What one node said; or why it said nothing."""

    capacity: Capacity | None = None
    why_not: str = ""


async def ask_capacity(
    mesh: Mesh, peer: PeerId, asked: AskCapacity, on_progress: Callable[[str], None]
) -> Capacity:
    """What one node says. Raises Broken, EndOfStream, Refused, RemoteProtocolError, TimeoutError."""
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
    """Of each node what it knows. `measure`: those that lack times of devices, or rates of the paths between
    these nodes, measure them then, one by one on each machine, as two at the same time disturb each other.
    `recent` and `marks` as in AskCapacity. `before_measuring` is awaited before anybody is asked to.
    """
    found: dict[PeerId, CapacityAnswer] = {}
    known = AskCapacity(tuple(timed), recent=recent, marks=marks)
    await _ask(mesh, [list(peers)], known, found, on_progress, at_once=True)
    if before_measuring is not None:
        await before_measuring()
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
    """Whether its path to some of `peers` was never seen full."""
    asked = {peer.raw for peer in peers}
    return any(path.rate == 0 and path.peer in asked for path in capacity.paths)


def lacks_times(capacity: Capacity, timed: int) -> bool:
    """Whether some device was not measured with all that was asked."""
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
