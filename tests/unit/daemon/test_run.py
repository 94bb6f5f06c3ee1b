"""A daemon from its start: what it finds before anything is fetched."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from meshd.admin.api import PauseRequest, TunnelCloseRequest
from meshd.admin.client import ask
from meshd.admin.socket_path import SOCKET_NAME
from meshd.base.errors import UserError
from meshd.base.tasks import Owner, first_error
from meshd.config.forms import HostPort
from meshd.config.serve_settings import ClientConfig
from meshd.config.tree import Config, LinksConfig, Paths, WorkerConfig
from meshd.daemon.control import TunnelAnswers
from meshd.daemon.fetching import Fetching
from meshd.daemon.run import Daemon, watch_names
from meshd.devices.interface import NativeBuild
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.keystore import Home, Membership
from meshd.identity.membership import Chain, Role, issue
from meshd.peer.interface import PeerState, PeerStatus
from meshd.peer.local_member import LocalMember
from meshd.peer.mesh import PeerMesh, find
from meshd.tunnel.interface import TunnelStatus
from meshd.tunnel.user_tunnels import OwnTunnels
from meshd.worker.cycle import Worker

from tests.conformance.run import run, until
from tests.unit.daemon.test_preflight import model, native

ME, ONE, OTHER = (KeyPair.from_seed(bytes([number]) * 32).peer for number in (1, 2, 3))


def joined(folder: Path, *roles: Role) -> Home:
    """The home of a member with these roles."""
    home, top = Home(folder), Home(folder / "founder").found_mesh(now=int(time.time()))
    assert top.root_seed is not None
    leaf = issue(
        signer=KeyPair.from_seed(top.root_seed),
        mesh=top.mesh,
        node=home.load_or_create_identity().peer,
        roles=roles,
        serial=b"s" * 16,
        invite=b"i" * 8,
        issued_at=int(time.time()),
    )
    home.save_membership(Membership(top.mesh, Chain((leaf,), top.root), inviter=top.root))
    return home


def daemon_in(folder: Path, monkeypatch: pytest.MonkeyPatch, role: str, *roles: Role) -> Daemon:
    """A member with these roles, which wants a model that is not here."""

    async def found(_daemon: Daemon) -> NativeBuild:
        return native(folder)

    monkeypatch.setattr(Daemon, "_find_native", found)
    home = joined(folder / "home", *roles)
    config = replace(
        Config(),
        links=LinksConfig(listen=HostPort("127.0.0.1", 0), stun=()),
        client=ClientConfig(port=0),
        worker=WorkerConfig(models=("mesh:far",)),
        paths=Paths(home=home.path, cache=folder / "cache"),
    )
    return Daemon(config, role, home, out=print, note=print)


@pytest.mark.parametrize(
    ("role", "roles", "lacking"), [("worker", (Role.USE,), "work"), ("client", (Role.WORK,), "use")]
)
def test_a_node_that_may_not_have_its_role_fetches_nothing_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str, roles: tuple[Role, ...], lacking: str
) -> None:
    async def fetch(_fetching: Fetching) -> Config:
        raise AssertionError("it fetches a model that it will not use")

    monkeypatch.setattr(Fetching, "run", fetch)
    daemon = daemon_in(tmp_path, monkeypatch, role, *roles)
    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(asyncio.wait_for(daemon.main(), 20))
    error = first_error(caught.value)
    assert isinstance(error, UserError) and f"its certificate lacks the role `{lacking}`" in error.what


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_pause_holds_while_the_worker_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_paused: bool
) -> None:
    """Its devices are listed once it takes leases, which lasts a moment, with the network up. Until then
    peers are told that it fetches, unless its user has paused it.
    """
    file = model(tmp_path)
    daemon = daemon_in(tmp_path, monkeypatch, "worker", Role.WORK)
    pauses: list[bool] = []
    made: list[LocalMember] = []
    original = LocalMember.__init__

    def make(local: LocalMember, *args: Any, **options: Any) -> None:
        original(local, *args, **options)
        made.append(local)

    async def fetch(fetching: Fetching) -> Config:
        if is_paused:
            while not (home / SOCKET_NAME).exists():  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
            await asyncio.to_thread(ask, home, PauseRequest())
        assert [(one.record.is_paused, one.record.is_fetching) for one in made] == [(True, not is_paused)]
        return replace(daemon._config, worker=WorkerConfig(models=(file,)))

    async def prepare(worker: Worker) -> None:
        pauses.append(worker.pause.is_on)
        daemon._stop("seen")

    home = tmp_path / "home"
    monkeypatch.setattr(LocalMember, "__init__", make)
    monkeypatch.setattr(Fetching, "run", fetch)
    monkeypatch.setattr(Worker, "prepare", prepare)
    assert asyncio.run(asyncio.wait_for(daemon.main(), 20)) == 0
    assert pauses == [is_paused]


def status(peer: PeerId, name: str) -> PeerStatus:
    return PeerStatus(
        peer=peer,
        name=name,
        role="worker",
        state=PeerState.CONNECTED,
        paths=(),
        native=None,
        software="",
        resumes=0,
        since=0.0,
        last_error="",
        clock_offset=None,
    )


@dataclass
class FakeMesh:
    """Peers by name; `changes` is how often they were others."""

    called: dict[PeerId, str] = field(default_factory=dict)
    changes: int = 0
    looked: int = 0
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    def peers(self) -> list[PeerStatus]:
        self.looked += 1
        return [status(peer, name) for peer, name in self.called.items()]

    async def changed(self, seen: int) -> int:
        while self.changes <= seen:
            self.moved.clear()
            await self.moved.wait()
        return self.changes

    async def change(self, **names: str) -> None:
        """Rename, and wait until it was looked at."""
        self.called = {ONE: names["one"], OTHER: names["other"]}
        self.changes += 1
        self.moved.set()
        before = self.looked
        await until(lambda: self.looked > before, seconds=20)

    def find(self, text: str, also: Sequence[PeerId] = ()) -> PeerId:
        return find(text, me=ME, names=dict.fromkeys(also, "") | self.called | {ME: "desk"})


def test_nodes_of_one_name_are_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("meshd.daemon.run._LOOK_SECONDS", 0.0)

    async def main() -> None:
        mesh = FakeMesh()
        async with Owner() as owner:
            owner.start(watch_names(cast(PeerMesh, mesh), ME, "desk"), name="names")
            await mesh.change(one="garage", other="attic")
            assert "name_shared" not in capsys.readouterr().err
            await mesh.change(one="garage", other="desk")
            await mesh.change(one="cellar", other="desk")
            said = capsys.readouterr().err
            assert said.count("name_shared") == 1
            assert all(word in said for word in ("`desk`", ME.short, OTHER.short))
            await mesh.change(one="desk", other="desk")  # another set
            await mesh.change(one="desk", other="desk")
            assert "3 nodes are called" in capsys.readouterr().err
            owner.cancel()

    run(main())


@dataclass
class FakeTunnels:
    """Those that are open."""

    to: list[tuple[PeerId, str]]

    def opened(self) -> list[TunnelStatus]:
        return [
            TunnelStatus(
                peer=peer,
                service=service,
                listen=f"127.0.0.1:{4000 + at}",
                streams=0,
                sent_bytes=0,
                received_bytes=0,
                user=True,
            )
            for at, (peer, service) in enumerate(self.to)
        ]

    def exposed(self) -> list[object]:
        return []

    async def close(self, tunnels: Sequence[TunnelStatus]) -> None:
        for one in tunnels:
            self.to.remove((one.peer, one.service))


def test_a_tunnel_is_closed_by_a_name_that_only_one_tunnel_fits() -> None:
    async def main() -> None:
        mesh = FakeMesh({ONE: "vm", OTHER: "vm"})
        tunnels = FakeTunnels([(ONE, "web"), (OTHER, "db"), (ONE, "db")])
        answers = TunnelAnswers(cast(PeerMesh, mesh), cast(OwnTunnels, tunnels))
        closed = await answers.close_tunnels(TunnelCloseRequest(peer="vm", service="web"))
        assert [view.peer for view in closed.tunnels] == [str(ONE)]
        with pytest.raises(UserError, match="`vm` matches 2 nodes"):
            await answers.close_tunnels(TunnelCloseRequest(peer="vm", service="db"))
        await answers.close_tunnels(TunnelCloseRequest(peer=OTHER.short, service="db"))
        assert tunnels.to == [(ONE, "db")]

    run(main())
