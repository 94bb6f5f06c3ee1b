"""Nodes of one name: said once in the log, and told apart where only one of them can be meant."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
from meshd.admin.api import TunnelCloseRequest
from meshd.base.errors import UserError
from meshd.base.tasks import Owner
from meshd.daemon import shared_names
from meshd.daemon.tunnels import TunnelAnswers
from meshd.identity.keys import KeyPair, PeerId
from meshd.peer.interface import PeerState, PeerStatus
from meshd.peer.mesh import PeerMesh, find
from meshd.tunnel.interface import TunnelStatus
from meshd.tunnel.user_tunnels import OwnTunnels

from tests.conformance.run import run, until

ME, ONE, OTHER = (KeyPair.from_seed(bytes([number]) * 32).peer for number in (1, 2, 3))


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
    monkeypatch.setattr(shared_names, "_LOOK_SECONDS", 0.0)

    async def main() -> None:
        mesh = FakeMesh()
        async with Owner() as owner:
            owner.start(shared_names.watch_names(cast(PeerMesh, mesh), ME, "desk"), name="names")
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
