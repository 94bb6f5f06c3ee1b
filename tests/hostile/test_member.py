"""A hostile member against two honest nodes: a short run of what `make fuzz` does at length."""

import random
from pathlib import Path

import pytest
from meshd.peer.interface import Stream
from meshd.role.worker import Worker

from tests.hostile import scene
from tests.hostile.damage import Damage
from tests.hostile.doors import DOORS
from tests.hostile.run import run_member
from tests.hostile.words import catalogue

MESSAGES = 100_000


def test_the_honest_bear_it(tmp_path: Path) -> None:
    seed = random.randrange(1_000_000)
    print(f"python -m tests.hostile --seed {seed} --messages {MESSAGES}")  # noqa: T201
    done = run_member(tmp_path, seed=seed, messages=MESSAGES)
    assert done.messages >= MESSAGES
    assert done.echoed > 1 << 20
    # whatever the wire has was said, somewhere
    assert {word.name for word in catalogue()} <= set(done.sent)


@pytest.mark.parametrize("door", DOORS)
def test_a_run_comes_again_by_its_seed(door: str, tmp_path: Path) -> None:
    one, other = (run_member(tmp_path, seed=5, messages=300, doors=(door,)) for _ in range(2))
    assert (one.messages, one.sent, one.virtual_seconds) == (
        other.messages,
        other.sent,
        other.virtual_seconds,
    )


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
        return sum(len(bench.children) + len(bench.inspectors) for bench in benches) + len(it.office.seen)

    def check(it: scene.Scene) -> None:
        written.append(count(it))
        real(it)
        stays.append(count(it))

    monkeypatch.setattr(scene.Scene, "check", check)
    run_member(tmp_path, seed=1, messages=2000, doors=("leases", "mail"))
    assert any(written) and not any(stays)
