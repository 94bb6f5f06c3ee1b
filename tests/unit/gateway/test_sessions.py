"""Links are opened once and in time, sessions end, and only whole secrets are found."""

from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.sessions import (
    FRESH_SECONDS,
    LINK_SECONDS,
    MOST_LINKS,
    MOST_SESSIONS,
    SESSION_SECONDS,
    Sessions,
    cookie_name,
    cookie_values,
    drop_cookie,
    is_secret,
    set_cookie,
)

NAME = cookie_name(8090)
SECRETS = st.binary(min_size=32, max_size=32).map(lambda raw: urlsafe_b64encode(raw).decode().rstrip("="))


def secret(number: int) -> str:
    return urlsafe_b64encode(number.to_bytes(32, "big")).decode().rstrip("=")


def opened(number: int, now: float) -> tuple[Sessions, str]:
    """Return sessions with one that began at `now`, and its cookie."""
    sessions = Sessions()
    sessions.add_link(secret(number), now)
    assert sessions.spend(secret(number), now)
    sessions.begin(secret(number + 1), now, None)
    return sessions, secret(number + 1)


def test_a_link_opens_once() -> None:
    sessions = Sessions()
    name = sessions.add_link(secret(1), 0.0)
    assert sessions.link_state(name, 1.0) == "waiting"
    assert sessions.spend(secret(1), 1.0)
    assert sessions.link_state(name, 1.0) == "opened"
    assert not sessions.spend(secret(1), 1.0)


@pytest.mark.parametrize(("after", "opens"), [(LINK_SECONDS - 0.001, True), (LINK_SECONDS, False)])
def test_a_link_lasts_a_minute(after: float, opens: bool) -> None:
    sessions = Sessions()
    name = sessions.add_link(secret(1), 100.0)
    assert sessions.spend(secret(1), 100.0 + after) is opens
    assert sessions.link_state(name, 100.0 + after) == ("opened" if opens else "ended")


def test_of_a_thousand_links_the_newest_are_valid() -> None:
    sessions = Sessions()
    for number in range(1000):
        sessions.add_link(secret(number), 0.0)
    opens = [number for number in range(1000) if sessions.spend(secret(number), 0.0)]
    assert opens == list(range(1000 - MOST_LINKS, 1000))


def test_the_oldest_session_makes_room() -> None:
    sessions = Sessions()
    for number in range(MOST_SESSIONS + 1):
        sessions.begin(secret(1000 + number), float(number), None)
    found = [number for number in range(MOST_SESSIONS + 1) if sessions.find([secret(1000 + number)], 50.0)]
    assert found == list(range(1, MOST_SESSIONS + 1))


def test_a_session_ends_and_is_fresh_for_a_while() -> None:
    sessions, cookie = opened(1, 0.0)
    session = sessions.find([cookie], FRESH_SECONDS - 1)
    assert session is not None
    assert session.is_fresh(FRESH_SECONDS - 1) and not session.is_fresh(FRESH_SECONDS)
    assert sessions.is_open(session, SESSION_SECONDS - 1)
    assert not sessions.is_open(session, SESSION_SECONDS)
    assert sessions.find([cookie], SESSION_SECONDS) is None


@given(SECRETS, SECRETS)
def test_no_other_secret_opens_or_is_found(right: str, other: str) -> None:
    sessions = Sessions()
    sessions.add_link(right, 0.0)
    if other != right:
        assert not sessions.spend(other, 0.0)
    assert sessions.spend(right, 0.0)
    sessions.begin(right, 0.0, None)
    assert (sessions.find([other], 0.0) is not None) == (other == right)


def test_a_session_that_is_ended_is_over_and_others_are_not() -> None:
    sessions, cookie = opened(1, 0.0)
    other = sessions.begin(secret(5), 0.0, None)
    session = sessions.find([cookie], 1.0)
    assert session is not None
    sessions.end(session)
    sessions.end(session)
    assert sessions.find([cookie], 1.0) is None and not sessions.is_open(session, 1.0)
    assert sessions.find([secret(5)], 1.0) is other


def test_no_secret_is_kept() -> None:
    sessions, cookie = opened(7, 0.0)
    assert secret(7) not in repr(vars(sessions)) and cookie not in repr(vars(sessions))


@given(SECRETS)
def test_the_cookie_that_is_set_is_the_one_that_is_read(cookie: str) -> None:
    header = set_cookie(NAME, cookie)
    assert {"HttpOnly", "SameSite=Strict", "Path=/mesh", "Max-Age=43200"} == set(header.split("; ")[1:])
    assert cookie_values([f"theme=dark; {header.partition(';')[0]}; x=y"], NAME) == (cookie,)


def test_the_cookie_that_is_dropped_is_the_one_that_was_set() -> None:
    kept, dropped = (header.split("; ") for header in (set_cookie(NAME, secret(1)), drop_cookie(NAME)))
    assert dropped[0] == f"{NAME}=" and "Max-Age=0" in dropped
    assert {"Path=/mesh", "HttpOnly", "SameSite=Strict"} <= set(kept[1:]) & set(dropped[1:])


@given(st.lists(st.text(max_size=200), max_size=4))
def test_any_header_gives_secrets_alone(headers: list[str]) -> None:
    assert all(is_secret(value) for value in cookie_values(headers, NAME))


@given(st.lists(SECRETS, max_size=20, unique=True))
def test_several_values_are_read_and_not_too_many(values: list[str]) -> None:
    header = "; ".join(f"{NAME}={value}" for value in values)
    assert cookie_values([header, header], NAME) == tuple(values[:8])


def test_headers_without_measure_are_not_searched() -> None:
    assert cookie_values(["a=b;" * 100_000, f"{NAME}={secret(1)}"], NAME) == ()


@pytest.mark.parametrize("value", ["", "short", secret(1) + "A", f'"{secret(1)}"', secret(1)[:-1] + "é"])
def test_what_is_no_secret_is_skipped(value: str) -> None:
    assert cookie_values([f"{NAME}={value}"], NAME) == ()


def test_the_cookie_of_another_port_is_another_one() -> None:
    assert cookie_values([f"{cookie_name(8091)}={secret(1)}"], NAME) == ()
