"""Three nodes under anything that happens to nodes and cables: when it is over, all is as it should be."""

import asyncio
import itertools
import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from meshd.base.errors import Broken, Refused
from meshd.link.interface import LinkKind
from meshd.peer.interface import PeerState
from meshd.peer.path_selection import MOVE_PAUSE

from tests.sim.echo import exchange, serve_echo
from tests.sim.loop import run
from tests.sim.world import World, WorldNode

NAMES = ("anna", "bert", "carl")
ACTIONS = (
    "cut",
    "cut later",
    "stall",
    "unplug",
    "plug",
    "restart",
    "power off",
    "move",
    "sleep",
    "use",
    "garble",
    "wait",
)


class Chaos:
    """The nodes, and what may be done to them."""

    def __init__(self, world: World, seed: int, kinds: Sequence[LinkKind]) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.kinds = kinds
        self.nodes = [world.node(name, grace=20, kinds=kinds) for name in NAMES]
        for one, other in itertools.permutations(self.nodes, 2):
            one.knows(other)
        for node in self.nodes:
            self.begin(node)

    def begin(self, node: WorldNode) -> None:
        serve_echo(node)
        node.start()

    async def act(self, action: str) -> None:
        node, other = self.rng.sample(self.nodes, 2)
        cable = self.world.cable(node.name, other.name, self.rng.choice(self.kinds))
        match action:
            case "cut":
                cable.cut()
            case "cut later":
                cable.due.append(self.rng.randint(1, 5000))
            case "stall":  # what there is goes silent, new links flow
                cable.stall()
                cable.ups.clear()
                cable.downs.clear()
            case "unplug":
                cable.unplug()
            case "plug":
                cable.plug()
            case "restart" | "power off":
                await node.stop(cut=action == "restart")
                if action == "power off":
                    for third, kind in itertools.product(self.nodes, self.kinds):
                        if third is not node:
                            dead = self.world.cable(node.name, third.name, kind)
                            dead.ups.clear()
                            dead.downs.clear()
                await asyncio.sleep(self.rng.random() * 3)
                node.reborn()
                self.begin(node)
            case "sleep":
                node.boot_ahead += 100
            case "move":
                node.mesh.addresses_changed()
                node.mesh.record_changed()
            case "use":
                await self.use(node, other)
            case "garble":
                cable.garble = 1
            case "wait":
                await asyncio.sleep(self.rng.random() * 30)

    async def use(self, node: WorldNode, other: WorldNode) -> None:
        """A stream either breaks or brings back what was sent, whatever happens meanwhile."""
        try:
            stream = node.mesh.open_stream(other.peer, "echo", metadata={})
        except Broken:
            return

        async def talk() -> None:
            data = self.rng.randbytes(self.rng.randint(1, 200_000))
            try:
                assert await exchange(stream, data) == data
            except (Broken, Refused):
                pass

        self.world.owner.start(talk(), name="talk")
        await asyncio.sleep(0)

    async def settle(self) -> None:
        """No more of it, and time for every back-off and grace."""
        for (one, other), kind in itertools.product(itertools.combinations(self.nodes, 2), self.kinds):
            cable = self.world.cable(one.name, other.name, kind)
            cable.plug()
            cable.due.clear()
            cable.garble = 0
        await asyncio.sleep(200 if len(self.kinds) == 1 else 2 * MOVE_PAUSE)

    async def check(self) -> None:
        for one, other in itertools.permutations(self.nodes, 2):
            status = one.status_of(other)
            assert status.state is PeerState.CONNECTED, status
            assert [path.link.kind for path in status.paths] == [LinkKind.TCP], status
            ids = [near.mesh.table[far.peer].session_id for near, far in ((one, other), (other, one))]
            assert ids[0] == ids[1] != b""
            stream = one.mesh.open_stream(other.peer, "echo", metadata={})
            assert await exchange(stream, b"well" * 20_000) == b"well" * 20_000
            stream.write_eof()
        for node in self.nodes:
            assert len(node.mesh.peers()) == 2
            for dialer in node.dialers.values():
                dialer.dials = 0
        await asyncio.sleep(60)
        assert not any(dialer.dials for node in self.nodes for dialer in node.dialers.values())


@settings(max_examples=12)
@given(
    st.integers(0, 1 << 32),
    st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=25),
    st.sampled_from([(LinkKind.TCP,), (LinkKind.TCP, LinkKind.RELAY, LinkKind.WEBRTC)]),
)
def test_after_anything_all_nodes_are_connected_once_and_work(
    seed: int, actions: list[str], kinds: tuple[LinkKind, ...]
) -> None:
    async def main() -> None:
        async with World() as world:
            chaos = Chaos(world, seed, kinds)
            await asyncio.sleep(5)
            for action in actions:
                await chaos.act(action)
                await asyncio.sleep(chaos.rng.choice([0, 0, 0.01, 0.3, 2]))
            await chaos.settle()
            await chaos.check()

    run(main())
