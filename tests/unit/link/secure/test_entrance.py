"""Who comes in at a listener: in time, proven, and what it costs an address to prove nothing."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import pytest
from meshd.base.errors import Broken, MeshdError
from meshd.base.tasks import Owner
from meshd.identity.proof import Proven, Purpose
from meshd.link.interface import Link
from meshd.link.secure.caller_rates import Callers
from meshd.link.secure.entrance import Arrival, Entrance
from meshd.link.secure.handshake import prove_dialled

from tests.conformance.memory_link import MemoryPipe, MemoryWire
from tests.conformance.nodes import Node, TestMesh

pytestmark = pytest.mark.virtual

HOST, PORT, SECONDS = "192.0.2.7", 40000, 5.0


class Counted(Callers):
    """Notes whose address is charged."""

    def __init__(self) -> None:
        super().__init__()
        self.charged: list[tuple[str, int]] = []

    def failed(self, host: str, now: float, port: int = 0) -> None:
        self.charged.append((host, port))


class DoorPipe:
    """An IncomingPipe in memory: encrypted after so many seconds, None: never."""

    remote = f"{HOST}:{PORT}"

    def __init__(self, below: MemoryPipe, secured_after: float | None) -> None:
        self._after = secured_after
        self.wide = False
        self.ended: list[str] = []
        self.below = below
        self.send, self.try_send, self.receive = below.send, below.try_send, below.receive

    def divert(self, take: Callable[[bytes], bool]) -> None:
        """Never asks."""

    async def secure(self) -> None:
        await asyncio.sleep(1e6 if self._after is None else self._after)

    def widen(self) -> None:
        self.wide = True

    def abort(self) -> None:
        self.ended.append("abort")

    async def aclose(self) -> None:
        self.ended.append("close")
        await self.below.aclose()


class Scene:
    """A listener's entrance, and one that comes to it."""

    def __init__(self, *, member: bool = True) -> None:
        mesh = TestMesh()
        self.caller = mesh.node()
        self.host = mesh.node() if member else mesh.stranger()
        self.callers = Counted()
        self.host.handshake = replace(self.host.handshake, callers=self.callers)
        self.entrance = Entrance(self.host.now, on_joiner=None, proof_seconds=SECONDS)
        self.links: list[Proven] = []
        self.there: MemoryPipe | None = None

    def come(self, owner: Owner, *, secured_after: float | None = 0.1, blames: bool = True) -> DoorPipe:
        self.there, here = MemoryWire().pipes()
        pipe = DoorPipe(here, secured_after)
        arrival = Arrival(pipe, HOST, self._make_link, lambda secured: blames and secured, PORT)
        self.entrance.arrive(arrival, self._accept, owner, name="test")
        return pipe

    async def prove(self, near: Node, purpose: Purpose = Purpose.MEMBER) -> None:
        assert self.there is not None
        await prove_dialled(
            self.there,
            handshake=near.handshake,
            expect=self.host.peer,
            purpose=purpose,
            binding=self.entrance.certificate.sha256,
        )

    def _make_link(self, proven: Proven) -> Link:
        self.links.append(proven)
        return cast(Link, object())

    async def _accept(self, link: Link) -> None:
        await asyncio.sleep(60)


async def test_a_member_is_handed_up_as_a_link_and_closed_when_that_is_over() -> None:
    scene = Scene()
    async with Owner() as owner:
        pipe = scene.come(owner)
        assert len(scene.entrance.unproven) == 1
        await scene.prove(scene.caller)
        await asyncio.sleep(1)
        assert [proven.peer for proven in scene.links] == [scene.caller.peer]
        assert pipe.wide and pipe.ended == [] and len(scene.entrance.unproven) == 0
        await asyncio.sleep(60)
        assert "close" in pipe.ended
    assert scene.callers.charged == []


@pytest.mark.parametrize(
    ("secured_after", "blames", "charged"),
    [
        (0.1, True, [(HOST, PORT)]),
        (0.1, False, []),
        (None, True, []),  # it may be anywhere
    ],
)
async def test_who_proves_nothing_is_closed_in_time_and_its_address_pays_if_it_was_there(
    secured_after: float | None, blames: bool, charged: Sequence[tuple[str, int]]
) -> None:
    scene = Scene()
    async with Owner() as owner:
        pipe = scene.come(owner, secured_after=secured_after, blames=blames)
        await asyncio.sleep(SECONDS - 0.5)
        assert pipe.ended == []
        await asyncio.sleep(1)
        assert "close" in pipe.ended and len(scene.entrance.unproven) == 0
    assert scene.links == [] and not pipe.wide
    assert scene.callers.charged == charged


async def test_a_node_that_is_no_member_yet_proves_nothing_and_lets_nobody_in() -> None:
    scene = Scene(member=False)
    async with Owner() as owner:
        pipe = scene.come(owner)
        with pytest.raises(MeshdError):
            await scene.prove(scene.caller)
        assert "close" in pipe.ended
    assert scene.links == [] and scene.callers.charged == []


async def test_who_comes_while_all_ends_is_dropped() -> None:
    scene = Scene()
    pipes: list[DoorPipe] = []

    async def listening(owner: Owner) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            pipes.append(scene.come(owner))

    with pytest.raises(ExceptionGroup):
        async with Owner() as owner:
            owner.start(listening(owner), name="listening")
            await asyncio.sleep(1)
            raise Broken("the node ends")
    assert [pipe.ended for pipe in pipes] == [["abort"]] and len(scene.entrance.unproven) == 0


async def test_what_is_cancelled_before_its_first_step_is_dropped_too() -> None:
    scene = Scene()
    async with Owner() as owner:
        pipe = scene.come(owner)
        owner.cancel()
    assert "abort" in pipe.ended and len(scene.entrance.unproven) == 0
