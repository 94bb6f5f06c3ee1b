"""A daemon from its start: what it finds before anything is fetched."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from meshd.admin.api import PauseRequest
from meshd.admin.client import ask
from meshd.admin.interface import SOCKET_NAME
from meshd.base.errors import UserError
from meshd.base.tasks import first_error
from meshd.config import ClientConfig, Config, HostPort, LinksConfig, Paths, WorkerConfig
from meshd.daemon.fetching import Fetching
from meshd.daemon.run import Daemon
from meshd.devices.interface import NativeBuild
from meshd.identity.keys import KeyPair
from meshd.identity.keystore import Home, Membership
from meshd.identity.membership import Chain, Role, issue
from meshd.peer.local_member import LocalMember
from meshd.worker.cycle import Worker

from tests.unit.daemon.test_preflight import model, native


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
