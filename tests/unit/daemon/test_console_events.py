"""What has happened, in words: from lines of the log, and from what two statuses differ in."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.admin.status import HealthWarning, LinkView, PeerView, Status
from meshd.base.log import RememberedLine
from meshd.daemon.console_events import MOST_EVENTS, Event, event_of, events_between, latest
from meshd.daemon.console_words import WORDS

from tests.reference.log_events import EVENTS, FIELDS
from tests.unit.admin.fake import LINK, PEER, full_status

NAMES = {PEER.id: "garage", "r" * 52: "attic"}
AT = "1970-01-01T00:00:12.500000Z"
RELAYED = replace(LINK, path="relayed")


def said(event: str, level: str = "info", **fields: str) -> Event:
    return event_of(RememberedLine(AT, level, event, fields), NAMES)


def with_link(link: LinkView | None, **changes: object) -> Status:
    changed: PeerView = replace(PEER, link=link, **changes)  # type: ignore[arg-type]
    return replace(full_status(), peers=(changed,), warnings=())


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (said("link_up", peer="qqqqqqqqqq", link="quic"), "garage connected over quic"),
        (said("link_up", peer="zzzz", link="quic"), "zzzz connected over quic"),
        (said("member_admitted", peer="zzzz", name="loft"), "loft joined the mesh"),
        (said("peer_left", peer="rrrr", code="0"), "attic disconnected"),
        (said("model_state", model="tiny", state="loading", why="hashing"), "tiny (loading): hashing"),
        (said("model_state", model="tiny", state="ready", why=""), "tiny (ready)"),
        (said("peer_gone"), "lost a node"),
    ],
)
def test_lines_of_the_log(event: Event, text: str) -> None:
    assert (event.text, event.at) == (text, 12.5)


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (said("model_state", model="tiny", state="failed", why="no room"), "warning"),
        (said("model_state", model="tiny", state="ready", why=""), "info"),
        (said("peer_gone", "warning", why="x"), "warning"),
        (said("model_lost", "error", why="x"), "error"),
        (said("woke_up", "debug", seconds="3"), "info"),
    ],
)
def test_the_level_is_that_of_the_line_or_of_a_bad_state(event: Event, level: str) -> None:
    assert event.level == level


def test_what_has_words_is_logged() -> None:
    """Each event with words is one of the log, and its fields are fields of the log."""
    assert WORDS.keys() <= EVENTS.keys() | {"model_state"}
    fields = {part.split("}")[0] for text in WORDS.values() for part in text.split("{")[1:]}
    assert fields <= FIELDS.keys() | {"who"}


@given(st.sampled_from(sorted(WORDS)), st.dictionaries(st.sampled_from(sorted(FIELDS)), st.text()))
def test_any_fields_are_only_put_in(event: str, fields: dict[str, str]) -> None:
    """Also those with braces, which are no fields of ours."""
    text = said(event, **fields).text
    assert all(fields[name].rstrip(": ") in text for name in fields if f"{{{name}}}" in WORDS[event])


def test_a_path_that_changes() -> None:
    why = "UDP is blocked here"
    [worse] = events_between(with_link(LINK), with_link(RELAYED, why_not_direct=why), 5.0)
    assert worse == Event(5.0, "info", f"garage is reached through others now, by {LINK.kind}: {why}")
    [better] = events_between(with_link(RELAYED), with_link(LINK), 6.0)
    assert better.text == f"garage is reached directly now, by {LINK.kind}"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (with_link(LINK), with_link(LINK)),
        (with_link(LINK), with_link(None)),
        (with_link(None), with_link(RELAYED)),
        (with_link(LINK), replace(full_status(), peers=(), warnings=())),
        (replace(full_status(), peers=(), warnings=()), with_link(RELAYED)),
        (with_link(LINK), with_link(replace(LINK, path="public"))),
    ],
)
def test_what_the_log_has_is_not_told_twice(before: Status, after: Status) -> None:
    assert list(events_between(before, after, 1.0)) == []


def test_warnings_with_other_figures_are_the_same() -> None:
    one = HealthWarning(code="clock_off", severity="warning", what="the clock is 3 s off", hint="set it")
    two, other = replace(one, what="the clock is 4 s off"), replace(one, code="disk")
    lost = replace(one, code="peer_lost", what="garage is lost")
    status = with_link(LINK)

    def told(before: tuple[HealthWarning, ...], after: tuple[HealthWarning, ...]) -> list[str]:
        between = events_between(replace(status, warnings=before), replace(status, warnings=after), 1.0)
        return [event.text for event in between]

    assert told((one,), (two,)) == []
    assert told((one,), (two, other)) == [other.what]
    assert told((one,), ()) == [f"no longer: {one.what}"]
    assert told((), (lost,)) == [], "the log has it"


@given(st.lists(st.floats(0, 1e9), max_size=2 * MOST_EVENTS))
def test_the_newest_are_kept_in_order(times: list[float]) -> None:
    found = latest(Event(at, "info", "") for at in times)
    assert [event.at for event in found] == sorted(times)[-MOST_EVENTS:]
