"""How a node comes into a mesh: what a token's date means on this side."""

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

OTHER = KeyPair.from_seed(bytes(31) + b"\1")


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
