"""A member with an ordinary token whose record names a relay that no resolver takes: everybody lives on."""

import asyncio
from pathlib import Path

import pytest
from meshd.config.forms import HostPort
from meshd.config.tree import LinksConfig
from meshd.daemon.member_node import MemberNode
from meshd.identity.invite import split_place
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.record import PeerRecord
from meshd.peer.interface import PeerState

from tests.conformance.run import run
from tests.e2e.bare_node import bare_node, connected

RELAY_KEY = KeyPair.from_seed(bytes(32)).peer
BAD_RELAYS = (f"relay://{RELAY_KEY}@.x:443", f"relay://{RELAY_KEY}@{'a' * 64}.x:443")


def links() -> LinksConfig:
    """TCP and relays, on this machine alone."""
    return LinksConfig(listen=HostPort("127.0.0.1", 0), kinds=("tcp", "relay"), stun=(), no_mdns=True)


def bad_record(member: MemberNode) -> PeerRecord:
    """As a modified node signs it: no address at all, so that only its relays are left to dial."""
    return PeerRecord.sign(
        member._key,
        chain=member.membership.chain,
        name="hostile",
        role="client",
        sequence=1 << 40,
        relays=BAD_RELAYS,
    )


async def heard(member: MemberNode, peer: PeerId) -> None:
    """Until the record is in its book."""
    seen = -1
    while (record := member.book.record(peer)) is None or not record.relays:
        seen = await member.mesh.changed(seen)


async def dialled(member: MemberNode, peer: PeerId) -> None:
    """Until it has tried to reach that peer, and failed."""
    async with asyncio.timeout(20):
        while not any(one.peer == peer and one.last_error for one in member.mesh.peers()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def ping(near: MemberNode, name: str) -> None:
    await near.mesh.ping(await connected(near, name), 5.0)


async def meet_the_hostile_one(folder: Path, token: str, *others: MemberNode) -> PeerId:
    """It joins, says its record to everybody, and is gone."""
    async with bare_node(folder / "hostile", token=token, name="hostile", links=links()) as hostile:
        peer = hostile.node.peer
        for name in ("victim", "innocent"):
            await connected(hostile, name)
        hostile.local.record = bad_record(hostile)
        hostile.mesh.record_changed()
        for other in others:
            await heard(other, peer)
    return peer


@pytest.mark.parametrize("checked", [True, False], ids=["as it is", "without the check of names"])
def test_members_live_through_it_and_through_a_restart(
    checked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not checked:  # the boundary holds by itself: TLS is then given the name as it came
        monkeypatch.setattr("meshd.identity.invite.why_no_host", lambda _host: "")
        assert split_place(".x:443") == (".x", 443)

    async def work() -> None:
        async with bare_node(tmp_path / "victim", name="victim", links=links()) as victim:
            token = victim.printed_token()
            assert token
            async with bare_node(
                tmp_path / "innocent", token=token, name="innocent", links=links()
            ) as innocent:
                await connected(innocent, "victim")
                peer = await meet_the_hostile_one(tmp_path, token, victim, innocent)
                for one in (victim, innocent):
                    await dialled(one, peer)
                await ping(victim, "innocent")
        # each starts again with the record in its book, and without the one that made it
        async with (
            bare_node(tmp_path / "victim", name="victim", links=links()) as victim,
            bare_node(tmp_path / "innocent", name="innocent", links=links()) as innocent,
        ):
            assert victim.book.record(peer) is not None
            for one in (victim, innocent):
                await dialled(one, peer)
            await ping(innocent, "victim")
            assert all(
                status.state is not PeerState.CONNECTED or status.peer != peer
                for status in victim.mesh.peers()
            )

    run(work(), seconds=90)
