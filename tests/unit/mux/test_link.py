"""Is a link alive? Pings, both directions proven, late clocks, and when acknowledgements leave."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from meshd.mux.config import MuxConfig
from meshd.mux.link import LinkState

from tests.unit.mux.script import Two

KIB = 1 << 10
CONFIG = MuxConfig()


def test_an_idle_link_stays_alive_by_pings() -> None:
    two = Two(CONFIG)
    two.link()
    two.advance(60)
    assert two.leader.dead == two.follower.dead == []
    (status,) = two.leader.session.status().links
    assert status.rtt is not None
    assert two.now - status.last_heard < 2


@pytest.mark.parametrize("silent", ["leader", "follower", "both"])
def test_a_direction_that_falls_silent_kills_the_link_on_both_sides(silent: str) -> None:
    two = Two(CONFIG)
    wire = two.link()
    two.advance(10)
    if silent != "follower":
        wire.stalled.add("leader")
    if silent != "leader":
        wire.stalled.add("follower")
    two.advance(5)
    for end in two.ends:
        assert [death.link_id for death in end.dead] == [wire.link_id]
    reasons = {end.side: end.dead[0].why for end in two.ends}
    if silent == "follower":
        assert "not heard us" in reasons["leader"] or "nothing heard" in reasons["leader"]
        assert "nothing heard" in reasons["follower"]


def test_dead_links_are_let_go_and_the_grace_begins() -> None:
    two = Two(CONFIG)
    wire = two.link()
    two.advance(1)
    wire.stalled |= {"leader", "follower"}
    two.advance(6)
    assert two.leader.session.status().links == ()
    assert two.leader.session.data_link is None
    at = two.leader.session.next_timeout()
    assert at is not None
    assert 100 < at - two.now < 120


def test_a_process_that_slept_gives_its_links_another_chance() -> None:
    two = Two(CONFIG)
    wire = two.link()
    two.advance(3)
    two.now += 60  # both were stopped; what the peer sent lies in the socket
    for end in two.ends:
        end.take(end.session.handle_timeout(two.now))
    assert two.leader.dead == []
    two.advance(10)
    assert two.leader.dead == two.follower.dead == []
    wire.stalled |= {"leader", "follower"}
    two.advance(6)
    assert len(two.leader.dead) == 1


def test_the_reason_names_the_direction() -> None:
    link = LinkState(1, 0.0, CONFIG)
    link.heard(10, 4.0)
    assert link.dead(4.4) == ""
    assert link.dead(4.5) == "the peer has not heard us for 4.5 s"
    link.on_link_ack(10, 4.5)
    assert link.dead(4.6) != "", "an acknowledgement may speak of what was heard long ago"
    link = LinkState(1, 0.0, CONFIG)
    link.confirmed_at = 3.0
    assert link.dead(4.6) == "nothing heard for 4.6 s"


def test_pings_are_due_once_an_interval() -> None:
    link = LinkState(1, 0.0, CONFIG)
    assert link.ping_due(0.0)
    assert not link.ping_due(1.4)
    assert link.ping_due(1.5)
    link.pings_due.append(1)
    assert not link.ping_due(3.0), "one that could not be sent yet is enough"


def test_a_pong_nobody_asked_for_proves_nothing() -> None:
    link = LinkState(1, 0.0, CONFIG)
    assert link.on_pong(5, 3.0) is None
    assert link.confirmed_at == 0.0
    assert link.rtt is None


def test_unanswered_pings_are_not_kept_for_ever() -> None:
    link = LinkState(1, 0.0, CONFIG)
    for number in range(200):
        link.ask(number)
        link.ping_sent(number, 0.0)
    assert link.on_pong(0, 1.0) is None
    assert link.on_pong(199, 1.0) == 1.0


def test_small_traffic_is_acknowledged_in_company_only() -> None:
    link = LinkState(1, 0.0, CONFIG)
    link.heard(8 * KIB - 1, 0.0)
    assert not link.ack_due(100.0)
    assert link.ack(100.0) == 8 * KIB - 1
    link.heard(512, 100.0)
    assert link.ack(100.04) is None, "crumbs are not worth a frame each time"
    assert link.ack(100.06) == 8 * KIB + 511
    assert link.ack(101.0) is None


def test_larger_traffic_is_acknowledged_in_time() -> None:
    link = LinkState(1, 0.0, CONFIG)
    link.heard(8 * KIB, 1.0)
    assert not link.ack_due(1.019)
    assert link.next_timeout() == 0.0  # the first ping
    assert link.ack_due(1.02)
    link.ack(1.02)
    link.heard(16 * KIB, 1.0201)
    assert not link.ack_due(1.0205), "not more often than a millisecond"
    assert link.ack_due(1.0211)
    link.ack(1.0211)
    link.heard(256 * KIB, 1.0212)
    assert link.ack_due(1.0212), "but at once when much has come"


def test_a_burst_that_waits_for_its_acknowledgement_gets_it_after_the_pause() -> None:
    """Its sender has nothing more in flight: 20 ms for each 64 KiB would be 3 MB/s."""
    link = LinkState(1, 1.0, CONFIG)
    link.ping_due(1.0)
    link.heard(64 * KIB, 1.01)
    assert link.ack_due(1.01)
    link.ack(1.01)
    assert link.heard(9 * KIB, 1.0102) == link.next_timeout() == pytest.approx(1.0302), "it has a time"
    assert link.heard(55 * KIB, 1.0104) == link.next_timeout() == pytest.approx(1.011), "now a sooner one"
    assert link.heard(KIB, 1.0105) is None
    assert not link.ack_due(1.0109)
    assert link.ack_due(1.0111)


def test_a_clogged_link_keeps_no_timer_running() -> None:
    link = LinkState(1, 0.0, CONFIG)
    link.ping_due(0.0)
    link.heard(8 * KIB, 1.0)
    assert link.next_timeout() == pytest.approx(1.02)
    link.ripen(1.02)
    assert link.next_timeout() == 1.5
    assert link.ack_due(1.021)


def test_a_peer_that_measures_gets_a_moment_without_data() -> None:
    link = LinkState(1, 0.0, CONFIG)
    link.on_ping(1, True, 1.0)
    assert link.hold_until == 2.0
    link.on_ping(2, False, 1.1)
    assert link.hold_until == 0.0
    link.on_ping(3, True, 1.2)
    link.ripen(2.2)
    assert link.hold_until == 0.0


@given(st.floats(0, 1e8))
@example(1020.4094169084279)  # of which 4.5 s later is 4.4999999999998863 s ago
def test_at_the_time_that_it_names_there_is_something_to_do(heard: float) -> None:
    link = LinkState(1, heard, CONFIG)
    for _ in range(10):
        at = link.next_timeout()
        if link.dead(at):
            return
        assert link.ping_due(at)
    raise AssertionError("a silent link never dies")
