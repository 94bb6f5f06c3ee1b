"""A pause outlives the daemon, and is told to the mesh."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from meshd.admin.api import DrainRequest
from meshd.base.errors import UserError
from meshd.base.tasks import Owner
from meshd.daemon import control
from meshd.daemon.control import Pausing
from meshd.daemon.member_node import was_paused
from meshd.identity.keystore import Home
from meshd.peer.local_member import LocalMember
from meshd.worker.worker_options import Pause

from tests.conformance.run import until


class Member(LocalMember):
    """Notes the pauses that it is to tell."""

    def __init__(self) -> None:
        self.told: list[bool] = []

    def pause(self, *, paused: bool) -> None:
        self.told.append(paused)


def test_it_outlives_a_restart_until_it_is_ended(tmp_path: Path) -> None:
    home, member = Home(tmp_path), Member()
    seen = []

    def restarted() -> Pausing:
        pausing = Pausing(home, member, Pause())
        seen.append((pausing.is_paused, was_paused(home)))
        return pausing

    restarted().begin(end_leases=False)
    restarted().end()
    restarted()
    assert seen == [(False, False), (True, True), (False, False)]
    assert member.told == [True, False]


def test_a_running_role_is_told(tmp_path: Path) -> None:
    pause = Pause()
    pausing = Pausing(Home(tmp_path), Member(), pause)
    pausing.begin(end_leases=True)
    on = [pause.is_on]
    pausing.end()
    assert [*on, pause.is_on] == [True, False]


def test_a_drain_leaves_what_is_lent_and_a_pause_takes_it_back(tmp_path: Path) -> None:
    pausing = Pausing(Home(tmp_path), Member(), Pause())
    seen = [pausing.is_draining]
    for end_leases in (False, True):
        pausing.begin(end_leases=end_leases)
        seen.append(pausing.is_draining)
    pausing.end()
    assert [*seen, pausing.is_draining] == [False, True, False, False]
    assert not Pausing(Home(tmp_path), Member(), None).is_draining


def test_a_node_that_lends_nothing_cannot_be_paused(tmp_path: Path) -> None:
    member = Member()
    pausing = Pausing(Home(tmp_path), member, None)
    with pytest.raises(UserError, match="lends no devices") as caught:
        pausing.begin(end_leases=True)
    assert "meshd stop" in caught.value.hint
    with pytest.raises(UserError, match="lends no devices"):
        pausing.end()
    assert not pausing.is_paused and member.told == []


def test_a_drain_before_a_restart_is_not_kept(tmp_path: Path) -> None:
    home, member, pause = Home(tmp_path), Member(), Pause()
    pausing = Pausing(home, member, pause)
    seen = []
    for on in (True, False):
        pausing.drain(on=on)
        seen.append((pause.is_on, was_paused(home), Pausing(home, member, Pause()).is_paused))
    assert seen == [(True, False, False), (False, False, False)]
    assert member.told == [True, False]


def test_a_drain_changes_nothing_for_a_paused_node_or_one_that_lends_nothing(tmp_path: Path) -> None:
    home, member, pause = Home(tmp_path), Member(), Pause()
    paused = Pausing(home, member, pause)
    paused.begin(end_leases=True)
    for pausing in (paused, Pausing(home, member, None)):
        pausing.drain(on=True)
        pausing.drain(on=False)
    assert pause.is_on and was_paused(home) and member.told == [True]


@pytest.mark.virtual
async def test_a_drain_that_nobody_asks_for_any_more_is_lifted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when `meshd service restart` is killed while it waits."""
    monkeypatch.setattr(control, "DRAIN_SECONDS", 0.2)
    member, gateway = Member(), SimpleNamespace(drains=False, under_way=3)
    fakes: Any = SimpleNamespace(mesh=None)
    unused: Any = None
    built: Any = SimpleNamespace(pause=None)
    answers = control.DaemonControl(
        fakes,
        Home(tmp_path),
        built=lambda: built,
        planning=unused,
        gateway=lambda: cast("Any", gateway),
        stop=unused,
        tunnels=unused,
        pausing=Pausing(Home(tmp_path), member, Pause()),
        models=unused,
        storage=unused,
        page=unused,
    )
    async with Owner() as owner:
        owner.start(answers.lift_drains(), name="drain")
        for _ in range(3):  # asked for again and again, it lasts
            assert (await answers.drain(DrainRequest())).requests == 3
            await asyncio.sleep(0.1)
            assert gateway.drains
        await until(lambda: not gateway.drains)
        assert member.told[-1] is False
        # Taken back, it is not lifted a second time.
        await answers.drain(DrainRequest())
        await answers.drain(DrainRequest(on=False))
        count = len(member.told)
        await asyncio.sleep(0.3)
        assert len(member.told) == count
        owner.cancel()
