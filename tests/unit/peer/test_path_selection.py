"""Which link carries the data, and which are closed: the rules one by one, and what always holds."""

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from meshd.link.interface import LinkKind, Rank
from meshd.peer.path_selection import (
    MOVE_PAUSE,
    PROBATION_FIRST,
    PROBATION_MOST,
    PUNCHED,
    SETTLED_AFTER,
    SILENT_AFTER,
    STANDBY_FOR,
    YOUNG,
    Chooser,
    Path,
    surplus,
)

NOW = 10_000.0
TCP, WEBRTC, QUIC, RELAY = LinkKind.TCP, LinkKind.WEBRTC, LinkKind.QUIC, LinkKind.RELAY


def path(
    link_id: int,
    kind: LinkKind = TCP,
    *,
    silent: float = 0.0,
    age: float = 10.0,
    now: float = NOW,
    rtt: float | None = 0.01,
    rate: float | None = None,
    way: str = "public",
) -> Path:
    where = {RELAY: "relayed", WEBRTC: PUNCHED, QUIC: PUNCHED}.get(kind, way)
    return Path(link_id, kind, rtt, now - silent, now - age, where, rate)


def settled(*paths: Path, current: int, now: float = NOW) -> Chooser:
    """A chooser that has known these links for long."""
    chooser = Chooser()
    then = now - 2 * MOVE_PAUSE
    chooser.choose([replace(one, last_heard=then) for one in paths], current, then)
    return chooser


def test_no_link_is_no_choice() -> None:
    assert Chooser().choose([], None, NOW).link_id is None
    assert Chooser().choose([], 3, NOW).why == "no link"


def test_the_first_link_carries_whatever_it_is() -> None:
    choice = Chooser().choose([path(7, RELAY)], None, NOW)
    assert (choice.link_id, choice.why) == (7, "first relay link")
    assert Chooser().choose([path(7, RELAY)], 7, NOW).why == "best known"


def test_what_is_left_when_a_link_ends_is_chosen_by_the_same_rules() -> None:
    chooser = Chooser()
    every = [path(1, TCP), path(2, RELAY, rtt=0.001), path(3, WEBRTC, rtt=0.1)]
    assert chooser.choose(every, None, NOW).link_id == 1
    choice = chooser.choose(every[1:], None, NOW + 1)
    assert (choice.link_id, choice.why) == (3, "webrtc is left, tcp ended")


def test_relayed_becomes_direct_at_once_and_udp_becomes_tcp() -> None:
    chooser = Chooser()
    paths = [path(1, RELAY)]
    assert chooser.choose(paths, None, NOW).link_id == 1
    paths.append(path(2, WEBRTC, age=0))
    choice = chooser.choose(paths, 1, NOW + 0.5)
    assert (choice.link_id, choice.why) == (2, "webrtc replaces relay")
    paths.append(path(3, TCP, age=0, way=PUNCHED))
    choice = chooser.choose(paths, 2, NOW + 1)
    assert (choice.link_id, choice.why) == (3, "punched tcp replaces webrtc")


def test_a_passing_link_gives_way_to_any_other_and_back_to_none() -> None:
    passing = replace(path(1, RELAY), passing=True)
    steady = path(2, RELAY, rtt=0.3, age=0.0)
    chooser = Chooser()
    assert chooser.choose([passing], None, NOW).link_id == 1
    assert close([passing, steady], 1) == ()
    assert chooser.choose([passing, steady], 1, NOW + 0.1).link_id == 2
    assert close([passing, steady], 2) == (1,)
    assert chooser.choose([replace(passing, rtt=0.001), steady], 2, NOW + 0.2).link_id == 2


def test_of_one_rank_the_cheaper_one_wins_when_all_have_come() -> None:
    slow, quick = path(1, WEBRTC, rtt=0.1), path(2, QUIC, rtt=0.02)
    chooser = Chooser()
    assert chooser.choose([slow], None, NOW).link_id == 1
    assert chooser.choose([slow, quick], 1, NOW + SETTLED_AFTER - 1).link_id == 1
    later = NOW + SETTLED_AFTER
    fresh = [replace(one, last_heard=later) for one in (slow, quick)]
    choice = chooser.choose(fresh, 1, later)
    assert (choice.link_id, choice.why) == (2, "quic replaces webrtc: from 110 to 30 ms an exchange")


def test_a_little_better_is_not_worth_a_move() -> None:
    pair = [path(1, WEBRTC, rtt=0.1), path(2, QUIC, rtt=0.09)]
    assert settled(*pair, current=1).choose(pair, 1, NOW).link_id == 1
    unknown = [path(1, WEBRTC, rtt=0.1), path(2, QUIC, rtt=None)]
    assert settled(*unknown, current=1).choose(unknown, 1, NOW).link_id == 1


def test_a_link_that_carries_little_loses_to_one_that_may_carry_more() -> None:
    lossy = [path(1, WEBRTC, rtt=0.05, rate=0.2e6), path(2, QUIC, rtt=0.06)]
    assert settled(*lossy, current=1).choose(lossy, 1, NOW).link_id == 2
    both = [path(1, WEBRTC, rtt=0.05, rate=0.2e6), path(2, QUIC, rtt=0.06, rate=0.2e6)]
    assert settled(*both, current=1).choose(both, 1, NOW).link_id == 1


def test_tcp_beats_udp_however_quick_that_is() -> None:
    pair = [path(1, QUIC, rtt=0.001), path(2, TCP, rtt=0.2, way=PUNCHED)]
    assert settled(*pair, current=1).choose(pair, 1, NOW).link_id == 2
    assert settled(*pair, current=2).choose(pair, 2, NOW).link_id == 2


def test_one_that_is_heard_beats_a_better_one_that_is_silent() -> None:
    pair = [path(1, TCP, silent=SILENT_AFTER + 0.1), path(2, RELAY)]
    choice = settled(*pair, current=1).choose(pair, 1, NOW)
    assert choice.link_id == 2
    assert choice.why == "relay replaces tcp silent for 2.6 s"
    pair = [path(1, silent=SILENT_AFTER), path(2, RELAY)]
    assert settled(*pair, current=1).choose(pair, 1, NOW).link_id == 1
    alone = [path(1, silent=100)]
    assert settled(*alone, current=1).choose(alone, 1, NOW).link_id == 1


def test_a_second_gain_waits_five_minutes() -> None:
    chooser = Chooser()
    webrtc, tcp = path(1, WEBRTC), path(2, TCP)
    assert chooser.choose([webrtc], None, NOW).link_id == 1
    assert chooser.choose([webrtc, tcp], 1, NOW).link_id == 2

    def at(now: float, *paths: Path) -> list[Path]:
        return [replace(one, last_heard=now) for one in paths]

    quiet = [webrtc, replace(tcp, last_heard=NOW - 3)]
    assert chooser.choose(quiet, 2, NOW + 1).link_id == 1
    for seconds in (2, 60, MOVE_PAUSE - 1):
        choice = chooser.choose(at(NOW + seconds, webrtc, tcp), 1, NOW + seconds)
        assert (choice.link_id, choice.why) == (1, "tcp waits: the last switch was a moment ago")
    assert chooser.choose(at(NOW + MOVE_PAUSE, webrtc, tcp), 1, NOW + MOVE_PAUSE).link_id == 2


def test_a_direct_path_that_dies_young_is_on_probation_longer_each_time() -> None:
    chooser = Chooser()
    now, number = NOW, 1
    waited = []
    assert chooser.choose([path(99, RELAY, now=now)], None, now).link_id == 99
    for _ in range(5):
        number += 1
        came = now
        while True:
            paths = [path(99, RELAY, now=now), path(number, WEBRTC, age=now - came, now=now)]
            if chooser.choose(paths, 99, now).link_id == number:
                break
            now += 1
        waited.append(now - came)
        now += YOUNG - 1  # it carries, and dies
        assert chooser.choose([path(99, RELAY, now=now)], None, now).link_id == 99
    assert waited == [0, PROBATION_FIRST, 2 * PROBATION_FIRST, 4 * PROBATION_FIRST, PROBATION_MOST]


def test_a_relay_that_holds_long_forgives_no_direct_path() -> None:
    chooser = Chooser()
    assert chooser.choose([path(1, WEBRTC)], None, NOW).link_id == 1
    assert chooser.choose([path(2, RELAY, now=NOW + 1)], 2, NOW + 1).link_id == 2
    now = NOW + 1 + 2 * MOVE_PAUSE
    assert chooser.choose([path(2, RELAY, now=now)], 2, now).link_id == 2
    both = [path(2, RELAY, now=now), path(3, WEBRTC, age=0, now=now)]
    assert chooser.choose(both, 2, now).why == "webrtc is on probation for 5 s"
    assert chooser.choose([path(4, RELAY, now=now)], None, now + 1).link_id == 4
    now += YOUNG / 2
    both = [path(4, RELAY, now=now), path(5, WEBRTC, age=0, now=now)]
    assert chooser.choose(both, 4, now).why == "webrtc is on probation for 5 s", "its end is no fault"


def test_a_path_that_held_long_is_forgiven() -> None:
    chooser = Chooser()
    assert chooser.choose([path(1, WEBRTC)], None, NOW).link_id == 1
    assert chooser.choose([path(2, RELAY, now=NOW + 1)], 2, NOW + 1).link_id == 2  # the session moved on
    fresh = path(3, WEBRTC, age=0, now=NOW + 1)
    choice = chooser.choose([path(2, RELAY, now=NOW + 1), fresh], 2, NOW + 1)
    assert (choice.link_id, choice.why) == (2, "webrtc is on probation for 5 s")
    later = NOW + 10
    assert (
        chooser.choose([path(2, RELAY, now=later), replace(fresh, last_heard=later)], 2, later).link_id == 3
    )
    later += MOVE_PAUSE
    assert chooser.choose([replace(fresh, last_heard=later)], 3, later).link_id == 3
    assert chooser.choose([path(4, RELAY, now=later)], None, later).link_id == 4
    both = [path(4, RELAY, now=later), path(5, WEBRTC, age=0, now=later)]
    assert chooser.choose(both, 4, later).link_id == 5


def close(paths: list[Path], chosen: int, *, since: float = NOW) -> tuple[int, ...]:
    return surplus(paths, chosen, since=since, now=NOW)


def test_one_of_each_kind_is_kept() -> None:
    paths = [path(1, age=9), path(2, age=5), path(3, RELAY), path(4, RELAY, age=1)]
    assert close(paths, 1) == (2, 3)
    assert close(paths, 2) == (1, 3)


def test_a_newer_link_waits_until_the_chosen_one_was_heard_since() -> None:
    """After a change of addresses the chosen one may be dead and not know it."""
    paths = [path(1, age=50, silent=2), path(2, age=1)]
    assert close(paths, 1) == ()
    assert close([path(1, age=50, silent=0.5), path(2, age=1)], 1) == (2,)
    assert close(paths, 2) == (1,)


def test_what_is_of_no_use_goes_after_a_while() -> None:
    long = NOW - STANDBY_FOR
    every = [path(1, TCP), path(2, WEBRTC), path(3, QUIC), path(4, RELAY)]
    assert close(every, 1, since=long + 1) == ()
    assert close(every, 1, since=long) == (2, 3, 4)
    punched = [path(1, TCP, way=PUNCHED), *every[1:]]
    assert close(punched, 1, since=long) == (2, 3)
    assert close(every, 2, since=long) == (3,)
    assert close(every, 4, since=long) == ()
    silent = [path(1, TCP, silent=3), *every[1:]]
    assert close(silent, 1, since=long) == ()
    fresh = [path(1, TCP, silent=2), path(2, TCP, age=1), path(3, RELAY, age=1)]
    assert close(fresh, 1, since=long) == ()  # the peer may know that the first is dead


PATHS = st.lists(
    st.builds(
        path,
        st.integers(1, 99),
        st.sampled_from(LinkKind),
        silent=st.floats(0, 6),
        age=st.floats(0, 100),
        rtt=st.none() | st.floats(0.0001, 1),
        rate=st.none() | st.floats(1e3, 1e8),
    ),
    max_size=6,
    unique_by=lambda one: one.link_id,
)


@given(PATHS, st.none() | st.integers(1, 99), st.floats(0, 100))
def test_the_choice_is_there_stable_and_never_closed(
    paths: list[Path], current: int | None, since: float
) -> None:
    chooser = Chooser()
    choice = chooser.choose(paths, current, NOW)
    ids = {one.link_id for one in paths}
    assert (choice.link_id in ids) if paths else (choice.link_id is None)
    assert choice.why
    if choice.link_id is not None:
        assert chooser.choose(paths, choice.link_id, NOW).link_id == choice.link_id
        closed = surplus(paths, choice.link_id, since=NOW - since, now=NOW)
        assert choice.link_id not in closed
        assert set(closed) <= ids
        if since < STANDBY_FOR:
            kinds = {one.kind for one in paths}
            assert {one.kind for one in paths if one.link_id not in closed} == kinds


def test_data_does_not_move_from_one_silent_link_to_another() -> None:
    slow, quick = path(1, rtt=1.0, silent=60.0), path(2, rtt=0.5, silent=SILENT_AFTER + 1.0)
    chooser = settled(slow, quick, current=1)
    choice = chooser.choose([slow, quick], 1, NOW)
    assert (choice.link_id, choice.why) == (1, "all links are silent")
    assert chooser.choose([slow, replace(quick, last_heard=NOW)], 1, NOW).link_id == 2


class History:
    """Links that come, go, fall silent and are heard again, and what the chooser makes of it."""

    def __init__(self) -> None:
        self.chooser = Chooser()
        self.now = NOW
        self.paths: dict[int, Path] = {}
        self.silent: set[int] = set()
        self.current: int | None = None
        self.gains: list[float] = []

    def present(self) -> list[Path]:
        for number, one in self.paths.items():
            if number not in self.silent:
                self.paths[number] = replace(one, last_heard=self.now)
        return list(self.paths.values())

    def look(self) -> None:
        paths = self.present()
        before = self.paths.get(self.current) if self.current is not None else None
        choice = self.chooser.choose(paths, before.link_id if before else None, self.now)
        assert (choice.link_id is None) == (not paths)
        if before is not None and choice.link_id != before.link_id and choice.link_id is not None:
            after = self.paths[choice.link_id]
            assert not after.silent(self.now)
            upgrade = before.rank is Rank.RELAYED and after.rank < Rank.RELAYED
            if not before.silent(self.now) and not upgrade:
                self.gains.append(self.now)
                assert after.rank <= before.rank  # never from direct to relayed without a death
        self.current = choice.link_id


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["come", "go", "go current", "silence", "heard", "rtt", "wait"]),
        st.integers(0, 5),
        st.sampled_from(LinkKind),
        st.floats(0.001, 1),
        st.sampled_from([0.0, 0.3, 1.0, 3.0, 20.0, 100.0]),
    ),
    max_size=60,
)


@given(STEPS)
def test_at_most_one_move_in_five_minutes_without_a_death(
    steps: list[tuple[str, int, LinkKind, float, float]],
) -> None:
    history = History()
    number = 0
    for what, which, kind, rtt, pause in steps:
        known = list(history.paths)
        chosen = known[which % len(known)] if known else None
        if what == "come":
            number += 1
            history.paths[number] = path(number, kind, age=0, now=history.now, rtt=rtt)
        elif what == "go current" and history.current is not None:
            history.paths.pop(history.current, None)
        elif chosen is not None and what == "go":
            history.paths.pop(chosen)
        elif chosen is not None and what == "silence":
            history.silent.add(chosen)
        elif chosen is not None and what == "heard":
            history.silent.discard(chosen)
        elif chosen is not None and what == "rtt":
            history.paths[chosen] = replace(history.paths[chosen], rtt=rtt)
        end = history.now + pause
        history.look()
        while history.now < end:
            history.now = min(end, history.now + 1.5)
            history.look()
    assert all(later - earlier >= MOVE_PAUSE for earlier, later in itertools.pairwise(history.gains))


@given(STEPS)
def test_a_live_direct_link_is_used_within_the_probation(
    steps: list[tuple[str, int, LinkKind, float, float]],
) -> None:
    history = History()
    for number, (_, _, kind, rtt, pause) in enumerate(steps, 1):
        history.paths = {number: path(number, kind, age=0, now=history.now, rtt=rtt)}
        history.look()
        history.now += pause
    history.paths = {
        1000: path(1000, RELAY, age=0, now=history.now),
        1001: path(1001, WEBRTC, age=0, now=history.now),
    }
    history.look()
    end = history.now + PROBATION_MOST
    while history.now < end:
        history.now += 1.5
        history.look()
    assert history.current == 1001
