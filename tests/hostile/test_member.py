"""A hostile member against two honest nodes: a short run of what `make fuzz` does at length."""

import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.peer_limits import DIALS
from meshd.peer import limits
from meshd.peer.interface import Stream
from meshd.worker.lending import Worker

from tests.hostile import scene
from tests.hostile.approach import Pace
from tests.hostile.damage import Damage
from tests.hostile.doors import DOORS, SILENT
from tests.hostile.draw import drawn_seed
from tests.hostile.member import Talk
from tests.hostile.run import run_member
from tests.hostile.words import catalogue
from tests.soak import counts, drawn

MESSAGES = counts(60_000, 100_000)  # the tables of the honest are full after 50,000


@pytest.mark.timeout(1500)  # three minutes of computing, beside three other processes
def test_the_honest_bear_it(tmp_path: Path) -> None:
    seed = drawn_seed()
    print(f"python -m tests.hostile --seed {seed} --messages {MESSAGES}")  # noqa: T201
    done = run_member(tmp_path, seed=seed, messages=MESSAGES)
    assert done.messages >= MESSAGES
    assert done.echoed > 1 << 20
    assert not done.unheard
    assert 0 < done.by_udp < done.dials
    # whatever the wire has was said, somewhere
    assert {word.name for word in catalogue()} <= set(done.sent)


@pytest.mark.parametrize("door", drawn("doors", DOORS, 6, always=()))
def test_a_run_comes_again_by_its_seed(door: str, tmp_path: Path) -> None:
    messages = 12 if door in SILENT else 300
    one, other = (run_member(tmp_path, seed=5, messages=messages, doors=(door,)) for _ in range(2))
    assert (one.messages, one.sent) == (other.messages, other.sent)
    # what a real thread does, such as keeping times in a file, ends between two looks of the virtual clock
    assert one.virtual_seconds == pytest.approx(other.virtual_seconds, abs=0.05)


def test_what_no_honest_node_was_given_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = tried = 0
    real = Talk.open

    def open_every_third(talk: Talk, service: str, metadata: Mapping[str, str | int | bytes]) -> int | None:
        nonlocal opened, tried
        tried += 1
        number = real(talk, service, metadata) if tried % 3 == 0 else None
        opened += number is not None
        return number

    monkeypatch.setattr(Talk, "open", open_every_third)
    doors = ("tunnels", "circuits", "signals", "away", "links")
    done = run_member(tmp_path, seed=drawn_seed(), messages=500, doors=doors)
    assert done.messages == done.sent.total() <= opened < tried / 2


def _printed(hash_seed: int) -> str:
    command = (sys.executable, "-m", "tests.hostile", "--seed", "5", "--messages", "4000")
    ran = subprocess.run(
        command,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.split()[-1]


def test_a_run_comes_again_in_another_process() -> None:
    assert _printed(1) == _printed(2)


def _burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def _make_leases_cost(monkeypatch: pytest.MonkeyPatch, seconds: float, *, leases: float = math.inf) -> None:
    real, left = Worker._serve_lease, leases

    async def serve(worker: Worker, stream: Stream) -> None:
        nonlocal left
        if left > 0:
            left -= 1
            _burn(seconds)
        await real(worker, stream)

    monkeypatch.setattr(Worker, "_serve_lease", serve)


def test_a_node_that_computes_on_end_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _make_leases_cost(monkeypatch, 1.1 * scene.MOST_TURN_SECONDS, leases=1)
    with pytest.raises(Damage, match="computed for"):
        run_member(tmp_path, seed=1, messages=1000, doors=("leases",))


def test_a_node_that_takes_much_of_a_core_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene, "MOST_OF_A_CORE", 0.02)  # leases take a tenth of that
    run_member(tmp_path, seed=1, messages=1000, doors=("leases",))
    _make_leases_cost(monkeypatch, 0.05)
    with pytest.raises(Damage, match="of a core"):
        run_member(tmp_path, seed=1, messages=1000, doors=("leases",))


def test_computing_stays_in_its_bound_at_full_speed(tmp_path: Path) -> None:
    pace = Pace(rest=0.01, away=1.0)  # as fast as its news are read: without NEWS_CHECKS that takes a core
    messages = 24_000  # some seconds of its clock: the burst of NEWS_CHECKS alone would be a fifth of two
    done = run_member(tmp_path, seed=drawn_seed(), messages=messages, doors=("news",), pace=pace)
    assert done.of_a_core < scene.MOST_OF_A_CORE


def test_dials_beyond_their_share_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DIALS", replace(DIALS, per_second=1e9, burst=1e9))
    with pytest.raises(Damage, match="too often"):
        run_member(tmp_path, seed=1, messages=2000, doors=("moves",))


def test_a_forbidden_dial_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene, "why_forbidden", lambda _host: "which a test forbids")
    with pytest.raises(Damage, match="which a test forbids"):
        run_member(tmp_path, seed=1, messages=20_000, doors=("news", "away"))


def test_memory_that_an_honest_node_keeps_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bytes] = []
    real = Worker._serve_lease

    async def serve(worker: Worker, stream: Stream) -> None:
        kept.append(b"x" * (256 << 10))
        await real(worker, stream)

    monkeypatch.setattr(Worker, "_serve_lease", serve)
    with pytest.raises(Damage, match="the process grew"):
        run_member(tmp_path, seed=1, messages=20_000, doors=("leases",))


def test_what_the_stubs_write_down_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, stays = [], []
    real = scene.Scene.check

    def count(it: scene.Scene) -> int:
        benches = [victim.bench for victim in it.victims]
        return sum(len(bench.children) + len(bench.trials) for bench in benches) + len(it.office.seen)

    def check(it: scene.Scene, *, last: bool) -> None:
        written.append(count(it))
        real(it, last=last)
        stays.append(count(it))

    monkeypatch.setattr(scene.Scene, "check", check)
    run_member(tmp_path, seed=1, messages=2000, doors=("leases", "mail"))
    assert any(written) and not any(stays)
