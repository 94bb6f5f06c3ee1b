"""meshd.worker.child_silence: a child that says nothing any more, and what excuses it."""

from meshd.rpc.mesh_protocol import HUNG_SECONDS, PROGRESS_SECONDS
from meshd.worker.child_silence import LOOK_SECONDS, ChildSilence

LOOKS = int(HUNG_SECONDS / LOOK_SECONDS)


def test_one_that_says_nothing_is_given_up() -> None:
    silence = ChildSilence()
    assert not any(silence.look(0) for _ in range(2 * LOOKS)), "it has not said WELCOME"
    assert not any(silence.look(100) for _ in range(1 + LOOKS))
    assert silence.look(100) == f"it hangs: it has said nothing for {HUNG_SECONDS + LOOK_SECONDS:.0f} s"


def test_one_that_hangs_is_found_within_thirty_seconds() -> None:
    """Counted from its last word, which may be as old as the time between two."""
    silence = ChildSilence()
    seconds = float(PROGRESS_SECONDS)
    while not silence.look(100):
        seconds += LOOK_SECONDS
    assert 10.0 < seconds < 30.0


def test_a_word_now_and_then_is_enough() -> None:
    silence = ChildSilence()
    for answered in range(100, 160, 24):
        assert not any(silence.look(answered) for _ in range(LOOKS))


def test_what_is_not_taken_from_it_is_no_silence() -> None:
    silence = ChildSilence()
    silence.look(100)
    silence.peer_waits(True)
    assert not any(silence.look(100) for _ in range(3 * LOOKS))
    silence.peer_waits(False)
    silence.target_waits(True)  # nor does it read: that is no excuse
    assert not any(silence.look(100) for _ in range(LOOKS))
    assert silence.look(100)
