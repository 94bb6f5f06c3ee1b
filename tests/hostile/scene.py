"""Two honest nodes with a live stream between them, and a third that is not honest.

The honest ones are real: mesh, news, book, signals, the lease's side of a worker, tunnels, circuits, relay
client, TCP, and what served.py has. Children are stubs, the clock is virtual, and outside is a network that
answers nothing.
"""

import asyncio
import functools
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from meshd.base.errors import MeshdError, UserError
from meshd.base.peer_limits import PASSED_ON_OF_PEER, TUNNELLED
from meshd.base.tasks import Owner
from meshd.gateway.access import ApiPort
from meshd.identity.invite import RelayHint, parse_relay_url
from meshd.identity.keys import PeerId
from meshd.identity.membership import Role
from meshd.link.interface import Link, LinkKind, Transport
from meshd.link.quic import engine as _  # noqa: F401 - else loaded in a thread, at whatever time
from meshd.link.quic.links import QuicDialer
from meshd.link.relayed.relay_client import RelayClient
from meshd.link.relayed.through_member import MemberRelayLinks
from meshd.link.relayed.through_relay import RelayLinks
from meshd.link.secure.handshake import RawPipe
from meshd.link.tcp.links import TcpDialer
from meshd.peer.interface import PeerState
from meshd.tunnel.user_tunnels import OwnTunnels
from meshd.wire.address import Candidate
from meshd.wire.dialable import Dialable, Here, Source, dialable
from meshd.worker.lending import Worker
from meshd.worker.worker_options import WorkerOptions

from tests.conformance.memory_link import MemoryDialer, MemoryNet
from tests.hostile.approach import EXPOSED, TOPICS
from tests.hostile.damage import Damage, Lines, resident_bytes, trim, why_forbidden
from tests.hostile.member import Mallory, Target
from tests.hostile.network import Dial, Noted, OutsideLoop
from tests.hostile.served import Served, free_port
from tests.hostile.turns import context_of
from tests.sim.echo import echo
from tests.sim.test_signals import PostOffice
from tests.sim.world import World, WorldDialer, WorldNode, apart
from tests.unit.head.fake_mesh import Net
from tests.unit.head.rig import Bench

LIVE = "live"
EXPOSED_PORT = 5432  # and the next
MOST_STALL_SECONDS = 1.0  # virtual
MOST_TURN_SECONDS = 1.0  # of computing, in which an honest node does nothing else
MOST_OF_A_CORE = 0.2  # of one honest node, by its own clock
MEASURED_SECONDS = 60.0  # of its clock, before that is compared
MOST_GROWTH_BYTES = 16 << 20  # of one honest node
CALM_LOOKS = 10  # without trimming, once it has shown that what was too much was free
MOST_LATER_BYTES = 16 << 20  # of the process, once all that has a bound is full
JOIN_SECONDS = 60.0
_STEP = 0.1


@functools.lru_cache(maxsize=512)
def _judged(candidates: tuple[Candidate, ...], source: Source) -> Sequence[Dialable]:
    return dialable(candidates, source=source, here=Here())


def _may_dial(_peer: PeerId, candidates: Sequence[Candidate], source: Source) -> Sequence[Dialable]:
    """Verdicts are remembered, as the daemon does it (rendezvous/book.py)."""
    return _judged(tuple(candidates), source)


class _Tcp:
    """One way, as the daemon has it: to nodes of the world in memory, to all others outside."""

    transport = Transport.TCP

    def __init__(self, inside: WorldDialer, outside: Noted, world: World) -> None:
        self._inside = inside
        self._outside = outside
        self._world = world

    async def dial(self, peer: PeerId, candidates: Sequence[Dialable]) -> Link:
        near = [one for one in candidates if one in self._world.listeners]
        return await (self._inside.dial(peer, near) if near else self._outside.dial(peer, candidates))


class Victim:
    """An honest node with everything that members reach."""

    def __init__(self, node: WorldNode, folder: Path, owner: Owner, office: PostOffice, api: ApiPort) -> None:
        self.node = node
        self.context = context_of(node.name)
        node.mail = office.of(node.peer)
        node.reborn()
        node.host.may_dial = _may_dial
        self._relays = RelayClient(
            (),
            node.handshake,
            relays_of=self._relays_of,
            allow=_named,
            environ={},
            rng=random.Random(f"relays of {node.name}").random,
        )
        rng = random.Random(f"members of {node.name}").random
        self.members = MemberRelayLinks(node.handshake, rng=rng)
        self._dial_outside()
        self.tunnels = OwnTunnels(mesh=node.mesh, save=lambda _blob: None)
        self.bench = Bench(Net(owner).mesh(node.name), folder)
        runtime = replace(self.bench.runtime, mesh=node.mesh)
        self.worker = Worker(runtime, [], WorkerOptions(machine="m", memory=1 << 30))
        self.served = Served(node, runtime, self.worker, folder / node.name, api)

    def _dial_outside(self) -> None:
        node = self.node
        relayed = RelayLinks(self._relays, node.handshake)
        tcp = _Tcp(node.dialer, Noted(TcpDialer(node.handshake), node.name), node.world)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, OutsideLoop)
        quic = Noted(QuicDialer(node.handshake, ports=loop.udp_port), node.name)
        # visits to relays have a share of their own
        node.mesh.table.dialers = (tcp, quic, relayed, self.members)
        for topic in TOPICS:
            node.signals.topic(topic)

    def _relays_of(self, peer: PeerId) -> tuple[RelayHint, ...]:
        """As rendezvous/book.py reads them."""
        record = self.node.book.record(peer)
        hints = []
        for url in record.relays if record is not None else ():
            try:
                hints.append(parse_relay_url(url))
            except UserError:
                continue
        return tuple(hints)

    def start(self, owner: Owner, hostile: PeerId, port: int) -> None:
        """Live, with a service that is exposed to the hostile one."""
        self.node.start()
        self.members.attach(self.node.mesh)
        self.tunnels.expose(EXPOSED, host="127.0.0.1", port=port, peers=[hostile])
        owner.start(self._relays.serve(), name=f"relays of {self.node.name}")
        owner.start(self.members.serve(self.node.mesh.accept), name=f"members of {self.node.name}")
        owner.start(self.tunnels.serve(), name=f"tunnels of {self.node.name}")
        owner.start(self.worker.serve(), name=f"worker of {self.node.name}")
        self.served.start(owner)


def _named(candidates: Iterable[Candidate]) -> list[Dialable]:
    """As rendezvous/book.py has it, for a node that knows nothing of its networks."""
    return dialable(candidates, source=Source.RECORD, here=Here())


class Live:
    """A stream from one honest node to the other and back, that always has something on its way."""

    def __init__(self, near: Victim, far: Victim) -> None:
        self._near, self._far = near, far
        self.longest = 0.0
        self.echoed = 0

    async def run(self) -> None:
        """Raises Damage when other bytes come back, or none for too long."""
        loop = asyncio.get_running_loop()
        try:
            stream = self._near.node.mesh.open_stream(self._far.node.peer, LIVE, metadata={})
            number = 0
            while True:
                number += 1
                sent = number.to_bytes(8, "big") * 128
                began, came = loop.time(), bytearray()
                await stream.write(sent)
                async with asyncio.timeout(60):
                    while len(came) < len(sent):
                        data = await stream.read()
                        came += data
                        stream.consumed(len(data))
                if came != sent:
                    raise Damage("the live stream gave other bytes than were sent")
                self.longest = max(self.longest, loop.time() - began)
                self.echoed += len(sent)
                if self.longest > MOST_STALL_SECONDS:
                    raise Damage(f"the live stream stood still for {self.longest:.1f} s")
                await asyncio.sleep(_STEP)
        except (MeshdError, TimeoutError) as error:
            raise Damage(f"the live stream ended: {error!r}") from error


class Scene:
    """All three; `check` raises Damage."""

    def __init__(
        self, world: World, victims: tuple[Victim, Victim], hostile: WorldNode, office: PostOffice
    ) -> None:
        self.world = world
        self.victims = victims
        self.hostile = hostile
        self.office = office
        self.live = Live(*victims)
        self.strange: list[str] = []  # what the loop was told of, and what no task may end with
        self.lines: Lines | None = None
        self._resident = self._most = self._calm = 0
        loop = asyncio.get_running_loop()
        assert isinstance(loop, OutsideLoop)
        self.loop, self._began = loop, loop.time()

    def target(self, victim: Victim) -> Target:
        """As the hostile member sees it."""
        node, hostile = victim.node, self.hostile

        def arrive(pipe: RawPipe) -> None:
            victim.context.copy().run(self.world.listeners[node.place], pipe)

        async def dial() -> Link:
            net = MemoryNet()  # with a wire for this link alone, which goes with it
            net.listeners = {node.place: arrive}
            return await MemoryDialer(net, hostile.handshake).dial(node.peer, [node.place])

        def post(blob: bytes) -> bool:
            box = self.office.boxes[node.peer]
            if box.full():
                return False
            box.put_nowait(blob)
            return True

        return Target(node.name, node.peer, lambda: node.node.services, dial, post)

    def mallory(self, rng: random.Random) -> Mallory:
        """The hostile member itself."""
        node = self.hostile
        return Mallory(node.key, node.chain, self.world.root.mesh, node.record(1).encode(), rng)

    def settle(self, *, full: bool) -> None:
        """From here on memory is compared; `full`: whatever may be kept of members is there already."""
        trim()
        self._most = MOST_LATER_BYTES if full else len(self.victims) * MOST_GROWTH_BYTES
        self._resident = resident_bytes()

    @property
    def growth(self) -> int:
        """Bytes of the process since `settle`."""
        return resident_bytes() - self._resident if self._resident else 0

    def check(self, *, last: bool = False) -> None:
        """Both alive and whole, nothing dialled that may not be, memory in its bounds. Raises Damage."""
        if self.strange:
            raise Damage(self.strange[0])
        for victim in self.victims:
            if not victim.node.is_alive:
                raise Damage(f"{victim.node.name} has ended")
        self._check_dials()
        self._check_computing()
        self._forget()
        self._check_memory(last=last)
        for victim in self.victims:
            self._check_shares(victim)
        if self.lines is not None and self.lines.failures:
            raise Damage(f"a failure that nobody foresaw: {self.lines.failures[0]}")

    def _check_memory(self, *, last: bool) -> None:
        self._calm = 0 if last else max(0, self._calm - 1)
        if self._calm or self.growth <= self._most:
            return
        trim()
        self._calm = CALM_LOOKS
        if self.growth > self._most:
            raise Damage(f"the process grew by {self.growth >> 20} MiB")

    def _forget(self) -> None:
        """Drop what the stubs and the loop have written down: no honest node has that."""
        self.loop.dials.clear()
        self.office.seen.clear()
        for victim in self.victims:
            victim.bench.forget()

    def _check_dials(self) -> None:
        loop = self.loop
        for dial in loop.dials:
            if dial in loop.slow:
                continue
            why = why_forbidden(dial.host)
            if why:
                raise Damage(f"a node dialled {dial.proto} {dial.host}:{dial.port}, {why}")
        if loop.too_many:
            raise Damage(loop.too_many[0])
        most = max(loop.most_waiting.values(), default=0)
        if most > TUNNELLED.most:
            raise Damage(f"{most} connections to an exposed service at once")

    def _check_computing(self) -> None:
        if self.loop.turns.longest > MOST_TURN_SECONDS:
            raise Damage(f"a node computed for {self.loop.turns.longest:.1f} s on end")
        share = self.share_of_a_core
        if self.loop.time() - self._began >= MEASURED_SECONDS and share > MOST_OF_A_CORE:
            raise Damage(f"a node takes {share:.0%} of a core")

    @property
    def share_of_a_core(self) -> float:
        """The share of a core that the busier of the honest nodes has taken so far."""
        seconds = max(self.loop.time() - self._began, 0.001)
        return max(self.loop.turns.spent.values(), default=0.0) / seconds

    def _check_shares(self, victim: Victim) -> None:
        node, other = victim.node, self.victims[victim is self.victims[0]].node
        try:
            meant = node.mesh.find(str(other.peer))
        except UserError as error:
            raise Damage(f"an id is not known any more: {error.what}") from error
        if meant != other.peer:
            raise Damage(f"the id of {other.name} means {meant.short}")
        passed_on = victim.members._passed_on._taken[self.hostile.peer]
        if passed_on > PASSED_ON_OF_PEER.most:
            raise Damage(f"{passed_on} circuits of one member")


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Scene]:
    """Connected, and the stream running."""
    async with World() as world:
        office = PostOffice()
        near, far = apart(world, kinds=(LinkKind.TCP,))
        hostile = world.node("mallory", roles=frozenset({Role.USE, Role.WORK, Role.INVITE}))
        victims = (
            Victim(near, folder, world.owner, office, await free_port()),
            Victim(far, folder, world.owner, office, await free_port()),
        )
        it = Scene(world, victims, hostile, office)
        it.loop.slow = {Dial("tcp", "127.0.0.1", EXPOSED_PORT + number) for number in range(2)}
        it.loop.set_exception_handler(lambda _loop, context: it.strange.append(_shown(context)))
        far.mesh.handle(
            LIVE, echo, allow=lambda member, _metadata: None if member.peer == near.peer else "no"
        )
        for number, (victim, other) in enumerate((victims, victims[::-1])):
            victim.node.knows(other.node, hostile)
            victim.context.copy().run(victim.start, world.owner, hostile.peer, EXPOSED_PORT + number)
        await near.sees(far, PeerState.CONNECTED)
        await far.sees(near, PeerState.CONNECTED)
        world.owner.start(it.live.run(), name="live stream")
        yield it


async def newcomer(scene: Scene) -> None:
    """After all that an honest node joins, and both take it. Raises Damage."""
    fresh = scene.world.node("carla")
    fresh.knows(*(victim.node for victim in scene.victims))
    fresh.start()
    for victim in scene.victims:
        try:
            await fresh.sees(victim.node, PeerState.CONNECTED, seconds=JOIN_SECONDS)
        except TimeoutError as error:
            raise Damage(f"{victim.node.name} takes no newcomer") from error


def _shown(context: dict[str, object]) -> str:
    return f"{context.get('message')}: {context.get('exception')!r}"
