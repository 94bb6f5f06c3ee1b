"""A process that has ended is told apart from a silent path, by signs that agree; forged ones cost little."""

import pytest
from meshd.link.interface import DialFailure, Tried
from meshd.peer.dial_schedule import ASK_SECONDS, GONE_SECONDS, Departure
from meshd.wire.address import Candidate

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
