"""Which link carries the data, and which are closed: the rules one by one, and what always holds."""

from hypothesis import given
from hypothesis import strategies as st
from meshd.link.interface import LinkKind
from meshd.peer.paths import SILENT_AFTER, Path, choose, surplus

NOW = 100.0


def path(link_id: int, kind: LinkKind = LinkKind.TCP, *, silent: float = 0.0, age: float = 10.0) -> Path:
    return Path(link_id, kind, 0.01, NOW - silent, NOW - age)


def test_no_link_is_no_choice() -> None:
    assert choose([], None, NOW).link_id is None
    assert choose([], 3, NOW).why == "no link"


def test_the_cheapest_kind_wins_and_says_what_it_replaces() -> None:
    kinds = [LinkKind.RELAY, LinkKind.WEBRTC, LinkKind.QUIC, LinkKind.TCP]
    paths = [path(number, kind) for number, kind in enumerate(kinds)]
    assert choose(paths, None, NOW).link_id == 3
    assert choose(paths[:3], 0, NOW).link_id == 2
    choice = choose(paths, 0, NOW)
    assert (choice.link_id, choice.why) == (3, "tcp replaces relay")


def test_one_that_is_heard_beats_a_cheaper_one_that_is_silent() -> None:
    paths = [path(1, LinkKind.TCP, silent=SILENT_AFTER + 0.1), path(2, LinkKind.RELAY)]
    choice = choose(paths, 1, NOW)
    assert choice.link_id == 2
    assert choice.why == "relay replaces tcp silent for 2.6 s"
    assert choose([path(1, silent=SILENT_AFTER), path(2, LinkKind.RELAY)], 1, NOW).link_id == 1


def test_within_a_kind_the_present_one_stays_while_it_is_heard() -> None:
    paths = [path(1, age=50), path(2, age=1)]
    assert choose(paths, 1, NOW).link_id == 1
    assert choose(paths, None, NOW).link_id == 2
    assert choose([path(1, age=50, silent=3), path(2, age=1)], 1, NOW).link_id == 2


def test_one_of_each_kind_is_kept() -> None:
    paths = [path(1, age=9), path(2, age=5), path(3, LinkKind.RELAY), path(4, LinkKind.RELAY, age=1)]
    assert surplus(paths, 1) == (2, 3)
    assert surplus(paths, 2) == (1, 3)


def test_a_newer_link_waits_until_the_chosen_one_was_heard_since() -> None:
    """After a change of addresses the chosen one may be dead and not know it."""
    paths = [path(1, age=50, silent=2), path(2, age=1)]
    assert surplus(paths, 1) == ()
    assert surplus([path(1, age=50, silent=0.5), path(2, age=1)], 1) == (2,)
    assert surplus(paths, 2) == (1,)


PATHS = st.lists(
    st.builds(
        path,
        st.integers(1, 99),
        st.sampled_from(LinkKind),
        silent=st.floats(0, 6),
        age=st.floats(0, 100),
    ),
    max_size=6,
    unique_by=lambda one: one.link_id,
)


@given(PATHS, st.none() | st.integers(1, 99))
def test_the_choice_is_there_stable_and_never_closed(paths: list[Path], current: int | None) -> None:
    choice = choose(paths, current, NOW)
    ids = {one.link_id for one in paths}
    assert (choice.link_id in ids) if paths else (choice.link_id is None)
    assert choice.why
    if choice.link_id is not None:
        assert choose(paths, choice.link_id, NOW).link_id == choice.link_id
        closed = surplus(paths, choice.link_id)
        assert choice.link_id not in closed
        assert set(closed) <= ids
        kinds = {one.kind for one in paths}
        assert {one.kind for one in paths if one.link_id not in closed} == kinds
