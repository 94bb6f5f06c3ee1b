"""When which dial starts, when it is given up, and how the last ones ended, in words."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.link.interface import TRANSPORTS, DialFailure, LinkKind, Transport, Tried
from meshd.peer.dial_schedule import (
    ASK_SECONDS,
    BEHIND_DELAY,
    GONE_SECONDS,
    IMPROVE,
    LONG_LIFE,
    NEAR_DELAY,
    RETRY,
    RETRY_REFUSED,
    SHORT_LIFE,
    UPGRADE,
    UPGRADE_BEHIND,
    UPGRADE_SPARE,
    Departure,
    DialPlan,
    DialSchedule,
    Facts,
    Failed,
    Present,
    last_error,
    wish,
)
from meshd.wire.address import Candidate

TCP, WEBRTC, QUIC, RELAY = LinkKind.TCP, LinkKind.WEBRTC, LinkKind.QUIC, LinkKind.RELAY
BY_TCP, BY_WEBRTC, BY_QUIC, BY_RELAY = Transport.TCP, Transport.WEBRTC, Transport.QUIC, Transport.RELAY
ALL = (BY_TCP, Transport.TCP_PUNCH, BY_RELAY, BY_WEBRTC, BY_QUIC)
NOW = 1000.0
NONE = Facts(())


def present(kind: LinkKind, way: str = "", *, selected: bool = True, lively: bool = True) -> Present:
    where = {RELAY: "relayed", WEBRTC: "punched", QUIC: "punched"}.get(kind, "public")
    return Present(kind, way or where, selected, lively)


def facts(*links: Present, leads: bool = True) -> Facts:
    return Facts(links, leads=leads)


def started(schedule: DialSchedule, facts: Facts, now: float) -> tuple[int, ...]:
    """Do as the plan says; returns what was started."""
    plan = schedule.plan(facts, now)
    for index in plan.drop:
        schedule.over(index)
    for index in plan.start:
        schedule.began(index)
    return plan.start


def test_tcp_and_relay_start_at_once_the_dearer_ones_a_little_later() -> None:
    schedule = DialSchedule(ALL)
    assert started(schedule, NONE, NOW) == (0, 2)
    assert schedule.plan(NONE, NOW).at == NOW + 0.1
    assert started(schedule, NONE, NOW + 0.1) == (1,)
    assert started(schedule, NONE, NOW + 0.15) == (3,)
    assert started(schedule, NONE, NOW + 0.2) == (4,)
    assert schedule.plan(NONE, NOW + 0.2) == DialPlan()
    assert DialSchedule(()).plan(NONE, NOW) == DialPlan()


def test_within_a_lan_what_is_dearer_waits_longer_unless_tcp_has_failed() -> None:
    near = Facts((), near=True)
    schedule = DialSchedule(ALL)
    assert started(schedule, near, NOW) == (0, 2)
    assert schedule.plan(near, NOW + 0.3) == DialPlan(at=NOW + (0.1 + NEAR_DELAY))
    schedule.failed(0, NOW + 0.3, 0.5)
    schedule.failed(2, NOW + 0.3, 0.5)
    assert schedule.plan(near, NOW + 0.3).start == (1,)


def test_when_all_that_run_have_failed_the_next_starts_at_once() -> None:
    schedule = DialSchedule(ALL)
    assert started(schedule, NONE, NOW) == (0, 2)
    schedule.failed(0, NOW + 0.01, 0.0)
    assert started(schedule, NONE, NOW + 0.01) == ()
    schedule.failed(2, NOW + 0.02, 0.0)
    assert started(schedule, NONE, NOW + 0.02) == (1,)


def test_nothing_is_dialled_while_nothing_is_known() -> None:
    schedule = DialSchedule(ALL)
    assert schedule.plan(Facts((), possible=False), NOW) == DialPlan()
    assert started(schedule, NONE, NOW + 50) == (0, 2)


def test_what_cannot_be_better_is_given_up_but_no_link_that_greets() -> None:
    schedule = DialSchedule(ALL)
    for at in (0, 0.1, 0.15, 0.2):
        started(schedule, NONE, NOW + at)
    schedule.over(0)
    schedule.dialled(3)
    assert schedule.plan(facts(present(TCP)), NOW + 0.4) == DialPlan(drop=(1, 2, 4))
    schedule = DialSchedule(ALL)
    for at in (0, 0.1, 0.15, 0.2):
        started(schedule, NONE, NOW + at)
    schedule.over(2)
    assert schedule.plan(facts(present(RELAY)), NOW + 0.4) == DialPlan()  # the race goes on


def test_wishes_beside_what_there_is() -> None:
    def wishes(*links: Present, leads: bool = True) -> list[object]:
        return [wish(transport, facts(*links, leads=leads), ALL) for transport in ALL]

    assert wishes() == [RETRY] * 5
    assert wishes(present(TCP, lively=False)) == [RETRY] * 5
    assert wishes(present(RELAY)) == [UPGRADE, UPGRADE, None, UPGRADE, UPGRADE]
    behind = UPGRADE_BEHIND
    assert wishes(present(RELAY), leads=False) == [UPGRADE, behind, None, behind, UPGRADE]
    assert wishes(present(WEBRTC)) == [IMPROVE, IMPROVE, IMPROVE, None, None]
    assert wishes(present(QUIC), present(RELAY, selected=False)) == [IMPROVE, IMPROVE, None, None, None]
    assert wishes(present(TCP)) == [None] * 5
    assert wishes(present(TCP, "punched")) == [None, None, IMPROVE, None, None]
    probation = present(WEBRTC, selected=False)
    assert wishes(present(RELAY), probation) == [UPGRADE, UPGRADE, None, None, UPGRADE]
    silent = present(TCP, lively=False)
    assert wishes(silent, present(RELAY, selected=False)) == [UPGRADE, UPGRADE, None, UPGRADE, UPGRADE]


def test_beside_a_passing_link_all_are_tried() -> None:
    passing = Facts((replace(present(RELAY), passing=True),))
    assert all(wish(transport, passing, ALL) is RETRY for transport in ALL)


def test_with_a_link_who_does_not_lead_waits_for_the_leader() -> None:
    for leads, delay in ((True, 0.15), (False, 0.15 + BEHIND_DELAY)):
        schedule = DialSchedule((BY_RELAY, BY_WEBRTC))
        assert started(schedule, facts(leads=leads), NOW) == (0,)
        schedule.over(0)
        relayed = facts(present(RELAY), leads=leads)
        assert schedule.plan(relayed, NOW + 0.1) == DialPlan(at=NOW + delay)
        assert started(schedule, relayed, NOW + delay) == (1,)


def test_of_two_of_a_kind_the_second_begins_later_and_patiently() -> None:
    every = tuple(Transport)
    relayed = facts(present(RELAY))
    rules = {transport: wish(transport, relayed, every) for transport in every}
    assert [rules.pop(relay) for relay in (BY_RELAY, Transport.MEMBER_RELAY)] == [None, None]
    assert rules.pop(Transport.QUIC_ICE) is UPGRADE_SPARE
    assert {BY_TCP, Transport.TCP_PUNCH, BY_QUIC, BY_WEBRTC} < set(rules)
    assert set(rules.values()) == {UPGRADE}
    over_ice = Transport.QUIC_ICE
    assert wish(over_ice, relayed, (BY_QUIC, over_ice)) is UPGRADE  # without WebRTC it is the only one
    schedule = DialSchedule((over_ice, BY_WEBRTC))
    schedule.plan(relayed, NOW)
    for index in (0, 1):
        schedule.failed(index, NOW, 0.0)
    assert schedule.plan(relayed, NOW).at == NOW + UPGRADE.first
    assert started(schedule, relayed, NOW + UPGRADE.first) == (1,)
    assert schedule.plan(relayed, NOW + UPGRADE.first).at == NOW + UPGRADE_SPARE.first


def test_a_relayed_peer_is_tried_again_within_the_minute_for_ever() -> None:
    schedule, now = DialSchedule((BY_WEBRTC,)), NOW
    relayed = facts(present(RELAY))
    assert schedule.plan(relayed, now).start == ()
    now += TRANSPORTS[BY_WEBRTC].delay
    pauses = []
    for _ in range(30):
        assert started(schedule, relayed, now) == (0,)
        schedule.failed(0, now, 0.0)
        at = schedule.plan(relayed, now).at
        assert at is not None
        pauses.append(at - now)
        now = at
    assert pauses == sorted(pauses)
    assert pauses[0] == UPGRADE.first
    assert pauses[-1] == UPGRADE.most <= 30


def test_each_way_has_its_own_pause_and_a_lost_link_ends_them_all() -> None:
    schedule = DialSchedule((BY_TCP, BY_RELAY))
    assert started(schedule, NONE, NOW) == (0, 1)
    schedule.failed(0, NOW, 0.0)
    schedule.over(1)
    relayed = facts(present(RELAY))
    for number in range(8):
        at = schedule.plan(relayed, NOW + number * 40).at or NOW + number * 40
        assert started(schedule, relayed, at) == (0,)
        schedule.failed(0, at, 0.0)
    end = at + 1
    schedule.ended(1, lived=300, now=end, draw=0.0)
    assert started(schedule, NONE, end) == (0, 1)


def test_a_link_that_dies_at_once_again_and_again_is_dialled_about_each_second() -> None:
    schedule, now = DialSchedule((BY_TCP,)), NOW
    dials = 0
    while now < NOW + 60:
        if started(schedule, NONE, now):
            dials += 1
            schedule.over(0)
            schedule.plan(facts(present(TCP)), now)
            schedule.ended(0, lived=SHORT_LIFE / 2, now=now, draw=0.0)
        now = max(schedule.plan(NONE, now).at or now, now + 0.01)
    assert 40 < dials < 70  # it may be a path that is cut again and again, and carries data in between


def test_who_says_no_is_left_alone_by_all_ways_until_something_changes() -> None:
    schedule = DialSchedule((BY_TCP, BY_RELAY))
    assert started(schedule, NONE, NOW) == (0, 1)
    schedule.failed(0, NOW, 0.0)
    schedule.failed(1, NOW, 0.0)
    schedule.refused(NOW, 0.0)
    assert schedule.plan(NONE, NOW) == DialPlan(at=NOW + RETRY_REFUSED.first)
    later = NOW + RETRY_REFUSED.first
    assert started(schedule, NONE, later) == (0, 1)
    schedule.failed(0, later, 0.0)
    schedule.refused(later, 0.0)
    schedule.over(1)
    assert schedule.plan(NONE, later).at == later + 2 * RETRY_REFUSED.first
    schedule.changed(NONE, again=False)
    assert started(schedule, NONE, later) == (0, 1)


def test_a_refusal_at_an_address_concerns_that_transport_alone() -> None:
    schedule = DialSchedule((BY_TCP, BY_RELAY))
    assert started(schedule, NONE, NOW) == (0, 1)
    schedule.failed(0, NOW, 0.0, refused=True)
    schedule.failed(1, NOW, 0.0)
    assert schedule.plan(NONE, NOW).at == NOW + RETRY.first
    assert started(schedule, NONE, NOW + RETRY.first) == (1,)
    assert schedule.plan(NONE, NOW + 1).at == NOW + RETRY_REFUSED.first


def test_a_refusal_is_forgotten_after_a_long_life() -> None:
    schedule = DialSchedule((BY_TCP,))
    for lived, pause in ((LONG_LIFE - 1, 4.0), (LONG_LIFE, 1.0)):
        schedule.refused(NOW, 0.0)
        schedule.refused(NOW, 0.0)
        schedule.ended(0, lived=lived, now=NOW, draw=0.0)
        schedule.refused(NOW, 0.0)
        assert schedule.plan(NONE, NOW).at == NOW + pause * RETRY_REFUSED.first
        schedule.changed(NONE, again=False)


def test_a_change_starts_what_runs_anew_when_it_fails() -> None:
    schedule = DialSchedule((BY_TCP,))
    assert started(schedule, NONE, NOW) == (0,)
    schedule.changed(NONE, again=False)
    assert schedule.plan(NONE, NOW) == DialPlan()
    schedule.failed(0, NOW + 3, 0.0)
    assert started(schedule, NONE, NOW + 3) == (0,)
    schedule.failed(0, NOW + 4, 0.0)
    assert schedule.plan(NONE, NOW + 4).at == NOW + 4 + RETRY.first


def test_a_change_of_addresses_dials_the_kinds_that_there_are_once_more() -> None:
    schedule = DialSchedule(ALL)
    here = facts(present(TCP))
    assert schedule.plan(here, NOW) == DialPlan()
    schedule.changed(here, again=True)
    assert started(schedule, here, NOW) == (0, 1)
    assert schedule.plan(here, NOW) == DialPlan()  # not given up, although nobody needs them
    schedule.over(0)
    schedule.failed(1, NOW + 1, 0.0)
    assert schedule.plan(here, NOW + 1) == DialPlan()


def test_a_change_of_addresses_gives_up_what_was_begun_before() -> None:
    schedule = DialSchedule((BY_WEBRTC,))
    assert started(schedule, NONE, NOW) == (0,)
    schedule.changed(NONE, again=True)
    assert schedule.plan(NONE, NOW).drop == (0,)
    schedule.over(0)
    assert started(schedule, NONE, NOW) == (0,)
    schedule.dialled(0)
    schedule.changed(NONE, again=True)
    assert schedule.plan(NONE, NOW) == DialPlan()  # its link greets: it may be good
    schedule.failed(0, NOW + 1, 0.0)
    assert started(schedule, NONE, NOW + 1) == (0,)


@given(st.integers(0, 10**6), st.booleans(), st.floats(0, 1, exclude_max=True))
def test_the_pause_grows_to_a_limit_and_chance_takes_away_only(
    failures: int, refused: bool, draw: float
) -> None:
    rule = RETRY_REFUSED if refused else RETRY
    delay = rule.delay(failures, draw)
    assert 0 < delay <= rule.delay(failures + 1, 0.0) <= rule.most
    assert delay >= rule.first * (1 - rule.jitter)


LINKS = st.lists(
    st.builds(present, st.sampled_from(LinkKind), selected=st.booleans(), lively=st.booleans()), max_size=3
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["fail", "refuse", "make", "change", "move", "wait"]),
            st.integers(0, 4),
            st.floats(0, 40),
            LINKS,
        ),
        max_size=50,
    )
)
def test_nothing_runs_twice_and_no_look_is_due_in_the_past(
    steps: list[tuple[str, int, float, list[Present]]],
) -> None:
    schedule, now = DialSchedule(ALL), NOW
    running: set[int] = set()
    for what, index, pause, links in steps:
        here = facts(*links)
        plan = schedule.plan(here, now)
        for dropped in plan.drop:
            running.remove(dropped)
            schedule.over(dropped)
        assert not running & set(plan.start)
        for begun in plan.start:
            running.add(begun)
            schedule.began(begun)
        assert set(schedule.plan(here, now).start) <= set(plan.drop)  # to be begun anew
        assert plan.at is None or plan.at > now
        assert schedule.running == bool(running)
        if index in running and what in ("fail", "refuse", "make"):
            running.remove(index)
            if what == "make":
                schedule.over(index)
            else:
                schedule.failed(index, now, 0.5, refused=now % 2 > 1)
                if what == "refuse":
                    schedule.refused(now, 0.5)
        elif what in ("change", "move"):
            schedule.changed(here, again=what == "move")
        now += pause
    now += RETRY_REFUSED.most
    for _ in range(5):  # all that runs not yet, each after its delay
        plan = schedule.plan(NONE, now)
        running |= set(plan.start)
        for index in plan.start:
            schedule.began(index)
        now = plan.at or now
    assert running == set(range(len(ALL)))


def test_every_direct_way_is_named_and_the_relay_is_not() -> None:
    failed = {
        4: Failed(Transport.WEBRTC, DialFailure.TIMEOUT, "x"),
        0: Failed(Transport.TCP, DialFailure.REFUSED, "x"),
        1: Failed(Transport.TCP_PUNCH, DialFailure.UNREACHABLE, "no route to `10.0.0.9`"),
        2: Failed(Transport.RELAY, DialFailure.TIMEOUT, "x"),
        3: Failed(Transport.QUIC_ICE, DialFailure.WRONG_PEER, "x"),
        6: Failed(Transport.QUIC_PORT_PREDICTION, DialFailure.TIMEOUT, "x"),
        7: Failed(Transport.QUIC, DialFailure.UNFIT, "x"),
        5: Failed(Transport.MEMBER_RELAY, None, "x"),
    }
    assert last_error(failed) == (
        "tcp connections are refused at the peer's addresses, punched tcp: no route to `10.0.0.9`, "
        "quic over ice finds another node at the peer's addresses, webrtc gets no answer, "
        "quic by port search gets no answer"
    )
    assert last_error({}) == ""


PLACE, OTHER = "10.0.0.5:17430", "10.0.0.9:17430"
FIRST, LAST = ASK_SECONDS[:2]


def dial(failure: DialFailure = DialFailure.REFUSED, place: str = PLACE) -> Tried:
    return Tried(place, failure, "")


def end(
    departure: Departure,
    *,
    remote: str = "10.0.0.5:51234",
    path: str = "lan",
    cut: bool = True,
    heard: float = 99.9,
    last: bool = True,
    now: float = 100.0,
) -> None:
    """One of its links ends."""
    departure.link_ended(remote, path, cut=cut, heard=heard, last=last, now=now)


def cut_off(*, path: str = "lan", cut: bool = True) -> Departure:
    """A peer whose only link ended at second 100."""
    found = Departure()
    found.link_up(b"first")
    end(found, path=path, cut=cut)
    return found


def ask(departure: Departure, *answers: Tried) -> str:
    """Dial when it is due, with these answers each time; return what is said in the end."""
    why = ""
    for _ in ASK_SECONDS:
        if (at := departure.ask_at) is None:
            break
        departure.asked()
        if why := departure.tried(answers, at):
            break
    return why


def test_a_process_that_is_gone_is_known_after_two_refusals() -> None:
    gone = cut_off()
    assert gone.hosts == {"10.0.0.5"} and gone.ask_at == 100.0 + FIRST
    gone.asked()
    assert gone.tried([dial()], 100.0 + FIRST) == "", "it may be dialling us this moment"
    assert gone.ask_at == 100.0 + LAST
    gone.asked()
    why = gone.tried([dial()], 100.0 + LAST)
    assert LAST == GONE_SECONDS
    assert "its process has ended" in why and PLACE in why
    assert gone.ask_at is None, "it is said once"


def test_hosts_are_as_in_the_candidates_of_a_peer() -> None:
    place = Candidate("fd00::2", 17430)
    gone = Departure()
    gone.link_up(b"first")
    end(gone, remote="[fd00::2]:51234")
    assert gone.hosts == {place.host} and ask(gone, dial(place=place.place))


def test_addresses_at_other_hosts_say_nothing() -> None:
    """A record lists each network of a machine: of those that lead nowhere from here nothing follows."""
    assert ask(cut_off(), dial(), dial(DialFailure.TIMEOUT, OTHER))
    assert not ask(cut_off(), dial(place=OTHER))
    assert not ask(cut_off())


@pytest.mark.parametrize("failure", [one for one in DialFailure if one is not DialFailure.REFUSED])
def test_any_other_answer_of_its_host_keeps_the_grace(failure: DialFailure) -> None:
    assert not ask(cut_off(), dial(failure))
    assert not ask(cut_off(), dial(), dial(failure, "10.0.0.5:17431"))


def test_a_port_that_its_kernel_has_yet_to_close_says_nothing() -> None:
    """It takes a connection, and resets it: neither a sign of life, nor of the end."""
    dying = cut_off()
    assert dying.tried([dial(DialFailure.HANDSHAKE)], 100.003) == ""
    assert ask(dying, dial())
    living = cut_off()
    assert living.tried([dial(DialFailure.HANDSHAKE)], 101.1) == "" and not ask(living, dial())


def test_a_path_that_fell_silent_keeps_the_grace() -> None:
    """The port may refuse then: it is a router, or another machine that has the address now."""
    assert cut_off(cut=False).ask_at is None
    assert not ask(cut_off(cut=False), dial())


@pytest.mark.parametrize("path", ["mapped", "punched", "relayed"])
def test_where_a_router_answers_in_its_place_the_grace_stays(path: str) -> None:
    assert not ask(cut_off(path=path), dial()) and ask(cut_off(path="public"), dial())


def test_refusals_alone_or_in_one_moment_are_not_enough() -> None:
    silent = Departure()
    silent.link_up(b"first")
    assert silent.tried([dial()], 100.0) == "" and silent.ask_at is None
    late = cut_off()
    for _ in range(2):  # this machine was busy
        late.asked()
    assert late.tried([dial()], 100.0 + LAST + 0.5) == "", "the first one"
    assert late.tried([dial()], 100.0 + LAST + 0.6) == ""
    assert late.ask_at == 100.0 + ASK_SECONDS[2], "it is asked again"
    assert late.tried([dial()], 100.0 + ASK_SECONDS[3]) != ""


def test_a_peer_that_is_back_is_not_gone() -> None:
    back = cut_off()
    back.asked()
    assert back.tried([dial()], 100.0 + FIRST) == ""
    back.link_up(b"first")
    assert back.tried([dial()], 100.0 + LAST) == "" and back.ask_at is None


def test_one_of_several_links_that_is_cut_does_not_count_while_others_bring_data() -> None:
    several = Departure()
    several.link_up(b"first")
    end(several, heard=100.0, last=False)
    assert several.ask_at is None
    end(several, remote=PLACE, cut=False, heard=130.0, now=134.5)
    assert not ask(several, dial()), "it lived on for half a minute"
    silent = Departure()
    silent.link_up(b"first")
    end(silent, heard=100.0, last=False)
    end(silent, remote=PLACE, cut=False, heard=100.0, now=104.5)
    assert ask(silent, dial()), "UDP has no goodbye of the kernel: that link fell silent at the same time"


def test_forged_signs_of_one_process_are_believed_once() -> None:
    forged = cut_off()
    assert ask(forged, dial())
    forged.link_up(b"first")
    end(forged, heard=200.0, now=200.0)
    assert forged.ask_at is None and not ask(forged, dial())
    again = cut_off()
    assert ask(again, dial())
    again.link_up(b"second")
    end(again, heard=200.0, now=200.0)
    assert ask(again, dial()), "it really was restarted"
