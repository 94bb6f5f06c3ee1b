"""A port of a real router: asked for in each language, used from outside, renewed, taken away."""

import asyncio
import select
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.tasks import Owner
from meshd.portmap import mapper
from meshd.portmap.interface import GatewayRoute, HomeRouter, Language, MapState, MapStatus
from meshd.portmap.mapper import PortMapper, find_route, home_routers
from meshd.wire.address import Proto
from meshd.wire.portmap import Granted, Wish

from tests.netns import home_router, probe
from tests.netns.agent import Settings, agent
from tests.netns.home_router import miniupnpd
from tests.netns.nat import Nat
from tests.netns.world import Host, World

PORT = 17430
PORTS: tuple[tuple[Proto, int], ...] = (("tcp", PORT), ("udp", PORT))
SECONDS = 20.0
pytestmark = pytest.mark.skipif(bool(home_router.skip_reason()), reason=home_router.skip_reason())


_routers = home_routers(secret=b"s" * 16, name="pc", random_port=lambda: 5)


class _Counted:
    """A router as it is, and a note of each mapping that it grants."""

    def __init__(self, router: HomeRouter, granted: Callable[[tuple[Proto, int]], None]) -> None:
        self._router = router
        self._granted = granted
        self.language = router.language
        self.probe, self.unmap, self.pulse = router.probe, router.unmap, router.pulse

    async def map(self, wish: Wish) -> Granted:
        granted = await self._router.map(wish)
        self._granted((wish.proto, wish.internal_port))
        return granted


class Mapping:
    """A mapper in a thread inside a host's namespace."""

    def __init__(self, languages: tuple[Language, ...]) -> None:
        self._languages = languages
        self._settled = threading.Condition()
        self._asked = Counter[tuple[Proto, int]]()  # mappings, first ones and renewals, by what is mapped
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owner: Owner | None = None
        self.mapper = PortMapper(
            ports=lambda: PORTS,
            routers=self._routers,
            changed=lambda: None,
            settled=self._notify,
        )

    def _routers(self, route: GatewayRoute) -> tuple[HomeRouter, ...]:
        return tuple(_Counted(one, self._count) for one in _routers(route) if one.language in self._languages)

    def _count(self, port: tuple[Proto, int]) -> None:
        with self._settled:
            self._asked[port] += 1
            self._settled.notify_all()

    def _notify(self) -> None:
        with self._settled:
            self._settled.notify_all()

    def run(self) -> None:
        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            async with Owner() as owner:
                self._owner = owner
                owner.start(self.mapper.serve(), name="mapper")

        asyncio.run(main())

    def wait(self, done: Callable[[MapStatus], bool]) -> MapStatus:
        """The status when it is so."""
        with self._settled:
            assert self._settled.wait_for(lambda: done(self.mapper.status()), SECONDS), self.mapper.status()
        return self.mapper.status()

    def wait_granted(self, times: int) -> None:
        """Return when the router has granted each port so often."""

        def enough() -> bool:
            return len(self._asked) == len(PORTS) and min(self._asked.values()) >= times

        with self._settled:
            assert self._settled.wait_for(enough, SECONDS), self._asked

    def poke(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self.mapper.poke)

    def end(self) -> None:
        assert self._loop is not None and self._owner is not None
        self._loop.call_soon_threadsafe(self._owner.cancel)


@contextmanager
def mapping(host: Host, *languages: Language) -> Iterator[Mapping]:
    """Serve until the block ends."""
    made = Mapping(languages or tuple(Language))
    thread = threading.Thread(target=lambda: host.space.call(made.run), name="mapper")
    thread.start()
    try:
        yield made
    finally:
        made.end()
        thread.join(SECONDS)
        assert not thread.is_alive()


def _reached(outside: Host, inside: Host, address: str, port: int = PORT) -> bool:
    """Return True if a connection from outside to the router's port comes in."""
    with probe.tcp_listener(inside, inside.address, port) as listener, probe.tcp_socket(outside) as ours:
        ours.setblocking(False)
        ours.connect_ex((address, port))
        probe.fence(inside, outside)
        return bool(select.select([listener], [], [], 0.2)[0])


@pytest.mark.parametrize("language", Language)
def test_each_language(world: World, monkeypatch: pytest.MonkeyPatch, language: Language) -> None:
    monkeypatch.setattr(mapper, "_FAREWELL_SECONDS", SECONDS)  # a busy router takes its time
    outside = world.public("outside")
    router = world.router("home", Nat.PORT_RESTRICTED)
    inside = router.host("pc")
    assert not _reached(outside, inside, router.outer)
    with miniupnpd(router):
        with mapping(inside, language) as made:
            status = made.wait(lambda status: status.state is MapState.MAPPED)
            assert (status.language, status.external) == (language, router.outer)
            assert [(one.host, one.port, one.proto) for one in status.mappings] == [
                (router.outer, PORT, "tcp"),
                (router.outer, PORT, "udp"),
            ]
            assert _reached(outside, inside, router.outer)
        assert not _reached(outside, inside, router.outer), "the mapping stayed behind"


@pytest.mark.parametrize(
    ("binary", "upnp", "best"), [(True, True, Language.PCP), (False, True, Language.UPNP)]
)
def test_the_best_language_that_the_router_speaks(
    world: World, binary: bool, upnp: bool, best: Language
) -> None:
    router = world.router("home")
    with miniupnpd(router, binary=binary, upnp=upnp), mapping(router.host("pc")) as made:
        assert made.wait(lambda status: status.state is MapState.MAPPED).language is best


@pytest.mark.parametrize("language", Language)
def test_a_restarted_router_is_asked_again(world: World, language: Language) -> None:
    outside = world.public("outside")
    router = world.router("home")
    inside = router.host("pc")
    with ExitStack() as stack:
        with miniupnpd(router):
            made = stack.enter_context(mapping(inside, language))
            made.wait(lambda status: status.state is MapState.MAPPED)
        assert not _reached(outside, inside, router.outer)
        with miniupnpd(router):
            made.poke()
            made.wait_granted(times=2)
            assert _reached(outside, inside, router.outer)


@pytest.mark.parametrize("language", Language)
def test_a_mapping_lives_by_its_renewals(
    world: World, monkeypatch: pytest.MonkeyPatch, language: Language
) -> None:
    monkeypatch.setattr(mapper, "LIFETIME", 2)
    monkeypatch.setattr(mapper, "SHORTEST_LIFETIME", 1)
    outside = world.public("outside")
    router = world.router("home", Nat.PORT_RESTRICTED)
    inside = router.host("pc")

    async def map_once(port: int) -> Granted:
        [asked] = [one for one in _routers(await find_route()) if one.language is language]
        await asked.probe()
        return await asked.map(Wish(proto="tcp", internal_port=port, external_port=port, lifetime=2))

    with miniupnpd(router, shortest=1):
        granted = inside.space.call(lambda: asyncio.run(map_once(PORT + 1)))
        assert (granted.external_host, granted.external_port) == (router.outer, PORT + 1)
        assert _reached(outside, inside, router.outer, PORT + 1)
        with mapping(inside, language) as made:
            made.wait(lambda status: status.state is MapState.MAPPED)
            made.wait_granted(times=6)  # one each second: longer than the first one lasted
            assert made.mapper.status().state is MapState.MAPPED
            assert _reached(outside, inside, router.outer)
            assert not _reached(outside, inside, router.outer, PORT + 1), "nobody has renewed that one"


def test_a_router_behind_a_carrier_is_not_used(world: World) -> None:
    carrier = world.router("carrier", carrier=True)
    router = world.router("home", behind=carrier)
    with miniupnpd(router), mapping(router.host("pc")) as made:
        status = made.wait(lambda status: status.state not in (MapState.ASKING, MapState.MAPPED))
        assert not status.mappings
        assert status.state in (MapState.BEHIND_NAT, MapState.REFUSED), status


def test_a_node_joins_and_connects_by_a_mapped_port(world: World, tmp_path: Path) -> None:
    """Both behind symmetric NATs that nothing punches: the router's port is the only direct way."""
    router = world.router("home", Nat.SYMMETRIC_RANDOM)
    far = world.router("far", Nat.SYMMETRIC_RANDOM).host("far-pc")
    plain = Settings(kinds=("tcp",))
    with (
        miniupnpd(router),
        agent(router.host("pc").space, tmp_path / "one", replace(plain, portmap=True)) as one,
        agent(far.space, tmp_path / "two", replace(plain, join=one.token)) as two,
    ):
        for end in (one, two):
            end.connected("mapped")
        two.echo(100_000)
        seen = two.selected()
        assert seen is not None and seen.remote.startswith(f"{router.outer}:")
