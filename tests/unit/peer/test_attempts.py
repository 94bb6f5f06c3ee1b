"""When which dial starts, and how long until the next round."""

from hypothesis import given
from hypothesis import strategies as st
from meshd.link.interface import LinkKind
from meshd.peer.attempts import RETRY, RETRY_REFUSED, plan, retry_delay


def test_tcp_and_relay_start_at_once_the_dearer_ones_a_little_later() -> None:
    attempts = plan([LinkKind.QUIC, LinkKind.TCP, LinkKind.RELAY, LinkKind.WEBRTC])
    assert [attempt.kind for attempt in attempts] == ["tcp", "relay", "webrtc", "quic"]
    assert [attempt.delay for attempt in attempts] == [0.0, 0.0, 0.05, 0.2]
    assert plan([]) == ()


def test_a_first_failure_is_tried_again_soon_a_refusal_later() -> None:
    assert retry_delay(failures=1, refused=False, chance=0.0) == RETRY.first
    assert retry_delay(failures=1, refused=True, chance=0.0) == RETRY_REFUSED.first
    assert retry_delay(failures=0, refused=False, chance=0.0) == RETRY.first


@given(st.integers(0, 10**6), st.booleans(), st.floats(0, 1, exclude_max=True))
def test_the_pause_grows_to_a_limit_and_chance_takes_away_only(
    failures: int, refused: bool, chance: float
) -> None:
    rule = RETRY_REFUSED if refused else RETRY
    delay = retry_delay(failures=failures, refused=refused, chance=chance)
    assert 0 < delay <= retry_delay(failures=failures + 1, refused=refused, chance=0.0) <= rule.most
    assert delay >= rule.first * (1 - rule.jitter)
