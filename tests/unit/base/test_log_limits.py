"""One peer fills no log: it has its share of the lines, and what was left out is counted."""

import io

from meshd.base import log
from meshd.base.log_limits import MAX_LINE_KINDS, MAX_LOGGED_PEERS, LineShares
from meshd.base.peer_limits import FIRST_LINES_IN_ALL, KIND_LINES, PEER_LINES, PEER_LINES_IN_ALL


def test_beyond_its_share_lines_are_left_out_and_counted() -> None:
    shares, burst = LineShares(), int(PEER_LINES.burst)
    said = [shares.may_say("mallory", 0.0) for _ in range(burst + 100)]
    assert said == [0] * burst + [None] * 100
    assert shares.may_say("anna", 0.0) == 0, "another peer is heard all the while"
    assert shares.may_say("mallory", 1 / PEER_LINES.per_second) == 100
    assert shares.may_say("mallory", 1 / PEER_LINES.per_second) is None


def test_many_peers_have_one_share_together() -> None:
    shares = LineShares()
    said = [shares.may_say(f"sybil {number}", 0.0) for number in range(10_000)]
    assert said.count(0) == PEER_LINES_IN_ALL.burst + FIRST_LINES_IN_ALL.burst
    assert len(shares._peers) == MAX_LOGGED_PEERS


def test_some_peers_that_are_talked_about_all_the_time_leave_out_no_other() -> None:
    """However long: a few can use all that peers have together."""
    shares = LineShares()
    for second in range(3600):
        for number in range(20):
            shares.may_say(f"mallory {number}", float(second))
        if second >= 3540:
            assert [shares.may_say(f"anna {second}", float(second)) for _ in range(3)] == [0, 0, 0]


def test_the_log_keeps_to_it_and_errors_pass() -> None:
    stream = io.StringIO()
    log.set_up(stream=stream)
    try:
        logger = log.get("peer")
        for _ in range(500):
            logger.warning("stream_refused", peer="mallory", why="no")
        for _ in range(5):
            logger.error("work_failed", peer="mallory", why="a bug")
        logger.warning("stream_refused", peer="anna", why="no")
        logger.info("api_listening", url="http://127.0.0.1")
    finally:
        log.set_up(level="warning")
    lines = stream.getvalue().splitlines()
    assert sum("stream_refused" in line and "mallory" in line for line in lines) == PEER_LINES.burst
    assert sum("work_failed" in line for line in lines) == 5
    assert sum("peer=anna" in line for line in lines) == 1
    assert "api_listening" in lines[-1]


def test_lines_that_name_no_peer_have_a_share_for_each_kind() -> None:
    shares, burst = LineShares(), int(KIND_LINES.burst)
    said = [shares.may_say_kind("signal_dropped", 0.0) for _ in range(burst + 7)]
    assert said == [0] * burst + [None] * 7
    assert shares.may_say_kind("model_state", 0.0) == 0, "another kind is written all the while"
    assert shares.may_say_kind("signal_dropped", 1 / KIND_LINES.per_second) == 7
    for number in range(10_000):
        shares.may_say_kind(f"made up {number}", 0.0)
    assert len(shares._kinds) == MAX_LINE_KINDS


def test_peers_use_up_nothing_of_what_this_node_says_itself() -> None:
    shares = LineShares()
    for number in range(10_000):
        shares.may_say(f"sybil {number}", 0.0)
    assert shares.may_say_kind("model_state", 0.0) == 0


def test_the_log_leaves_out_lines_without_a_peer_as_well() -> None:
    stream = io.StringIO()
    log.set_up(stream=stream)
    try:
        logger = log.get("peer")
        for _ in range(500):
            logger.info("signal_dropped", why="nonsense")
        logger.info("model_state", why="loading")
    finally:
        log.set_up(level="warning")
    lines = stream.getvalue().splitlines()
    assert len(lines) == KIND_LINES.burst + 1 and "model_state" in lines[-1]
