"""A short run of the sessions that `make fuzz` has ten million frames of, and proof that they can fail."""

import random
from collections import Counter

import pytest
from meshd.rpc import firewall
from meshd.rpc import protocol as rpc

from tests.fuzz.firewall import run_session, run_sessions
from tests.fuzz.rpc_sessions import Found

FRAMES = 100_000
ENOUGH = 400_000  # frames in which a rule that is missing shows


def test_what_passes_keeps_the_rules_and_what_is_good_passes() -> None:
    seed = random.randrange(1_000_000)
    print(f"python -m tests.fuzz.firewall --seed {seed} --frames {FRAMES}")  # noqa: T201
    counts = run_sessions(FRAMES, seed=seed)
    assert counts["broken"] > FRAMES / 100
    assert counts["refused"] < counts["frames"] / 2, "only the door is tested"
    reached = {command.name for command in rpc.COMMANDS.values()}
    assert reached <= set(counts), "a command that never passes is not tested"


def test_a_session_comes_again_by_its_number() -> None:
    one, other = Counter[str](), Counter[str]()
    for counts in (one, other):
        run_session(4711, seed=3, counts=counts)
    assert one == other


@pytest.mark.parametrize("number", sorted(firewall._JUDGES), ids=lambda number: rpc.COMMANDS[number].name)
def test_without_the_judge_of_a_command_something_is_found(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    judges = {one: judge for one, judge in firewall._JUDGES.items() if one != number}
    monkeypatch.setattr(firewall, "_JUDGES", judges)
    with pytest.raises(Found):
        run_sessions(ENOUGH, seed=11)


def test_a_rule_that_is_too_strict_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firewall, "MAX_BUFFERS", 1)
    with pytest.raises(Found, match="a good ALLOC_BUFFER"):
        run_sessions(ENOUGH, seed=11)
