"""Numbers that were promised, as numbers: who changes a constant has to change the promise as well.

What they do is shown elsewhere, mostly by the names of the constants, which follow any change.
"""

from meshd.base.peer_limits import LINKS
from meshd.bench.ready_figures import ROUND_TRIPS
from meshd.config.tree import LinksConfig
from meshd.mux.config import MuxConfig
from meshd.role.head import unreachable
from meshd.role.worker import child_silence
from meshd.rpc import mesh_protocol

from tests.hostile import __main__ as hostile
from tests.hostile import scene, test_daemons, test_member
from tests.sim import scale


def test_a_peer_has_eight_links_those_that_are_greeting_included() -> None:
    assert (LINKS.most, LINKS.of) == (8, "peer")


def test_a_silent_path_is_told_after_ten_seconds_and_borne_for_two_minutes() -> None:
    assert unreachable.SILENT_SECONDS == 10.0
    assert LinksConfig().grace == MuxConfig().grace == 120


def test_a_server_that_hangs_is_found_within_thirty_seconds() -> None:
    assert mesh_protocol.HUNG_SECONDS + mesh_protocol.PROGRESS_SECONDS + child_silence.LOOK_SECONDS < 30.0


def test_ready_is_eight_round_trips_away() -> None:
    assert ROUND_TRIPS == 8


def test_a_large_mesh_hears_of_everything_in_fifteen_seconds_and_says_less_than_two_hundred_bytes() -> None:
    assert (scale.MOST_SECONDS, scale.BELOW_IDLE_BYTES) == (15.0, 200.0)


def test_what_a_hostile_member_may_cost() -> None:
    assert scene.MOST_STALL_SECONDS == test_daemons.MOST_PAUSE_SECONDS == 1.0
    assert scene.MOST_GROWTH_BYTES == test_daemons.MOST_GROWTH_BYTES == 16 << 20
    assert scene.MOST_OF_A_CORE == test_daemons.MOST_OF_A_CORE == 0.2


def test_how_much_hostile_input_there_is() -> None:
    assert test_member.MESSAGES == 100_000
    assert hostile.DEFAULT_MESSAGES == 10_000_000
