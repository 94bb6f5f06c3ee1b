"""Which slot a request names: never a busy one, that of its conversation, and next to busy ones."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.slots import Prompt, SlotChoice, SlotEnd, SlotUse
from meshd.gateway.upstream import naming_slot

from tests.bench.slot_runs import Simulation

LARGEST = 1 << 20  # of a body that gets more fields
SYSTEM = {"role": "system", "content": "Answer as a pirate would, in rhymes. " * 60}


def chat(*said: str, system: bool = False) -> Prompt:
    """A chat of which the user said the first, the third and so on."""
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(said)]
    return Prompt.of(json.dumps({"messages": [SYSTEM] * system + messages, "stream": True}).encode())


def text(prompt: object, **more: object) -> Prompt:
    return Prompt.of(json.dumps({"n_predict": 4, "prompt": prompt, **more}).encode())


def ended(slots: SlotChoice, use: SlotUse, end: SlotEnd = SlotEnd.ANSWERED, now: float = 0.0) -> None:
    use.end = end
    slots.give_back(use, now)


def asked(slots: SlotChoice, *prompts: Prompt | None) -> list[int | None]:
    """The slots of these, one after another; each has ended when the next one comes."""
    found = []
    for prompt in prompts:
        use = slots.take(prompt, 0.0)
        ended(slots, use)
        found.append(use.slot)
    return found


def taken(slots: SlotChoice, *prompts: Prompt | None, now: float = 0.0) -> list[SlotUse]:
    return [slots.take(prompt, now) for prompt in prompts]


def runs(busy: Sequence[int]) -> int:
    return sum(number - 1 not in busy for number in busy)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (text("Once"), text("Once upon a time")),
        (text(["Once"]), text(["Once upon"])),
        (text([5, 6, 7]), text([5, 6, 7, 8])),
        (text('say "'), text('say "hi"')),
        (chat("hi"), chat("hi", "hello", "and now?")),
        (chat("hi", system=True), chat("hi", "hello", "and now?", system=True)),
        (chat("hi"), chat("hi")),
        (text("", input_prefix="f("), text("", input_prefix="f(a")),
    ],
)
def test_the_next_turn_is_known_by_the_whole_earlier_prompt(before: Prompt, after: Prompt) -> None:
    assert after.shared(before.marks) == len(before)
    slots = SlotChoice(4)
    others = taken(slots, *(text(f"other {number}") for number in range(2)))
    assert asked(slots, before, after) == [2, 2]
    for use in others:
        ended(slots, use)
    assert asked(slots, after) == [2]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (text("Once"), text("Twice")),
        (text(""), text("Once")),
        (chat("hi"), chat("ho")),
        (chat("hi"), Prompt.of(b'{"messages":[{"role":"user","content":"hi"}],"tools":[{"name":"f"}]}')),
    ],
)
def test_prompts_that_begin_otherwise_share_nothing(one: Prompt, other: Prompt) -> None:
    assert other.shared(one.marks) == 0
    assert asked(SlotChoice(2), one, other) == [0, 1]


def test_an_edited_conversation_keeps_what_is_before_the_change() -> None:
    slots, long = SlotChoice(4), "so it goes on and on " * 40
    assert asked(slots, chat("a" + long), chat("b" + long, long, "c" + long)) == [0, 1]
    assert asked(slots, chat("b" + long, long, "d" + long)) == [1]


def test_of_slots_with_the_same_system_prompt_the_older_ones_are_taken() -> None:
    slots = SlotChoice(4)
    firsts = [chat(f"I am user {number}", system=True) for number in range(6)]
    uses = taken(slots, *firsts[:4])
    assert [use.slot for use in uses] == [0, 1, 2, 3]
    for at in (2, 0, 3, 1):
        ended(slots, uses[at])
    busy = slots.take(firsts[4], 0.0)
    assert busy.slot == 2
    # 0, 3 and 1 are left: of the older two, 3 is a neighbour
    assert slots.take(firsts[5], 0.0).slot == 3


def test_a_conversation_is_worth_more_than_neighbours() -> None:
    slots = SlotChoice(8)
    conversation = text("a long talk " * 100)
    uses = taken(slots, *(text(f"other {number}") for number in range(5)), conversation)
    for use in uses[1:]:
        ended(slots, use)
    assert slots.take(text("a long talk " * 100 + "goes on"), 0.0).slot == 5


def test_unused_slots_come_before_neighbours_that_hold_a_conversation() -> None:
    slots = SlotChoice(4)
    uses = taken(slots, text("a"), text("b"))
    ended(slots, uses[1])
    assert [use.slot for use in taken(slots, text("c"), text("d"), text("e"))] == [2, 3, 1]


@pytest.mark.parametrize(("users", "hits"), [(4, 12), (5, 0)])
def test_conversations_in_turns(users: int, hits: int) -> None:
    """With as many slots as conversations each finds its own; with one too few, none needs to."""
    slots, found = SlotChoice(4), 0
    homes: dict[int, int | None] = {}
    for turn in range(4):
        for user in range(users):
            said = [f"user {user}, {number}: " + "and so on " * 50 for number in range(2 * turn + 1)]
            (slot,) = asked(slots, chat(*said))
            found += homes.get(user) == slot
            homes = {other: home for other, home in homes.items() if home != slot} | {user: slot}
    assert found >= hits


def test_where_none_comes_back_all_slots_may_be_taken() -> None:
    slots = SlotChoice(4)
    asked(slots, *(text(f"{number} alone") for number in range(8)))
    uses = taken(slots, text("8 alone"), text("9 alone"), text("10 alone"))
    assert runs(sorted(use.slot for use in uses if use.slot is not None)) == 1
    ended(slots, uses[1])
    # the gap, although it was used last
    assert slots.take(text("11 alone"), 0.0).slot == uses[1].slot


def test_where_one_came_back_the_newer_half_is_kept() -> None:
    slots = SlotChoice(4)
    asked(slots, *(text(f"{number} alone") for number in range(7)), text("6 alone, and more"))
    uses = taken(slots, text("8 alone"), text("9 alone"))
    gap = uses[0].slot
    ended(slots, uses[0])
    assert slots.take(text("10 alone"), 0.0).slot != gap


def test_what_was_refused_leaves_the_conversation_where_it_is() -> None:
    slots, talk = SlotChoice(2), text("a long talk " * 100)
    assert asked(slots, talk, text("b")) == [0, 1]
    use = slots.take(text("c"), 0.0)
    assert use.slot == 0
    ended(slots, use, SlotEnd.REFUSED)
    assert asked(slots, talk) == [0]


def test_what_a_lost_llama_server_held_is_forgotten_and_who_is_under_way_is_not() -> None:
    slots, talk = SlotChoice(4), text("a long talk " * 100)
    asked(slots, text("1"), text("2"), talk)
    under_way = slots.take(text("c"), 0.0)
    assert under_way.slot == 3
    slots.forget()
    assert [use.slot for use in taken(slots, talk, text("d"), text("e"))] == [2, 1, 0]


def test_none_is_named_while_a_request_may_take_any() -> None:
    slots = SlotChoice(4)
    several = slots.take(None, 0.0)
    assert several.slot is None and naming_slot(b'{"n":2}', several) == b'{"n":2}'
    one = slots.take(chat("a"), 0.0)
    ended(slots, several)
    assert slots.take(chat("b"), 0.0).slot is None
    assert one.slot is None


def test_later_turns_are_left_to_llama_server_until_other_conversations_are_old() -> None:
    slots = SlotChoice(4)
    ended(slots, slots.take(None, 0.0), now=100.0)
    later, first = chat("a", "b", "c"), chat("d")
    use = slots.take(first, 101.0)
    assert use.slot is not None
    ended(slots, use, now=101.0)
    for at, is_named in ((102.0, False), (699.0, False), (700.0, True)):
        use = slots.take(later, at)
        assert (use.slot is not None) is is_named
        ended(slots, use, now=at)


def test_a_slot_that_was_left_is_named_when_llama_server_has_freed_it() -> None:
    slots, talk = SlotChoice(3), text("a long talk " * 100)
    use = slots.take(talk, 0.0)
    use.has_begun = True
    ended(slots, use, SlotEnd.LEFT, now=1.0)
    assert slots.needs_look(talk, 1.0) and slots.should_wait(talk, 1.0)
    assert not slots.should_wait(text("something else"), 1.0)
    slots.saw({0}, 1.1)
    assert slots.should_wait(talk, 1.1)
    assert slots.take(text("something else"), 1.1).slot == 1
    slots.saw({1}, 1.2)
    assert not slots.needs_look(talk, 1.2)
    assert slots.take(talk, 1.2).slot == 0


def test_a_request_that_was_left_may_come_to_its_slot_later() -> None:
    slots, talk = SlotChoice(3), text("a long talk " * 100)
    ended(slots, slots.take(talk, 0.0), SlotEnd.LEFT, now=1.0)
    slots.saw((), 2.9)
    assert slots.should_wait(talk, 2.9)
    slots.saw((), 3.0)
    assert not slots.should_wait(talk, 3.0) and slots.take(talk, 3.0).slot == 0


def test_a_slot_that_was_left_is_named_at_once_where_all_others_are_busy() -> None:
    slots = SlotChoice(2)
    uses = taken(slots, text("a"), text("b"))
    ended(slots, uses[0], SlotEnd.LEFT)
    assert slots.take(text("c"), 0.0).slot == 0


def test_who_names_no_slot_waits_until_others_are_in_theirs() -> None:
    slots = SlotChoice(4)
    slots.take(text("a"), 0.0)
    assert slots.needs_look(None, 0.0) and slots.should_wait(None, 0.0)
    assert not slots.needs_look(text("b"), 0.0)
    slots.saw({0}, 0.1)
    assert not slots.needs_look(None, 0.1)


def test_the_name_is_added_to_the_body() -> None:
    use = SlotChoice(2).take(text("a"), 0.0)
    named = naming_slot(b'{"prompt":"a","id_slot":7}', use)
    assert named is not None and json.loads(named) == {"prompt": "a", "id_slot": 0}
    assert naming_slot(None, use) is None


@pytest.mark.parametrize("said", [["x" * LARGEST], ["y"] * (LARGEST // 40)])
def test_what_is_kept_of_a_prompt_is_short(said: list[str]) -> None:
    assert len(chat(*said).marks) < 100


@given(st.binary(max_size=5000), st.binary(max_size=5000), st.binary(max_size=5000))
def test_the_shared_beginning_is_never_longer_than_it_is(common: bytes, one: bytes, other: bytes) -> None:
    before, after = Prompt(common + one), Prompt(common + other)
    alike = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    most = len(common) + (min(len(one), len(other)) if alike is None else alike)
    shared = after.shared(before.marks)
    assert shared <= most
    # the next mark is an eighth away, or 256 bytes
    assert shared >= most - max(256, most // 8)


@pytest.mark.parametrize("load", [(4, 0, 3), (8, 0, 4), (4, 6, 0), (4, 3, 1)])
def test_slots_are_in_fewer_runs_and_hold_as_much(load: tuple[int, int, int]) -> None:
    theirs, ours = (Simulation(*load, named=named).run() for named in (False, True))
    assert ours.runs < theirs.runs
    assert round(ours.cached, 2) >= round(theirs.cached, 2)


@dataclass
class Server:
    """What llama-server computes, and for whom."""

    slots: SlotChoice
    count: int
    uses: list[SlotUse] = field(default_factory=list)
    lingering: set[int] = field(default_factory=set)  # it has not noticed yet that the client left
    used: set[int] = field(default_factory=set)
    has_guessed: bool = False

    @property
    def busy(self) -> set[int]:
        return {use.slot for use in self.uses if use.slot is not None}

    def begin(self, prompt: Prompt | None) -> None:
        if len(self.uses) == self.count:
            return
        slots, busy = self.slots, self.busy
        if slots.needs_look(prompt, 0.0):
            slots.saw(busy | self.lingering, 0.0)
        use = slots.take(prompt, 0.0)
        free = {*range(self.count)} - busy - self.lingering
        if use.slot is None:
            self.has_guessed = True
        else:
            assert all(other.slot is not None for other in self.uses)
            assert use.slot not in busy
            assert use.slot in free or not free
            unused = free - self.used
            if unused and use.slot in unused and not self.has_guessed:
                assert runs([*busy, use.slot]) == min(runs([*busy, number]) for number in unused)
        self.uses.append(use)

    def end(self, number: int, end: SlotEnd) -> None:
        if not self.uses:
            return
        use = self.uses.pop(number % len(self.uses))
        use.has_begun = True
        if use.slot is not None:
            self.used |= {use.slot} if end is not SlotEnd.REFUSED else set()
            self.lingering |= {use.slot} if end is SlotEnd.LEFT else set()
        ended(self.slots, use, end)


PROMPTS = st.one_of(
    st.none(),
    st.integers(0, 3).map(lambda number: text(f"{number} " * 200)),
    st.integers(0, 99).map(lambda number: text(f"prompt {number}")),
)


@given(st.integers(2, 8), st.data())
def test_no_slot_is_named_that_is_busy(count: int, data: st.DataObject) -> None:
    server = Server(SlotChoice(count), count)
    for _ in range(data.draw(st.integers(1, 30))):
        step = data.draw(st.sampled_from(("begin", "begin", "end", "notice")))
        if step == "begin":
            server.begin(data.draw(PROMPTS))
        elif step == "end":
            server.end(data.draw(st.integers(0, 7)), data.draw(st.sampled_from(SlotEnd)))
        else:
            server.lingering.clear()
