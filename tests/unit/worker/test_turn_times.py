"""Test how long a mesh-server computes, from the messages that pass its daemon."""

from hypothesis import given
from hypothesis import strategies as st
from meshd.identity.keys import PeerId
from meshd.rpc import mesh_protocol as wire
from meshd.wire.capacity import ComputedSpan
from meshd.worker.leases import Lease
from meshd.worker.turn_times import TurnTimes, computed_for

EVER = (1e6, 0.0)
ONE, OTHER = PeerId(bytes([1]) * 32), PeerId(bytes([2]) * 32)


class Clock:
    """Moved by tests."""

    def __init__(self) -> None:
        self.now = 100.0
        self.turns = TurnTimes(lambda: self.now)

    def at(self, now: float) -> TurnTimes:
        self.now = 100.0 + now
        return self.turns

    def asked(self, now: float, *numbers: int) -> None:
        """The head says these."""
        for number in numbers:
            self.at(now).with_head(number)

    @property
    def spent(self) -> tuple[ComputedSpan, ...]:
        return self.turns.spent([EVER])


def test_a_token_takes_from_its_question_to_its_result() -> None:
    it = Clock()
    it.asked(0.0, wire.WRITE, wire.COMPUTE, wire.READ)
    it.asked(0.02, wire.DATA)
    it.asked(0.05, wire.COMPUTE, wire.READ)
    it.asked(0.08, wire.DATA)
    [found] = it.spent
    assert abs(found.busy_us - 50_000) < 5 and found.results == 2


def test_it_is_quiet_while_no_message_passes_and_no_result_is_awaited() -> None:
    it = Clock()
    assert it.at(5.0).quiet_seconds == 5.0
    it.asked(6.0, wire.COMPUTE, wire.READ)
    assert it.at(60.0).quiet_seconds == 0.0, "it computes"
    it.asked(61.0, wire.PROGRESS)
    it.asked(62.0, wire.DATA)
    it.asked(70.0, wire.PROGRESS)
    assert it.at(72.0).quiet_seconds == 10.0
    it.at(73.0).arrived(wire.PUSHED)
    assert it.at(74.0).quiet_seconds == 1.0


def test_it_is_not_quiet_while_it_computes_though_turns_have_lost_count() -> None:
    it = Clock()
    it.at(1.0).lose_count()
    it.asked(2.0, wire.COMPUTE, wire.READ)
    assert it.at(60.0).quiet_seconds == 0.0
    it.asked(61.0, wire.DATA)
    assert it.at(63.0).quiet_seconds == 2.0


def test_a_worker_waits_for_what_another_one_pushes() -> None:
    it = Clock()
    it.asked(0.0, wire.TAKE, wire.COMPUTE, wire.READ)
    it.at(0.5).arrived(wire.PUSHED)
    it.asked(0.53, wire.DATA)
    [found] = it.spent
    assert abs(found.busy_us - 30_000) < 5 and found.results == 1


def test_of_turns_with_sums_nothing_is_said() -> None:
    """A worker waits for the others within them, for nobody knows how long."""
    it = Clock()
    it.asked(0.0, wire.COMPUTE, wire.SUM, wire.COMPUTE, wire.READ)
    it.asked(0.5, wire.DATA)
    assert list(it.spent) == []


def test_a_push_that_is_told_late_does_not_count_for_the_next_result() -> None:
    """On a local connection the server tells, and its words may come behind the result."""
    it = Clock()
    for begin in (0.0, 1.0):
        it.asked(begin, wire.TAKE, wire.COMPUTE, wire.READ)
        if begin:
            it.at(begin + 0.5).arrived(wire.PUSHED)
        it.asked(begin + 0.53, wire.DATA)
        if not begin:
            it.at(0.54).arrived(wire.PUSHED)
    [found] = it.turns.spent([(0.9, 0.0)])
    assert abs(found.busy_us - 30_000) < 5 and found.results == 1


def test_where_a_push_was_not_told_nothing_is_known() -> None:
    it = Clock()
    it.asked(0.0, wire.TAKE, wire.COMPUTE, wire.READ)
    it.at(0.5).arrived(wire.PUSHED)
    it.asked(0.53, wire.DATA)
    assert it.spent
    it.turns.lose_count()
    it.asked(1.0, wire.TAKE, wire.COMPUTE, wire.READ)
    it.at(1.5).arrived(wire.PUSHED)
    it.asked(1.53, wire.DATA)
    assert it.spent == ()


def test_a_worker_in_the_middle_of_a_pipeline_is_busy_with_one_micro_batch_after_the_other() -> None:
    it = Clock()
    for _ in range(3):
        it.asked(0.0, wire.TAKE, wire.COMPUTE, wire.PUSH)
    for now in (0.1, 0.15, 0.2):
        it.at(now).arrived(wire.PUSHED)
    for now in (0.3, 0.5, 0.7):
        it.at(now).left(wire.PUSHED)
    [found] = it.spent
    assert abs(found.busy_us - 600_000) < 5 and found.results == 3


def micro_batches(*arrivals: float) -> Clock:
    """Return the clock of one prompt at the last worker, which has all it needs and is asked once."""
    it = Clock()
    it.asked(0.0, *[wire.TAKE, wire.COMPUTE] * len(arrivals), wire.READ)
    for now in arrivals:
        it.at(now).arrived(wire.PUSHED)
    return it


def test_the_last_worker_that_is_faster_computes_between_the_arrivals() -> None:
    """It takes for each as long as for the last."""
    it = micro_batches(1.0, 2.0, 3.0)
    it.asked(3.1, wire.DATA)
    [found] = it.spent
    assert abs(found.busy_us - 300_000) < 5 and found.results == 1


def test_the_last_worker_that_is_slower_is_busy_since_the_first_arrival() -> None:
    it = micro_batches(1.0, 1.1, 1.2)
    it.asked(4.0, wire.DATA)
    [found] = it.spent
    assert abs(found.busy_us - 3_000_000) < 5


def test_what_needs_no_computing_is_no_turn() -> None:
    it = Clock()
    it.asked(0.0, wire.READ)
    it.asked(1.0, wire.DATA)
    it.asked(2.0, wire.DATA)
    it.at(2.5).left(wire.PUSHED)
    assert it.spent == (ComputedSpan(0, 0),)


def test_a_span_has_the_turns_whose_middle_lies_in_it() -> None:
    it = Clock()
    for begin in (0.0, 1.0, 2.0):
        it.asked(begin, wire.COMPUTE, wire.READ)
        it.asked(begin + 0.5, wire.DATA)
    it.at(3.0)
    assert [one.results for one in it.turns.spent([(2.0, 0.0), (3.0, 2.0), (0.5, 0.0)])] == [2, 1, 0]


def test_more_than_can_be_remembered_is_not_told() -> None:
    it = Clock()
    for _ in range(8193):
        it.asked(0.0, wire.COMPUTE, wire.READ)
    assert it.spent == ()
    it.asked(1.0, wire.DATA)
    assert it.spent == ()


def test_a_head_is_told_of_the_lease_that_it_names_if_it_is_its_own() -> None:
    """It has one for each model that it serves."""
    leases = []
    for lease_id, head, seconds in ((b"1", ONE, 1.0), (b"2", ONE, 2.0), (b"3", OTHER, 4.0)):
        it = Clock()
        it.asked(0.0, wire.COMPUTE, wire.READ)
        it.asked(seconds, wire.DATA)
        leases.append((Lease(lease_id, head, {}), it.turns))

    def computed(head: PeerId, lease_id: bytes) -> list[int]:
        return [one.busy_us // 1000 for one in computed_for(leases, head, lease_id, [EVER])]

    assert [computed(ONE, b"1"), computed(ONE, b"2"), computed(OTHER, b"3")] == [[1000], [2000], [4000]]
    assert computed(OTHER, b"1") == computed(ONE, b"4") == computed(ONE, b"") == []
    assert computed_for(leases, ONE, b"1", []) == ()


EVENTS = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.sampled_from(["in", "out", wire.COMPUTE, wire.TAKE, wire.PUSH, wire.READ, wire.DATA]),
    ),
    max_size=60,
)


@given(EVENTS)
def test_a_worker_is_never_busier_than_time_passes(events: list[tuple[float, int | str]]) -> None:
    it, now = Clock(), 0.0
    for step, what in events:
        now += step
        if what == "in":
            it.at(now).arrived(wire.PUSHED)
        elif what == "out":
            it.at(now).left(wire.PUSHED)
        elif isinstance(what, int):
            it.asked(now, what)
    [found] = it.spent
    assert 0 <= found.busy_us <= now * 1e6 + 1
