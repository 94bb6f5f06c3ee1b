"""Test what a daemon dials with, as a member and to join."""

import asyncio
import time
from pathlib import Path

import pytest
from meshd.base.errors import MeshdError, UserError
from meshd.config.forms import HostPort
from meshd.config.tree import Config, LinksConfig, NodeConfig
from meshd.daemon.mesh_port import MeshPort
from meshd.daemon.transports import enter
from meshd.identity.invite import Invite, encode_token
from meshd.identity.keys import KeyPair, MeshId
from meshd.identity.keystore import Home
from meshd.link.interface import Transport

from tests.unit.daemon.test_joining import Machine

OTHER = KeyPair.from_seed(bytes(31) + b"\1")


@pytest.mark.parametrize("outside", [False, True])
async def test_each_transport_is_dialled_with_once_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outside: bool
) -> None:
    """A node that keeps to this machine has no NAT whose ports it could search."""
    if outside:  # it still listens on loopback alone
        monkeypatch.setattr("meshd.daemon.mesh_port.is_loopback", lambda _host: False)
    member = await Machine(tmp_path, "node").enter()
    member.mesh_port.close()
    missing = () if outside else (Transport.QUIC_PORT_PREDICTION,)
    assert [dialer.transport for dialer in member.transports.dialers] == [
        transport for transport in Transport if transport not in missing
    ]


def join(home: Path, *, late: int) -> None:
    """With a token that expired so many seconds ago, of a node that is not there."""
    invite = Invite(
        mesh=MeshId.of(OTHER.peer),
        inviter=OTHER.peer,
        secret=bytes(16),
        expires_at=int(time.time()) - late,
    )
    store = Home(home)
    links = LinksConfig(listen=HostPort("127.0.0.1", 0))
    config = Config(node=NodeConfig(name="n", join=encode_token(invite)), links=links)

    async def main() -> None:
        mesh_port = MeshPort(asked=config.links.listen, home=store)
        try:
            await enter(store, store.load_or_create_identity(), config, "worker", mesh_port=mesh_port)
        finally:
            mesh_port.close()

    asyncio.run(main())


def test_a_token_is_refused_here_only_when_it_is_a_day_too_old(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expired 1 day ago"):
        join(tmp_path / "old", late=86400 + 60)
    with pytest.raises(MeshdError, match=r"cannot reach .* expired 2 hours ago by this machine's clock"):
        join(tmp_path / "late", late=7200 + 5)
    with pytest.raises(MeshdError, match="cannot reach") as caught:
        join(tmp_path / "good", late=-60)
    assert "expired" not in caught.value.what
    assert caught.value.hint.endswith("no reply code is possible: this node listens on loopback only")
