"""Dials to addresses that only peers name, and failures of their work, are counted where the blame is."""

from dataclasses import replace
from functools import cache

from hypothesis import given
from hypothesis import strategies as st
from meshd.base.admission import Rate
from meshd.base.peer_limits import (
    DIALS,
    DIALS_OF_ISSUER,
    DIALS_RESERVED,
    DIALS_TO_HOST,
    DIALS_TO_HOST_OF_ISSUER,
    FAULTS,
    FAULTS_KNOWN,
    PROVEN_HOSTS,
    PROVEN_PEERS,
)
from meshd.identity.keys import PeerId
from meshd.identity.membership import Admitter, Chain, Member
from meshd.link.interface import RELAYED, LinkInfo, LinkKind
from meshd.peer.limits import REFUSED_SECONDS, TOLD_MINUTES, DialRates, Faults
from meshd.wire.address import Candidate, ScopedCandidate

from tests.unit.identity.cast import MESH, ROOT, WORKER, certificate, key

HOUR = 3600.0
TARGET = "203.0.113.9"
HOSTILE = 900  # issuers, by number; what is below are peers
PEER, OTHER = PeerId(bytes(32)), PeerId(bytes(31) + b"\1")


def peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32, "big"))


def admitter(number: int) -> Admitter:
    return Admitter(peer(1000 + number), b"", False)


def at(host: str, port: int = 7447) -> Candidate:
    return Candidate(host, port)


@cache
def chain(issuer: int) -> Chain:
    """A chain whose leaf is certified by this issuer; nothing here checks it."""
    return Chain((certificate(key(f"issuer {issuer}"), WORKER),), ROOT.peer)


def link(
    number: int, remote: str, *, path: str = "public", issuer: int = 1, dialled: bool = False
) -> LinkInfo:
    """A proven link to a peer."""
    member = Member(peer(number), MESH, frozenset(), chain(issuer))
    return LinkInfo(
        kind=LinkKind.TCP,
        peer=peer(number),
        member=member,
        local="192.0.2.1:7447",
        remote=remote,
        path=path,
        dialled=dialled,
        established_at=0.0,
    )


def use_up(rates: DialRates, host: str, *, issuers: int, now: float = HOUR) -> int:
    """Have made-up peers of so many issuers name this host often; returns how often it was dialled."""
    dials = 0
    for number in range(100 * issuers):
        issuer = HOSTILE + number % issuers
        dials += rates.may_dial(peer(2000 + number), admitter(issuer), at(host, 1024 + number), now)
    return dials


def test_made_up_peers_of_one_issuer_aim_at_one_host_in_vain() -> None:
    rates = DialRates()
    now, dials = HOUR, 0
    for step in range(280):  # 28 seconds, each of 80 peers names another port
        now += 0.1
        dials += rates.may_dial(peer(step % 80), admitter(1), at(TARGET, 1024 + step), now)
    most = DIALS_TO_HOST_OF_ISSUER.burst + DIALS_TO_HOST_OF_ISSUER.per_second * 28
    assert most - 1 <= dials <= most
    assert rates.may_dial(peer(1), admitter(1), at("203.0.113.10"), now)


def test_many_issuers_together_have_a_limit_for_one_host() -> None:
    rates = DialRates()
    now, dials = HOUR, 0
    for step in range(560):  # 28 seconds
        now += 0.05
        dials += rates.may_dial(peer(step % 80), admitter(step % 80), at(TARGET, 1024 + step), now)
    most = DIALS_TO_HOST.burst + DIALS_TO_HOST.per_second * 28
    assert most - 1 <= dials <= most
    assert rates.may_dial(peer(1), admitter(1), at("203.0.113.10"), now)


def test_an_issuer_that_names_another_peers_host_leaves_that_peer_its_dials() -> None:
    rates = DialRates()
    assert use_up(rates, TARGET, issuers=1) == DIALS_TO_HOST_OF_ISSUER.burst
    dials = sum(rates.may_dial(peer(1), admitter(1), at(TARGET), HOUR) for _ in range(100))
    assert dials == DIALS_TO_HOST_OF_ISSUER.burst


def test_a_peer_is_dialled_where_it_was_proven_although_others_use_up_its_host() -> None:
    rates = DialRates()
    rates.link_made(link(1, f"{TARGET}:51234"))  # it dialled us, from some port
    assert use_up(rates, TARGET, issuers=5) == DIALS_TO_HOST.burst
    assert not rates.may_dial(peer(2), admitter(2), at(TARGET), HOUR)
    dials = sum(rates.may_dial(peer(1), admitter(HOSTILE), at(TARGET), HOUR) for _ in range(100))
    assert dials == DIALS_RESERVED.burst


def test_the_inviter_of_this_node_is_dialled_wherever_it_says_it_is() -> None:
    rates = DialRates()
    use_up(rates, TARGET, issuers=5)
    dials = sum(rates.may_dial(peer(1), None, at(TARGET), HOUR, invited_us=True) for _ in range(100))
    assert dials == DIALS_RESERVED.burst


def test_a_proof_elsewhere_reserves_nothing_here() -> None:
    rates = DialRates()
    rates.link_made(link(1, "198.51.100.7:7447"))
    rates.link_made(link(2, f"{TARGET}:7447", path=RELAYED))  # that is where the relay is
    rates.link_made(link(3, "member 1234"))
    use_up(rates, TARGET, issuers=5)
    for number in (1, 2, 3):
        assert not rates.may_dial(peer(number), admitter(number), at(TARGET), HOUR)


def test_the_latest_hosts_of_a_peer_are_remembered() -> None:
    rates = DialRates()
    hosts = [f"203.0.{number}.9" for number in range(PROVEN_HOSTS.most + 1)]
    for host in [*hosts, hosts[1]]:
        rates.link_made(link(1, f"{host}:7447"))
    for host in hosts:
        use_up(rates, host, issuers=5)
    reached = [host for host in hosts if rates.may_dial(peer(1), admitter(1), at(host), HOUR)]
    assert reached == hosts[1:]


def test_who_proves_many_peers_displaces_only_its_own() -> None:
    rates = DialRates()
    rates.link_made(link(1, f"{TARGET}:7447", issuer=1))
    for number in range(PROVEN_PEERS.most + 10):
        rates.link_made(link(2000 + number, f"{TARGET}:7447", issuer=2))
    use_up(rates, TARGET, issuers=5)
    assert rates.may_dial(peer(1), admitter(1), at(TARGET), HOUR)
    assert not rates.may_dial(peer(2000), admitter(2), at(TARGET), HOUR)
    assert rates.may_dial(peer(2000 + PROVEN_PEERS.most), admitter(2), at(TARGET), HOUR)


def most_in(rate: Rate, seconds: float) -> float:
    return rate.burst + rate.per_second * seconds


STEPS = st.lists(
    st.tuples(
        st.floats(min_value=0.0, max_value=3.0),  # seconds since the step before
        st.integers(min_value=0, max_value=40),  # the made-up peer
        st.integers(min_value=0, max_value=2),  # its issuer, of those that are hostile
        st.integers(min_value=0, max_value=30),  # how often it is tried
    ),
    max_size=60,
)


@given(STEPS)
def test_whatever_others_name_real_peers_are_dialled_and_the_host_is_spared(
    steps: list[tuple[float, int, int, int]],
) -> None:
    """With one hostile issuer a new peer has half of its host; with three, a proven one has its reserve."""
    for issuers in (1, 3):
        rates = DialRates()
        rates.link_made(replace(link(1, "[2001:db8::9]:4711"), dialled=True))
        real = at("2001:db8::9")
        began = now = HOUR
        due, aimed = now, 0
        for seconds, number, issuer, tries in steps:
            now += seconds
            whose = admitter(HOSTILE + issuer % issuers)
            for _ in range(tries):
                rates.may_dial(peer(3000 + number), whose, at(f"198.51.100.{number}"), now)
                aimed += rates.may_dial(peer(3000 + number), whose, at("2001:db8::bad", 1024), now)
            if now >= due:
                due = now + 1 / DIALS_RESERVED.per_second
                assert rates.may_dial(peer(1), admitter(HOSTILE), real, now)
                assert issuers > 1 or rates.may_dial(peer(2), admitter(2), real, now)
        assert aimed <= most_in(DIALS_TO_HOST if issuers > 1 else DIALS_TO_HOST_OF_ISSUER, now - began)


def test_who_admits_many_peers_has_them_dialled_as_one() -> None:
    rates = DialRates()
    tries = int(2 * DIALS_OF_ISSUER.burst)
    dials = sum(rates.may_dial(peer(step), admitter(1), at(f"203.0.{step}.9"), HOUR) for step in range(tries))
    assert dials == DIALS_OF_ISSUER.burst
    assert rates.may_dial(peer(1), admitter(2), at("203.0.113.10"), HOUR)
    assert rates.may_dial(peer(1), None, at("203.0.113.11"), HOUR)


def test_a_peer_has_its_own_rate() -> None:
    rates = DialRates()
    tries = int(2 * DIALS.burst)
    dials = sum(rates.may_dial(peer(1), None, at(f"203.0.{step}.9"), HOUR) for step in range(tries))
    assert dials == DIALS.burst
    assert not rates.may_dial(peer(1), None, at(TARGET), HOUR, invited_us=True)


def test_a_dial_that_is_refused_costs_nothing() -> None:
    rates = DialRates()
    for _ in range(int(2 * DIALS.burst)):
        rates.may_dial(peer(1), admitter(1), at(TARGET), HOUR)
    spent = DIALS_TO_HOST_OF_ISSUER.burst
    dials = sum(rates.may_dial(peer(1), admitter(1), at(f"203.0.{step}.9"), HOUR) for step in range(100))
    assert dials == DIALS.burst - spent


def test_nodes_on_this_machine_are_told_apart_by_their_ports() -> None:
    rates = DialRates()
    for number in range(2 * int(DIALS_TO_HOST.burst)):
        assert rates.may_dial(peer(number), admitter(number), at("127.0.0.1", 2000 + number), HOUR)


def test_machines_on_one_link_are_told_apart_by_their_link_local_addresses() -> None:
    """All have one /64: whoever names many ports of one machine leaves the rate of another alone."""
    rates = DialRates()
    rates.link_made(link(1, "[fe80::9%eth0]:7447"))
    ports = range(1024, 1024 + 2 * int(DIALS_TO_HOST.burst))
    aimed = [ScopedCandidate("fe80::9%eth0", port) for port in ports]
    dials = sum(rates.may_dial(peer(one.port), admitter(one.port), one, HOUR) for one in aimed)
    assert dials == DIALS_TO_HOST.burst
    assert rates.may_dial(peer(1), admitter(1), aimed[0], HOUR)
    assert rates.may_dial(peer(2), admitter(2), ScopedCandidate("fe80::10%eth0", 7447), HOUR)


def test_a_few_failures_are_put_up_with() -> None:
    faults = Faults()
    for _ in range(int(FAULTS.burst)):
        faults.blame(PEER, 0.0, "it failed")
    assert faults.refusal(PEER, 0.0) is None


def test_who_goes_on_is_refused_for_a_while_and_nobody_else() -> None:
    faults = Faults()
    for _ in range(int(FAULTS.burst) + 1):
        faults.blame(PEER, 10.0, "it failed")
    assert faults.refusal(PEER, 10.0) is not None
    assert faults.refusal(PEER, 9.0 + REFUSED_SECONDS) is not None
    assert faults.refusal(PEER, 10.0 + REFUSED_SECONDS) is None
    assert faults.refusal(OTHER, 10.0) is None


def test_failures_now_and_then_are_forgotten() -> None:
    faults = Faults()
    for number in range(1000):
        now = number / FAULTS.per_second
        faults.blame(PEER, now, "it failed")
        assert faults.refusal(PEER, now) is None


def test_few_peers_are_remembered() -> None:
    faults = Faults()
    for number in range(10_000):
        for _ in range(int(FAULTS.burst) + 1):
            faults.blame(PeerId(number.to_bytes(32, "big")), 0.0, "it failed")
    known = [faults.refusal(PeerId(number.to_bytes(32, "big")), 0.0) for number in range(10_000)]
    assert sum(why is not None for why in known) == FAULTS_KNOWN.most


def test_people_are_told_of_the_last_hour() -> None:
    faults, minute = Faults(), 60.0
    assert faults.recent(PEER, 0.0) == (0, "")
    for number in range(3 * TOLD_MINUTES):
        faults.broke(PEER, number * minute, f"broken {number}")
        faults.broke(PEER, number * minute, f"broken again {number}")
    now = (3 * TOLD_MINUTES - 1) * minute
    assert faults.recent(PEER, now) == (2 * TOLD_MINUTES, "broken again 179")
    assert faults.recent(PEER, now + TOLD_MINUTES / 2 * minute) == (TOLD_MINUTES, "broken again 179")
    assert faults.recent(PEER, now + TOLD_MINUTES * minute) == (0, "")
    assert faults.recent(OTHER, now) == (0, "")
    assert faults.refusal(PEER, now) is None, "a protocol violation ends a link, and no more"


def test_little_is_remembered_of_one() -> None:
    faults = Faults()
    for number in range(10_000):
        faults.broke(PEER, number / 10, "x" * 100_000)
    count, what = faults.recent(PEER, 999.9)
    assert count == 10_000 and len(what) == 200
