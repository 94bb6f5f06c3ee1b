"""Which model is loaded and unloaded, which request goes ahead: by hand, and for any course of events."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshd.head.pool_policy import (
    APART_SECONDS,
    IDLE_TURN_SECONDS,
    LEAST_TURN_SECONDS,
    PATIENCE_SECONDS,
    LoadDecision,
    LoadPolicy,
    ModelRule,
    ModelStage,
)

ALONE = (ModelRule("a"), ModelRule("b"), ModelRule("c"))
GROUP = (ModelRule("a", "g"), ModelRule("b", "g"), ModelRule("c"))
NOTHING = LoadDecision()


def loaded(policy: LoadPolicy, name: str, now: float) -> None:
    """Asked to be loaded, it becomes ready."""
    assert policy.decide(now).load == name
    policy.is_at(name, ModelStage.READY, now)


def ready(*rules: ModelRule, now: float = 0.0) -> tuple[LoadPolicy, int]:
    """The first model, ready, with one request under way."""
    policy = LoadPolicy(rules)
    first = policy.asked(rules[0].name, now)
    loaded(policy, rules[0].name, now)
    assert policy.decide(now).begin == (first,)
    return policy, first


def test_nothing_is_loaded_before_it_is_asked_for() -> None:
    policy = LoadPolicy(ALONE)
    assert policy.decide(0.0) == NOTHING
    number = policy.asked("b", 1.0)
    assert policy.decide(1.0) == LoadDecision(load="b")
    assert policy.decide(2.0) == NOTHING, "it is under way"
    policy.is_at("b", ModelStage.READY, 3.0)
    assert policy.decide(3.0) == LoadDecision(begin=(number,))


def test_a_request_for_a_ready_model_goes_ahead_at_once() -> None:
    policy, _ = ready(*ALONE)
    number = policy.asked("a", 100.0)
    assert policy.decide(100.0) == LoadDecision(begin=(number,))


def test_an_answer_under_way_keeps_its_model() -> None:
    policy, first = ready(*ALONE)
    policy.asked("b", 100.0)
    assert policy.decide(10_000.0) == NOTHING
    policy.ended(first, 10_000.0)
    assert policy.decide(10_000.0) == LoadDecision(unload=("a",))
    assert policy.decide(10_000.0) == NOTHING, "the memory is not free yet"
    policy.is_at("a", ModelStage.UNLOADED, 10_001.0)
    assert policy.decide(10_001.0) == LoadDecision(load="b")


def test_a_model_takes_requests_until_its_turn_is_over_although_another_is_wanted() -> None:
    policy, first = ready(*ALONE)
    other = policy.asked("b", 1.0)
    within = policy.asked("a", LEAST_TURN_SECONDS - 1)
    assert policy.decide(LEAST_TURN_SECONDS - 1).begin == (within,)
    later = policy.asked("a", LEAST_TURN_SECONDS)
    assert policy.decide(LEAST_TURN_SECONDS) == NOTHING
    for number in (first, within):
        policy.ended(number, 20.0)
    assert policy.decide(20.0).unload == ("a",)
    policy.is_at("a", ModelStage.UNLOADED, 20.0)
    loaded(policy, "b", 20.0)
    assert policy.decide(20.0).begin == (other,)
    policy.ended(other, 21.0)
    assert policy.decide(20.0 + LEAST_TURN_SECONDS).unload == ("b",)
    policy.is_at("b", ModelStage.UNLOADED, 30.0)
    loaded(policy, "a", 30.0)
    assert policy.decide(30.0).begin == (later,)


def test_a_turn_is_as_long_as_the_load_was() -> None:
    policy = LoadPolicy(ALONE)
    policy.asked("a", 0.0)
    assert policy.decide(0.0).load == "a"
    policy.is_at("a", ModelStage.READY, 60.0)
    policy.asked("b", 61.0)
    assert len(policy.decide(61.0).begin) == 1
    policy.asked("a", 119.0)
    assert len(policy.decide(119.0).begin) == 1
    policy.asked("a", 120.0)
    assert policy.decide(120.0) == NOTHING


def test_an_idle_model_lingers_for_the_next_request_of_a_client() -> None:
    policy, first = ready(*ALONE)
    policy.asked("b", 1.0)
    policy.ended(first, 1.0)
    assert policy.decide(1.0) == NOTHING
    assert policy.decide(1.0 + IDLE_TURN_SECONDS).unload == ("a",)


def test_models_of_a_group_are_loaded_beside_each_other_one_after_the_other() -> None:
    policy = LoadPolicy(GROUP)
    first, second = policy.asked("a", 0.0), policy.asked("b", 0.0)
    assert policy.decide(0.0) == LoadDecision(load="a")
    policy.is_at("a", ModelStage.READY, 1.0)
    assert policy.decide(1.0) == LoadDecision(load="b", begin=(first,))
    policy.is_at("b", ModelStage.READY, 2.0)
    assert policy.decide(2.0).begin == (second,)


def test_nobody_overtakes_a_request_by_being_of_the_group_that_is_loaded() -> None:
    policy, first = ready(*GROUP)
    policy.asked("c", 50.0)
    policy.asked("b", 51.0)
    assert policy.decide(51.0) == NOTHING
    policy.ended(first, 52.0)
    assert policy.decide(52.0).unload == ("a",)
    policy.is_at("a", ModelStage.UNLOADED, 53.0)
    assert policy.decide(53.0).load == "c"


def test_idle_models_go_after_their_time() -> None:
    policy, first = ready(ModelRule("a", ttl=60.0), *ALONE[1:])
    assert policy.decide(1000.0) == NOTHING, "an answer is under way"
    policy.ended(first, 1000.0)
    assert policy.decide(1059.0) == NOTHING
    assert policy.decide(1060.0).unload == ("a",)


def test_and_stay_for_ever_without_one() -> None:
    policy, first = ready(*ALONE)
    policy.ended(first, 0.0)
    assert policy.decide(1e9) == NOTHING


def test_preloaded_models_come_first_unless_somebody_asks_for_another() -> None:
    policy = LoadPolicy(GROUP, preload=["a", "b"])
    loaded(policy, "a", 0.0)
    policy.asked("c", 0.5)
    assert policy.decide(0.5) == NOTHING
    assert policy.decide(IDLE_TURN_SECONDS).unload == ("a",)
    policy.is_at("a", ModelStage.UNLOADED, 2.0)
    assert policy.decide(2.0).load == "c"


def test_a_preloaded_model_is_not_idle_before_it_is_ready() -> None:
    policy = LoadPolicy([ModelRule("a", ttl=5.0)], preload=["a"])
    assert policy.decide(1000.0).load == "a"
    assert policy.decide(1001.0) == NOTHING
    policy.is_at("a", ModelStage.READY, 1100.0)
    assert policy.decide(1104.0) == NOTHING
    assert policy.decide(1105.0).unload == ("a",)


def test_a_preloaded_model_that_made_room_is_loaded_again_only_for_a_request() -> None:
    policy = LoadPolicy([ModelRule("a"), ModelRule("b", ttl=5.0)], preload=["a"])
    assert policy.decide(0.0).load == "a"
    number = policy.asked("b", 1.0)
    assert policy.decide(1.0).unload == ("a",)
    policy.is_at("a", ModelStage.UNLOADED, 2.0)
    loaded(policy, "b", 2.0)
    policy.ended(number, 3.0)
    assert policy.decide(8.0).unload == ("b",)
    policy.is_at("b", ModelStage.UNLOADED, 9.0)
    assert policy.decide(9.0) == NOTHING


def test_nothing_is_loaded_while_another_is_unloaded() -> None:
    policy, first = ready(ModelRule("a", "g", ttl=5.0), ModelRule("b", "g"))
    policy.ended(first, 0.0)
    assert policy.decide(5.0).unload == ("a",)
    policy.asked("b", 5.0)
    assert policy.decide(5.0) == NOTHING
    policy.is_at("a", ModelStage.UNLOADED, 6.0)
    assert policy.decide(6.0).load == "b"


def test_a_load_that_nobody_waits_for_any_more_makes_room() -> None:
    policy = LoadPolicy(ALONE)
    gone = policy.asked("a", 0.0)
    assert policy.decide(0.0).load == "a"
    policy.ended(gone, 1.0)
    assert policy.decide(1.0) == NOTHING
    policy.asked("b", 2.0)
    assert policy.decide(2.0).unload == ("a",)


@pytest.mark.parametrize("stage", [ModelStage.REFUSING, ModelStage.NO_ROOM])
def test_a_model_that_cannot_be_had_refuses(stage: ModelStage) -> None:
    policy = LoadPolicy(ALONE)
    number = policy.asked("a", 0.0)
    assert policy.decide(0.0).load == "a"
    policy.is_at("a", stage, 1.0)
    assert policy.decide(1.0) == LoadDecision(refuse=(number,))
    later = policy.asked("a", 2.0)
    assert policy.decide(2.0) == LoadDecision(refuse=(later,))


def test_one_that_waits_for_workers_is_waited_for_a_while() -> None:
    policy = LoadPolicy(ALONE)
    number = policy.asked("a", 0.0)
    assert policy.decide(0.0).load == "a"
    policy.is_at("a", ModelStage.WAITING, 1.0)
    policy.asked("b", 2.0)
    assert policy.decide(PATIENCE_SECONDS - 1) == NOTHING
    decision = policy.decide(PATIENCE_SECONDS)
    assert (decision.refuse, decision.unload) == ((number,), ("a",))


def test_models_of_a_group_that_do_not_fit_together_take_turns() -> None:
    policy, first = ready(*GROUP)
    number = policy.asked("b", 10.0)
    assert policy.decide(10.0).load == "b"
    policy.is_at("b", ModelStage.NO_ROOM, 11.0)
    assert policy.decide(11.0) == LoadDecision(unload=("b",)), "it is loaded again when there is room"
    policy.is_at("b", ModelStage.UNLOADED, 12.0)
    assert policy.decide(12.0) == NOTHING
    policy.ended(first, 13.0)
    assert policy.decide(13.0).unload == ("a",)
    policy.is_at("a", ModelStage.UNLOADED, 14.0)
    loaded(policy, "b", 14.0)
    assert policy.decide(14.0).begin == (number,)
    policy.asked("a", 15.0)
    assert policy.decide(15.0) == NOTHING, "it is known that they do not fit"
    assert policy.decide(11.0 + APART_SECONDS).load == "a"


def test_a_model_lost_under_an_answer_waits_for_workers_until_its_room_is_wanted() -> None:
    policy, first = ready(*ALONE)
    policy.is_at("a", ModelStage.LOADING, 10.0)
    policy.is_at("a", ModelStage.NO_ROOM, 11.0)
    assert policy.decide(11.0) == NOTHING
    assert policy.decide(100.0) == NOTHING
    later = policy.asked("a", 101.0)
    assert policy.decide(101.0) == LoadDecision(refuse=(later,))
    policy.asked("b", 102.0)
    assert policy.decide(102.0) == LoadDecision(unload=("a",))
    policy.ended(first, 102.0)
    policy.is_at("a", ModelStage.UNLOADED, 103.0)
    assert policy.decide(103.0).load == "b"


def test_beside_another_one_it_waits_until_somebody_else_wants_it() -> None:
    policy, _first = ready(*GROUP)
    second = policy.asked("b", 10.0)
    loaded(policy, "b", 10.0)
    assert policy.decide(10.0).begin == (second,)
    policy.is_at("b", ModelStage.NO_ROOM, 11.0)
    assert policy.decide(11.0) == NOTHING
    policy.asked("b", 12.0)
    assert policy.decide(12.0) == LoadDecision(unload=("b",)), "the other one makes room when it may"


def test_the_least_recently_used_makes_room() -> None:
    rules = [ModelRule(name, "g") for name in "abc"]
    policy = LoadPolicy(rules)
    for now, name in ((0.0, "b"), (1.0, "a")):
        number = policy.asked(name, now)
        loaded(policy, name, now)
        assert policy.decide(now).begin == (number,)
        policy.ended(number, now)
    policy.asked("c", 100.0)
    assert policy.decide(100.0).load == "c"
    policy.is_at("c", ModelStage.NO_ROOM, 101.0)
    assert policy.decide(101.0).unload == ("c",)
    assert policy.decide(101.0).unload == ("b",)


def test_one_with_an_answer_under_way_does_not_make_room_while_another_is_idle() -> None:
    policy = LoadPolicy([ModelRule(name, "g") for name in "abc"])
    policy.asked("a", 0.0)
    loaded(policy, "a", 0.0)
    policy.decide(0.0)
    later = policy.asked("b", 5.0)
    loaded(policy, "b", 5.0)
    policy.decide(5.0)
    policy.ended(later, 6.0)
    policy.asked("c", 10.0)
    assert policy.decide(10.0).load == "c"
    policy.is_at("c", ModelStage.NO_ROOM, 11.0)
    assert policy.decide(11.0).unload == ("c",)
    policy.is_at("c", ModelStage.UNLOADED, 12.0)
    assert policy.decide(12.0).unload == ("b",)


def test_the_last_used_model_is_told() -> None:
    policy, first = ready(*GROUP)
    policy.asked("b", 1.0)
    loaded(policy, "b", 1.0)
    assert policy.last_used == "a", "it has a request under way"
    policy.ended(first, 1.0)
    policy.decide(2.0)
    assert policy.last_used == "b"
    assert LoadPolicy(ALONE).last_used is None


def test_a_model_that_the_user_wants_is_loaded_once_nothing_is_in_its_way() -> None:
    policy, _ = ready(*ALONE)
    assert policy.in_the_way("b") == ["a"] and policy.in_the_way("a") == []
    policy.want("b")
    assert policy.decide(100.0) == NOTHING, "a request goes before"
    policy.is_at("a", ModelStage.UNLOADED, 101.0)
    loaded(policy, "b", 101.0)
    policy.want("b")
    assert policy.decide(10_000.0) == NOTHING, "it stays without a request"


def test_nothing_of_its_group_is_in_the_way() -> None:
    policy, _ = ready(*GROUP)
    assert policy.in_the_way("b") == []
    policy.want("b")
    loaded(policy, "b", 1.0)


# Any course of events.


@dataclass
class Machine:
    """Does what the policy decides, with loads, unloads and answers that take their time."""

    rules: tuple[ModelRule, ...]
    seconds: dict[str, float]  # to load and to unload a model
    fits: int  # models that memory has room for
    policy: LoadPolicy
    stages: dict[str, ModelStage] = field(default_factory=dict)
    due: dict[str, float] = field(default_factory=dict)
    waiting: dict[int, tuple[str, float]] = field(default_factory=dict)
    answers: dict[int, tuple[str, float]] = field(default_factory=dict)  # until when
    waited: list[float] = field(default_factory=list)

    def step(self, now: float) -> None:
        self._go_on(now)
        for name, stage in self.stages.items():
            self.policy.is_at(name, stage, now)
        done = self.policy.decide(now)
        assert not done.refuse
        for number in done.begin:
            name, since = self.waiting.pop(number)
            assert self.stages[name] is ModelStage.READY
            self.answers[number] = (name, now + MOST_ANSWER / (1 + number % 3))
            self.waited.append(now - since)
        for name in done.unload:
            assert name not in {model for model, _ in self.answers.values()}, "under a running answer"
            self.stages[name], self.due[name] = ModelStage.UNLOADING, now + self.seconds[name] / 2
        if done.load is not None:
            self._begin_load(done.load, now)

    def _begin_load(self, name: str, now: float) -> None:
        assert self.stages[name] is ModelStage.UNLOADED
        there = [other for other, stage in self.stages.items() if stage is not ModelStage.UNLOADED]
        group = {rule.name: rule.group for rule in self.rules}
        assert all(group[name] and group[other] == group[name] for other in there), "not of one group"
        assert not {ModelStage.LOADING, ModelStage.UNLOADING} & set(self.stages.values()), (
            "memory is not what it seems"
        )
        self.stages[name], self.due[name] = ModelStage.LOADING, now + self.seconds[name]

    def _go_on(self, now: float) -> None:
        for number, (_, until) in list(self.answers.items()):
            if now >= until:
                del self.answers[number]
                self.policy.ended(number, now)
        for name, stage in self.stages.items():
            if now < self.due[name] or stage not in (ModelStage.LOADING, ModelStage.UNLOADING):
                continue
            ready = sum(one is ModelStage.READY for one in self.stages.values())
            loaded = ModelStage.READY if ready < self.fits else ModelStage.NO_ROOM
            self.stages[name] = loaded if stage is ModelStage.LOADING else ModelStage.UNLOADED

    def ask(self, name: str, now: float) -> None:
        self.waiting[self.policy.asked(name, now)] = (name, now)


STEP = 0.25
MOST_ANSWER = 3.0
NAMES = "abcd"


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    groups = draw(st.lists(st.sampled_from(["", "g", "h"]), min_size=2, max_size=len(NAMES)))
    ttl = draw(st.sampled_from([0.0, 3.0]))
    rules = tuple(ModelRule(name, group, ttl) for name, group in zip(NAMES, groups, strict=False))
    names = [rule.name for rule in rules]
    preload = draw(st.sampled_from([[], names[:1]]))
    seconds = {name: draw(st.sampled_from([0.5, 2.0, 12.0])) for name in names}
    made = Machine(rules, seconds, draw(st.integers(1, 3)), LoadPolicy(rules, preload))
    made.stages = dict.fromkeys(names, ModelStage.UNLOADED)
    made.due = dict.fromkeys(names, 0.0)
    return made


@settings(deadline=None, max_examples=200)
@given(
    machines(),
    st.lists(
        st.tuples(
            *(st.sampled_from(range(len(NAMES))), st.floats(0, 6), st.booleans()),
            st.booleans(),
        ),
        max_size=60,
    ),
)
def test_every_request_goes_ahead_and_no_model_is_lost_under_one(
    machine: Machine, asked: list[tuple[int, float, bool, bool]]
) -> None:
    """`step` checks that no group has more than its models, and that no answer loses its model.

    The user wants others meanwhile.
    """
    now = 0.0
    for which, pause, gives_up, by_user in asked:
        machine.ask(machine.rules[which % len(machine.rules)].name, now)
        machine.step(now)
        if by_user:
            machine.policy.want(machine.rules[(which + 1) % len(machine.rules)].name)
        if gives_up and machine.waiting:
            number = next(iter(machine.waiting))
            del machine.waiting[number]
            machine.policy.ended(number, now)
        until = now + pause
        while now < until:
            now += STEP
            machine.step(now)
    longest = _longest(machine) * (len(machine.rules) + 1)
    until = now + longest
    while machine.waiting and now < until:
        now += STEP
        machine.step(now)
    assert not machine.waiting, f"after {longest} s"


@settings(deadline=None, max_examples=60)
@given(machines(), st.data())
def test_clients_that_never_stop_starve_nobody(machine: Machine, data: st.DataObject) -> None:
    """Each model has clients that ask again at once; no request waits for longer than a turn of each."""
    names = [rule.name for rule in machine.rules]
    clients = data.draw(st.lists(st.sampled_from(names), min_size=2, max_size=8))
    now, longest = 0.0, _longest(machine) * (len(names) + 1)
    for name in clients:
        machine.ask(name, now)
    while now < 4 * longest:
        before = dict(machine.answers)
        machine.step(now)
        for name, _ in (answer for number, answer in before.items() if number not in machine.answers):
            machine.ask(name, now)
        waits = [now - since for _, since in machine.waiting.values()]
        assert max(waits, default=0.0) <= longest
        now += STEP
    assert machine.waited


def _longest(machine: Machine) -> float:
    """Return the longest turn: to load (twice, if it does not fit at first), its time, answers, to unload."""
    slowest = max(machine.seconds.values())
    return 3 * slowest + max(LEAST_TURN_SECONDS, slowest) + 2 * MOST_ANSWER + slowest + 8 * STEP


def test_a_preloaded_model_that_is_not_wanted_any_more_is_not_loaded() -> None:
    policy = LoadPolicy([ModelRule("a")], preload=["a"])
    policy.not_wanted("a")
    assert policy.decide(0.0).load is None
