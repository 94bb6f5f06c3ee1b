"""Joining over real TCP, in one process: what a newcomer keeps, and why it is turned away."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.admin.socket_path import SOCKET_NAME
from meshd.base import log
from meshd.base.errors import MeshdError, Refused, UserError
from meshd.base.tasks import Owner
from meshd.config.forms import HostPort
from meshd.config.tree import Config, LinksConfig, NodeConfig
from meshd.daemon.member_node import MemberNode
from meshd.daemon.mesh_port import MeshPort
from meshd.daemon.native import machine_id
from meshd.daemon.transports import enter
from meshd.identity.invite import parse_token
from meshd.identity.keys import KeyPair
from meshd.identity.keystore import Home
from meshd.link.secure.joining import Joining
from meshd.peer.dial_schedule import DialPlan
from meshd.peer.interface import PeerState
from meshd.peer.peer import Peer
from meshd.rendezvous.join_or_found import Entered
from meshd.wire.versions import NativeVersion

from tests.conformance.run import until

NATIVE = NativeVersion("mesh 4", "pin", "sources", "cpu")


@pytest.fixture
def informed() -> Iterator[None]:
    """The log tells what a daemon's does."""
    log.set_up()
    yield
    log.set_up(level="warning")


def config_of(name: str, join: str = "") -> Config:
    return replace(
        Config(),
        node=NodeConfig(name=name, join=join),
        links=LinksConfig(listen=HostPort("127.0.0.1", 0)),
    )


class Machine:
    """A home, and the member node of the daemon that runs in it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.home = Home(folder / name)
        self.name = name
        self.key: KeyPair = self.home.load_or_create_identity()

    async def enter(self, join: str = "", *, role: str = "worker") -> MemberNode:
        """As somebody who joins and does not stay."""
        member, entered = await self._enter(join, role)
        await entered.aclose()
        return member

    async def _enter(self, join: str, role: str) -> tuple[MemberNode, Entered[Joining]]:
        config = config_of(self.name, join)
        mesh_port = MeshPort(asked=config.links.listen, home=self.home)
        try:
            entered = await enter(self.home, self.key, config, role, mesh_port=mesh_port)
        except BaseException:
            mesh_port.close()
            raise
        member = MemberNode(
            config=config,
            home=self.home,
            key=self.key,
            entered=entered,
            role=role,
            native=NATIVE,
            mesh_port=mesh_port,
        )
        return member, entered

    @asynccontextmanager
    async def live(self, join: str = "") -> AsyncIterator[MemberNode]:
        member, _ = await self._enter(join, "worker")
        try:
            async with Owner() as owner:
                owner.start(member.serve(), name="peers")
                try:
                    yield member
                finally:
                    owner.cancel()
        finally:
            member.mesh_port.close()


async def sees(member: MemberNode, name: str) -> None:
    seen = -1
    async with asyncio.timeout(20):
        while not any(
            peer.name == name and peer.state is PeerState.CONNECTED for peer in member.mesh.peers()
        ):
            seen = await member.mesh.changed(seen)


def token_of(member: MemberNode) -> str:
    token = member.printed_token()
    assert token is not None
    return token


async def test_a_newcomer_joins_is_connected_and_needs_no_token_again(tmp_path: Path) -> None:
    founder, guest = Machine(tmp_path, "founder"), Machine(tmp_path, "guest")
    async with founder.live() as first:
        async with guest.live(token_of(first)) as second:
            assert second.membership.mesh == first.membership.mesh
            assert second.membership.roles == {"use", "work"}
            await sees(first, "guest")
            await sees(second, "founder")
        async with guest.live() as again:
            assert again.membership == second.membership
            await sees(again, "founder")
        assert first.invites.entries()[0].left == 9


async def test_the_pipe_of_the_joining_is_the_first_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Peer, "_dial_plan", lambda _self: DialPlan())  # nobody dials
    founder, guest = Machine(tmp_path, "founder"), Machine(tmp_path, "guest")
    async with founder.live() as first, guest.live(token_of(first)) as second:
        await sees(first, "guest")
        await sees(second, "founder")
        assert second.is_near(first.transports.candidates())
        # its record comes a moment after the link
        await until(lambda: guest.key.peer in first.book.peers(), seconds=20)
    again = await founder.enter()  # what it heard of the guest is kept
    again.mesh_port.close()
    assert guest.key.peer in again.book.peers()


async def test_with_the_token_again_the_membership_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], informed: None
) -> None:
    founder, guest = Machine(tmp_path, "founder"), Machine(tmp_path, "guest")
    async with founder.live() as first:
        token = token_of(first)
        (await guest.enter(token)).mesh_port.close()
    again = await guest.enter(token)  # nobody is there to ask
    again.mesh_port.close()
    assert founder.key.peer in again.book.peers()
    assert f"already a member of mesh `{again.membership.mesh.short}`" in capsys.readouterr().err


async def test_a_token_of_another_mesh_is_refused_with_the_remedy(tmp_path: Path) -> None:
    founder, other = Machine(tmp_path, "founder"), Machine(tmp_path, "other")
    async with founder.live() as first:
        (await other.enter()).mesh_port.close()
        other.home.write_blob("book", b"x")  # it knows others: who is alone may leave its mesh
        with pytest.raises(UserError, match="this node is in mesh") as caught:
            await other.enter(token_of(first))
        assert "meshd leave" in caught.value.hint


async def test_who_made_the_token_is_not_there(tmp_path: Path) -> None:
    founder, guest = Machine(tmp_path, "founder"), Machine(tmp_path, "guest")
    async with founder.live() as first:
        token = token_of(first)
    with pytest.raises(MeshdError, match="cannot reach the node that made the invite") as caught:
        await guest.enter(token)
    assert caught.value.hint
    assert guest.home.load_membership() is None


async def test_another_node_at_that_address_is_not_asked(tmp_path: Path) -> None:
    founder, squatter, guest = (Machine(tmp_path, name) for name in ("founder", "squatter", "guest"))
    async with founder.live() as first:
        token = token_of(first)
        port = first.mesh_port.listener.port
    squatter.home.write_blob("mesh-port", str(port).encode())
    async with squatter.live() as wrong:
        assert wrong.mesh_port.listener.port == port
        with pytest.raises(MeshdError, match="cannot reach"):
            await guest.enter(token)
        assert wrong.invites.entries() == ()


@pytest.mark.parametrize("why", ["used_up", "revoked"])
async def test_a_refusal_comes_with_reason_and_remedy(tmp_path: Path, why: str) -> None:
    founder, guest, late = (Machine(tmp_path, name) for name in ("founder", "guest", "late"))
    async with founder.live() as first:
        reply = first.authority.invite(
            now=int(time.time()),
            expires_s=3600,
            uses=1,
            roles=("use",),
            secret=secrets.token_bytes(16),
            candidates=first.transports.candidates(),
        )
        if why == "used_up":
            (await guest.enter(reply.token)).mesh_port.close()
        else:
            first.invites.revoke(first.invites.entries()[0].invite_id)
        with pytest.raises(Refused, match="not admitted") as caught:
            await late.enter(reply.token)
        assert caught.value.code == why and caught.value.hint
        assert late.home.load_membership() is None


async def test_a_founder_keeps_its_mesh_and_its_token(tmp_path: Path) -> None:
    founder = Machine(tmp_path, "founder")
    first = await founder.enter()
    token = token_of(first)
    first.mesh_port.close()
    again = await founder.enter()
    again.mesh_port.close()
    assert again.membership == first.membership
    assert parse_token(token_of(again)).secret == parse_token(token).secret


def test_nodes_of_one_mesh_on_one_machine_have_one_machine_id() -> None:
    assert machine_id(b"mesh") == machine_id(b"mesh") != machine_id(b"other")
    assert len(machine_id(b"mesh")) == 32


def test_llama_servers_socket_fits_where_the_control_socket_fits() -> None:
    assert len("llama.sock") <= len(SOCKET_NAME)
