"""Links that are lost, doubled and changed: nothing is lost, doubled, reordered, or left hanging."""

import itertools
from collections.abc import Callable

import pytest
from meshd.mux.config import Priority
from meshd.mux.events import LinkDead, SessionLost, StreamAccepted, Switched

from tests.unit.mux.script import End, Two, quiet

KIB = 1 << 10


def conversation(two: Two) -> None:
    """A bit of everything; a side without a link gets a new one."""

    def move() -> None:
        two.transfer()
        if not two.wires:
            two.link()
            two.transfer()

    asked = two.leader.open("ask", Priority.BULK)
    two.leader.write(asked, b"question" * 4)
    spoilt = two.leader.open("spoilt")
    two.leader.write(spoilt, b"half of")
    move()
    told = two.follower.open("tell")
    two.follower.write(told, b"by the way")
    two.follower.write_eof(told)
    if asked in two.follower.live:
        two.follower.write(asked, b"answer" * 5)
    two.leader.write_eof(asked)
    if spoilt in two.follower.live:
        two.follower.reset(spoilt, 5, "sorry")
    move()
    if told in two.leader.live:
        two.leader.write_eof(told)
    if asked in two.follower.live:
        two.follower.write_eof(asked)
    move()


def length(side: str) -> int:
    """Bytes that the whole conversation brings to `side` over one good link."""
    two = Two()
    wire = two.link()
    conversation(two)
    two.finish()
    return len(wire.passed["leader" if side == "leader" else "follower"])


@pytest.mark.parametrize("afresh", [False, True])
@pytest.mark.parametrize("side", ["leader", "follower"])
def test_the_link_is_lost_at_every_byte(side: str, afresh: bool) -> None:
    total = length(side)
    assert total > 300
    for position in range(1, total):
        two = Two()
        wire = two.link()
        wire.breaks_after["leader" if side == "leader" else "follower"] = position
        conversation(two)
        assert wire.link_id not in two.wires, "the link was not cut"
        two.finish(afresh=afresh)


def test_an_outage_is_a_pause() -> None:
    two = Two(quiet(stream_window=64 * KIB))
    two.cut(two.link())
    stream = two.leader.open()
    assert two.leader.write(stream, bytes(range(256)) * 256) == 64 * KIB
    assert two.leader.write(stream, b"more") == 0
    two.now += 30
    for end in two.ends:
        end.take(end.session.handle_timeout(two.now))
    two.link()
    two.transfer()
    assert two.flows.out("leader", stream).read == 64 * KIB


def test_only_what_is_missing_is_sent_again() -> None:
    two = Two()
    wire = two.link()
    stream = two.leader.open()
    two.leader.write(stream, bytes(60 * KIB))
    two.send(two.leader, wire)
    two.deliver(two.follower, wire, 50 * KIB)
    two.cut(wire)
    again = two.link()
    two.transfer()
    assert two.flows.out("leader", stream).read == 60 * KIB
    assert len(again.passed["follower"]) < 11 * KIB


def test_data_moves_to_another_link_without_a_gap() -> None:
    """Test that what is on its way on the old link still counts; the rest goes over the new one at once."""
    two = Two()
    slow = two.link()
    two.transfer()
    stream = two.leader.open()
    two.leader.write(stream, bytes(range(256)) * 200)
    two.send(two.leader, slow)
    fast = two.link()
    two.send(two.follower, fast)
    two.deliver(two.leader, fast)
    two.leader.take(two.leader.session.switch_to(fast.link_id, two.now))
    two.leader.write(stream, b"after the switch")
    two.deliver(two.follower, slow, 20 * KIB)
    two.send(two.leader, fast)
    two.deliver(two.follower, fast)
    assert two.flows.out("leader", stream).read == 51200 + 16
    two.deliver(two.follower, slow)
    two.transfer()
    assert two.follower.session.data_link == fast.link_id
    two.finish()


def test_what_the_old_link_still_brings_is_not_sent_twice() -> None:
    two = Two()
    old = two.link()
    stream = two.leader.open()
    two.leader.write(stream, bytes(200 * KIB))
    two.send(two.leader, old, 40 * KIB)
    new = two.link()
    two.transfer()
    two.leader.take(two.leader.session.switch_to(new.link_id, two.now))
    two.transfer()
    assert two.flows.out("leader", stream).read == 200 * KIB
    assert two.leader.session.status().resent == 0


def test_of_two_switches_the_last_counts_in_whatever_order_they_come() -> None:
    two = Two()
    two.link()
    first, second = two.link(), two.link()
    for wire in (first, second):
        two.leader.take(two.leader.session.switch_to(wire.link_id, two.now))
        two.send(two.leader, wire)
    two.deliver(two.follower, second)
    two.deliver(two.follower, first)
    assert two.follower.session.data_link == second.link_id


def test_the_leader_falls_back_to_a_link_that_is_left() -> None:
    two = Two()
    first, second = two.link(), two.link()
    two.transfer()
    stream = two.leader.open()
    two.leader.write(stream, b"x" * 1000)
    two.send(two.leader, first)
    two.cut(first)
    assert two.leader.events[-1] == Switched(second.link_id)
    two.transfer()
    assert two.flows.out("leader", stream).read == 1000
    two.finish()


def test_the_follower_tells_that_it_lost_the_link_in_use() -> None:
    two = Two()
    first, second = two.link(), two.link()
    two.transfer()
    follower = two.follower
    follower.take(follower.session.link_down(first.link_id, two.now))
    two.transfer()
    assert two.leader.dead == [LinkDead(first.link_id, "the peer has lost it")]
    assert two.leader.session.data_link == follower.session.data_link == second.link_id


def test_what_was_said_on_a_lost_link_is_said_again_on_the_one_that_stood_by() -> None:
    """An acceptance, and credit: absolute, so saying them again does no harm; not saying them, for ever."""
    two = Two(quiet(stream_window=32 * KIB, session_window=32 * KIB))
    two.follower.reads = False
    first, second = two.link(), two.link()
    two.transfer()
    stream = two.leader.open()
    two.leader.write(stream, bytes(32 * KIB))
    two.send(two.leader, first)
    two.deliver(two.follower, first)
    two.follower.consume_all()
    two.send(two.follower, first)
    two.cut(first)
    two.transfer()
    assert StreamAccepted(stream) in two.leader.events
    assert two.leader.write(stream, bytes(100 * KIB)) == 32 * KIB
    assert two.leader.session.data_link == second.link_id
    two.transfer()
    assert two.flows.out("leader", stream).read == 64 * KIB


def test_a_hint_about_a_link_no_longer_in_use_changes_nothing() -> None:
    two = Two()
    first, second = two.link(), two.link()
    two.transfer()
    two.follower.take(two.follower.session.link_down(first.link_id, two.now))
    two.send(two.follower, second)
    two.leader.take(two.leader.session.switch_to(second.link_id, two.now))
    two.transfer()
    assert two.leader.dead == []
    assert two.leader.session.data_link == second.link_id


def test_the_grace_runs_out_on_both_sides() -> None:
    two = Two(quiet(grace=10))
    two.link()
    stream = two.leader.open()
    two.transfer()
    two.cut(next(iter(two.wires.values())))
    for end in two.ends:
        assert end.session.next_timeout() == two.now + 10
        assert end.session.handle_timeout(two.now + 9.9) == []
        end.take(end.session.handle_timeout(two.now + 10))
        assert end.events[-1] == SessionLost("no link for 10 s")
        assert end.session.next_timeout() is None
        assert end.session.status().streams == ()
        assert end.session.handle_timeout(two.now + 999) == []
    assert stream in two.leader.live


def test_a_link_in_time_stops_the_grace() -> None:
    two = Two(quiet(grace=10))
    two.cut(two.link())
    two.now += 9
    two.link()
    two.transfer()
    two.now += 9
    assert two.leader.session.handle_timeout(two.now) == []


def _eof_leader(two: Two, stream: int) -> None:
    two.leader.write_eof(stream)


def _eof_follower(two: Two, stream: int) -> None:
    if stream in two.follower.live:
        two.follower.write_eof(stream)


def _reset_leader(two: Two, stream: int) -> None:
    two.leader.reset(stream)


def _reset_follower(two: Two, stream: int) -> None:
    if stream in two.follower.live:
        two.follower.reset(stream)


Step = Callable[[Two, int], None]


def _live(end: End, stream: int) -> bool:
    return any(status.stream_id == stream for status in end.session.status().streams)


@pytest.mark.parametrize("losses", list(itertools.product("-lfb", repeat=3)), ids="".join)
def test_ends_and_resets_in_every_order_with_every_loss(losses: tuple[str, ...]) -> None:
    """Three steps; after each, what was sent to leader, follower or both is lost with the link."""
    steps: tuple[Step, ...] = (_eof_leader, _eof_follower, _reset_leader, _reset_follower)
    for order in itertools.permutations(steps, 3):
        two = Two()
        wire = two.link()
        stream = two.leader.open()
        two.leader.write(stream, b"some bytes")
        two.send(two.leader, wire)
        two.deliver(two.follower, wire)
        two.follower.write(stream, b"and others")
        for step, loss in zip(order, losses, strict=True):
            actor = two.leader if step in (_eof_leader, _reset_leader) else two.follower
            if stream in actor.live and _live(actor, stream):
                step(two, stream)
            wire = next(iter(two.wires.values()))
            for end in two.ends:
                two.send(end, wire)
            if loss in "lb":
                wire.to["leader"].clear()
            if loss in "fb":
                wire.to["follower"].clear()
            for end in two.ends:
                two.deliver(end, wire)
            if loss != "-":
                two.cut(wire)
                two.link()
        two.finish()


def test_credit_does_not_leak_over_ten_thousand_streams() -> None:
    two = Two(quiet(stream_window=2 * KIB, session_window=16 * KIB))
    two.link()
    for number in range(10_000):
        opener = two.ends[number % 2]
        other = two.other(opener)
        stream = opener.open()
        opener.write(stream, b"x" * (number % 1500))
        if number % 3:
            opener.write_eof(stream)
        if number % 7 == 3:
            two.send(opener, next(iter(two.wires.values())))
            opener.reset(stream)
        if number % 97 == 5:
            two.cut(next(iter(two.wires.values())))
            two.link()
        if number % 5 == 0:
            two.transfer()
            ender = other if number % 2 else opener
            if _live(ender, stream):
                ender.reset(stream)
        elif number % 5 == 1:
            two.transfer()
            for end in two.ends:
                if _live(end, stream):
                    end.write_eof(stream)
        if number % 10 == 9:
            two.transfer()
            for end in two.ends:
                for status in end.session.status().streams:
                    end.reset(status.stream_id)
            two.transfer()
    two.finish()
