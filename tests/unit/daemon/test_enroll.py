"""How a node comes into a mesh: what a token's date means on this side."""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from meshd.base.errors import MeshdError, UserError
from meshd.config import Config, HostPort, LinksConfig, NodeConfig
from meshd.daemon.enroll import enter
from meshd.daemon.mesh_port import Doorway
from meshd.daemon.paste_join import why_not
from meshd.identity.invite import Invite, encode_token
from meshd.identity.keys import KeyPair, MeshId
from meshd.identity.keystore import Home
from meshd.wire.address import Candidate

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
        doorway = Doorway(asked=config.links.listen, home=store)
        try:
            await enter(store, store.load_or_create_identity(), config, "worker", doorway=doorway)
        finally:
            doorway.close()

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


OUTER = (Candidate("20.1.0.2", 17430, "udp", "srflx"),)
LAN = (Candidate("192.168.1.5", 17430), Candidate("127.0.0.1", 17430, "udp"), Candidate("fd00::1", 1, "udp"))


@pytest.mark.parametrize(
    ("links", "quic", "candidates", "why"),
    [
        (LinksConfig(), object(), OUTER, ""),
        (LinksConfig(), object(), LAN, "no STUN server answered the node that made it"),
        (LinksConfig(), None, OUTER, "another program is using this node's UDP port"),
        (LinksConfig(kinds=("tcp", "relay")), object(), OUTER, "needs quic"),
    ],
)
def test_why_there_is_no_reply_code(
    links: LinksConfig, quic: object, candidates: tuple[Candidate, ...], why: str
) -> None:
    invite = Invite(
        mesh=MeshId.of(OTHER.peer),
        inviter=OTHER.peer,
        secret=bytes(16),
        expires_at=1,
        candidates=candidates,
    )
    doorway = SimpleNamespace(quic=quic, local_only=False)
    told = why_not(invite, Config(links=links), cast(Doorway, doorway))
    assert why in told and bool(told) == bool(why)
