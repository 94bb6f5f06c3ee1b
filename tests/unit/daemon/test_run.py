"""A daemon from its start: what it finds before anything is fetched."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.base.tasks import first_error
from meshd.config import ClientConfig, Config, HostPort, LinksConfig, Paths, WorkerConfig
from meshd.daemon.fetching import Fetching
from meshd.daemon.run import Daemon
from meshd.devices.interface import NativeBuild
from meshd.identity.keys import KeyPair
from meshd.identity.keystore import Home, Membership
from meshd.identity.membership import Chain, Role, issue

from tests.unit.daemon.test_preflight import native


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


@pytest.mark.parametrize(
    ("role", "roles", "lacking"), [("worker", (Role.USE,), "work"), ("client", (Role.WORK,), "use")]
)
def test_a_node_that_may_not_have_its_role_fetches_nothing_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str, roles: tuple[Role, ...], lacking: str
) -> None:
    async def found(_daemon: Daemon) -> NativeBuild:
        return native(tmp_path)

    async def fetch(_fetching: Fetching) -> Config:
        raise AssertionError("it fetches a model that it will not use")

    monkeypatch.setattr(Daemon, "_find_native", found)
    monkeypatch.setattr(Fetching, "run", fetch)
    home = joined(tmp_path / "home", *roles)
    config = replace(
        Config(),
        links=LinksConfig(listen=HostPort("127.0.0.1", 0), stun=()),
        client=ClientConfig(port=0),
        worker=WorkerConfig(models=("mesh:far",)),
        paths=Paths(home=home.path, cache=tmp_path / "cache"),
    )
    daemon = Daemon(config, role, home, out=print, note=print)
    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(asyncio.wait_for(daemon.main(), 20))
    error = first_error(caught.value)
    assert isinstance(error, UserError) and f"its certificate lacks the role `{lacking}`" in error.what
