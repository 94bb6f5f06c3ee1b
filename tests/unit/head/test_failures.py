"""Test that what failed is remembered: llama-server, devices and workers, for how long, what ends that."""

from dataclasses import replace

import pytest
from meshd.base.peer_limits import APART, MARKED
from meshd.head.failures import (
    APART_SECONDS,
    ENDS,
    FIRST_END_SECONDS,
    FIRST_SECONDS,
    MOST_END_SECONDS,
    MOST_SECONDS,
    SERVER_RETRY,
    SERVER_TRIES,
    SERVER_TRIES_ANY,
    STEADY_SECONDS,
    TRIES,
    Blame,
    DeviceExclusions,
    ServerDied,
    ServerFailures,
    WorkerBackoff,
    refused_option,
)
from meshd.identity.keys import PeerId
from meshd.model.status import SplitPart
from meshd.plan.machines import IN_DOUBT, INDIRECT
from meshd.process.interface import ChildState, ChildStatus
from meshd.wire.lease import OfferedDevice, WorkerOffer
from meshd.wire.versions import NativeVersion

from tests.unit.head.fake_mesh import worker_status
from tests.unit.identity.cast import GUEST, WORKER


def died(layers: int = 30, tail: tuple[str, ...] = ("last line",)) -> ServerDied:
    return ServerDied("llama-server", (SplitPart("a", "CPU", layers, 0),), tail)


def test_with_one_split() -> None:
    it = ServerFailures()
    for number in range(1, SERVER_TRIES + 1):
        assert not it.is_no_chance(spares=False)
        it.died(died())
        assert it.in_row == number
    assert it.is_no_chance(spares=False) and not it.is_no_chance(spares=True)
    assert it.delay == SERVER_RETRY.first
    it.died(died(29))
    assert not it.is_no_chance(spares=False), "another split is another matter"
    assert it.delay == SERVER_RETRY.first * SERVER_RETRY.factor


def test_with_whatever_split() -> None:
    it = ServerFailures()
    for number in range(SERVER_TRIES_ANY):
        assert not it.is_no_chance(spares=True)
        it.died(died(number))
    assert it.is_no_chance(spares=True)


def test_a_life_that_was_ready_begins_anew() -> None:
    it = ServerFailures()
    for _ in range(SERVER_TRIES_ANY):
        it.died(died())
    shown = it.failed_child
    assert shown is not None and shown.state is ChildState.FAILED
    it.was_ready()
    after = ServerFailures()
    assert it.failed_child is after.failed_child is None
    for one in (it, after):
        one.died(died())
        assert not one.is_no_chance(spares=False)


def test_options_that_are_refused_are_no_chance() -> None:
    it = ServerFailures()
    it.died(died(tail=("error: invalid argument: --nosuchopt",)))
    assert it.is_no_chance(spares=True)
    what, hint = it.what_to_say("exit code 1", ("--nosuchopt", "1"))
    assert what == "llama-server refuses its options: invalid argument: --nosuchopt"
    assert hint == "check the arguments after `--`: `--nosuchopt 1`"


def test_its_user_sees_one_that_is_restarted() -> None:
    it = ServerFailures()
    child = ChildStatus("llama-server", ChildState.READY, 5, 0, "", ())
    assert it.as_one(child) == child
    it.restarts, it.why_restarted = 2, "a worker is lost"
    shown = it.as_one(child)
    assert (shown.restarts, shown.reason, shown.pid) == (2, "the last time because a worker is lost", 5)


NATIVE = NativeVersion("mesh 4", "pin", "sources", "cuda")
CARD = OfferedDevice("CUDA0", "gpu", "a card", 5, 10)
CPU = OfferedDevice("CPU", "cpu", "a processor", 5, 10)
ABORTED = "`mesh-server` was ended by SIGABRT while it ran"


class Crashing:
    """A worker whose server crashes, and what the head thinks of its devices."""

    def __init__(self) -> None:
        self.exclusions = DeviceExclusions()

    def out(self, *devices: OfferedDevice, native: NativeVersion | None = NATIVE) -> dict[str, str]:
        """Return what is left out of its next offer, with these devices."""
        offer = WorkerOffer(devices or (CARD, CPU), has_model=False, machine="m", lease_id=bytes(16))
        return dict(self.exclusions.offered(WORKER.peer, native, offer))

    def crashed(self) -> None:
        self.exclusions.crashed(WORKER.peer, ["CUDA0"], ABORTED)


def test_a_device_may_crash_once_until_the_next_load_that_works() -> None:
    it = Crashing()
    assert it.out() == {}
    it.crashed()
    it.exclusions.worked([WORKER.peer])
    it.crashed()
    assert it.out() == {}
    it.exclusions.worked([GUEST.peer])
    it.crashed()
    ((name, why),) = it.out().items()
    assert name == "CUDA0" and "crashed 2 times" in why and "SIGABRT" in why
    it.exclusions.worked([WORKER.peer])
    assert it.out(replace(CARD, free_bytes=1), CPU), "it stays out when others work and memory changes"


@pytest.mark.parametrize(
    ("devices", "native"),
    [
        ((CARD, CPU), replace(NATIVE, sources="newer")),
        ((CARD, CPU), None),
        ((CARD,), NATIVE),
        ((replace(CARD, description="another card"), CPU), NATIVE),
    ],
)
def test_another_native_part_or_other_devices_are_tried(
    devices: tuple[OfferedDevice, ...], native: NativeVersion | None
) -> None:
    it = Crashing()
    assert it.out() == {}
    it.crashed()
    it.crashed()
    assert it.out(*devices, native=native) == {}


def test_crashes_count_on_when_the_devices_are_said_to_be_others() -> None:
    it = Crashing()
    for number, card in enumerate((replace(CARD, total_bytes=10 + more) for more in range(4)), 1):
        assert it.out(card, CPU) == {}
        it.crashed()
        assert list(it.out(card, CPU)) == ["CUDA0"] * (number > 1)
    it.exclusions.worked([WORKER.peer])
    assert it.out() == {}
    it.crashed()
    assert it.out() == {}, "it was of use meanwhile"


BAD = worker_status(WORKER.peer, "bad", since=1.0)
GOOD = replace(BAD, peer=GUEST.peer, name="good")


def test_a_first_failure_costs_nothing_and_the_second_a_time_out() -> None:
    backoff = WorkerBackoff()
    backoff.failed(BAD, "it crashed", 100.0)
    assert backoff.exclusion_reason(BAD, 100.0) is None
    assert backoff.next_try([BAD, GOOD], 100.0) is None
    backoff.failed(BAD, "it crashed", 110.0)
    why = backoff.exclusion_reason(BAD, 110.0) or ""
    assert "bad" in why and "30 s" in why and "2 tries" in why and "it crashed" in why
    assert backoff.exclusion_reason(GOOD, 110.0) is None
    assert backoff.next_try([BAD, GOOD], 110.0) == 110.0 + FIRST_SECONDS
    assert backoff.exclusion_reason(BAD, 110.0 + FIRST_SECONDS) is None


def test_after_the_time_out_one_failure_is_enough_for_a_longer_one() -> None:
    backoff = WorkerBackoff()
    seconds = []
    for _ in range(TRIES + 40):
        backoff.failed(BAD, "again", 0.0)
        if (until := backoff.next_try([BAD], 0.0)) is not None:
            seconds.append(until)
    assert seconds[:3] == [FIRST_SECONDS, 2 * FIRST_SECONDS, 4 * FIRST_SECONDS]
    assert max(seconds) == MOST_SECONDS


def test_reconnecting_and_working_wipe_the_slate() -> None:
    for forgive in ("reconnect", "work"):
        backoff = WorkerBackoff()
        for _ in range(TRIES):
            backoff.failed(BAD, "it crashed", 0.0)
        assert backoff.exclusion_reason(BAD, 0.0)
        now = BAD
        if forgive == "reconnect":
            now = replace(BAD, since=2.0)
        else:
            backoff.worked([BAD.peer])
        assert backoff.exclusion_reason(now, 0.0) is None
        backoff.failed(now, "it crashed", 0.0)
        assert backoff.exclusion_reason(now, 0.0) is None  # a first failure again


def test_who_reconnects_again_and_again_is_forgiven_once() -> None:
    backoff = WorkerBackoff()
    for since in (1.0, 2.0):
        for _ in range(TRIES):
            backoff.failed(replace(BAD, since=since), "it crashed", 0.0)
        assert backoff.exclusion_reason(replace(BAD, since=since), 0.0)
    assert backoff.exclusion_reason(replace(BAD, since=3.0), 0.0), "not again"
    backoff.worked([BAD.peer])
    assert backoff.exclusion_reason(replace(BAD, since=3.0), 0.0) is None


def test_leases_that_end_soon_after_the_load_cost_a_time_out_that_grows() -> None:
    backoff = WorkerBackoff()
    lengths = []
    for number in range(1, ENDS + 10):
        backoff.ended(BAD, "it went", 0.0, lasted=STEADY_SECONDS - 1.0)
        lengths.append(next(s for s in range(10_000) if backoff.unsteady(BAD.peer, float(s)) is None))
        assert backoff.ends(BAD.peer) == number
    first = int(FIRST_END_SECONDS)
    assert lengths[: ENDS + 2] == [0] * (ENDS - 1) + [first, 2 * first, 4 * first]
    assert max(lengths) == MOST_END_SECONDS


def test_a_lease_that_lasts_wipes_the_slate_and_a_reconnect_does_not() -> None:
    backoff = WorkerBackoff()
    for number in range(ENDS):
        backoff.ended(replace(BAD, since=float(number)), "it went", 0.0, lasted=5.0)
    why = backoff.unsteady(BAD.peer, 0.0)
    assert (
        why
        == "worker bad is left out for 60 s: it failed 3 times soon after loading, the last because it went"
    )
    assert backoff.unsteady(GOOD.peer, 0.0) is None
    backoff.ended(BAD, "it went", 1000.0, lasted=STEADY_SECONDS)
    assert (backoff.unsteady(BAD.peer, 1000.0), backoff.ends(BAD.peer)) == (None, 0)


def test_one_that_was_given_up_is_left_out_at_once() -> None:
    backoff = WorkerBackoff()
    backoff.hung(BAD, "it does not answer", 0.0)
    assert backoff.unsteady(BAD.peer, FIRST_END_SECONDS - 1.0)
    assert backoff.unsteady(BAD.peer, FIRST_END_SECONDS) is None
    backoff.hung(BAD, "it does not answer", 100.0)
    assert backoff.unsteady(BAD.peer, 100.0 + 2 * FIRST_END_SECONDS - 1.0)


def test_few_are_remembered() -> None:
    backoff = WorkerBackoff()
    peers = [PeerId(number.to_bytes(32, "big")) for number in range(MARKED.most + 1)]
    for peer in peers:
        backoff.hung(replace(BAD, peer=peer), "it does not answer", 0.0)
    assert backoff.unsteady(peers[0], 0.0) is None
    assert all(backoff.unsteady(peer, 0.0) for peer in peers[1:])


def test_what_was_in_doubt_counts_for_both_and_hinders_nobody_who_is_needed() -> None:
    backoff = WorkerBackoff()
    for worker in (BAD, GOOD):
        for _ in range(ENDS):
            backoff.ended(worker, "it went", 0.0, lasted=0.0, in_doubt=True)
        assert "or a worker that it exchanges activations with" in (backoff.unsteady(worker.peer, 0.0) or "")
        assert backoff.exclusion_reason(worker, 0.0) is None


def test_pairs_stay_apart_and_few_are_remembered() -> None:
    backoff = WorkerBackoff()
    peers = [PeerId(number.to_bytes(32, "big")) for number in range(APART.most + 1)]
    for peer in peers:
        backoff.part(BAD.peer, peer, 0.0)
    assert not backoff.are_apart(BAD.peer, peers[0], 0.0)
    assert backoff.are_apart(BAD.peer, peers[1], 0.0) and backoff.are_apart(peers[-1], BAD.peer, 0.0)
    assert not backoff.are_apart(peers[1], peers[2], 0.0)
    names = {BAD.peer: "bad", peers[0]: "forgotten", peers[1]: "good"}
    assert backoff.apart(names, 0.0) == {frozenset({"bad", "good"}): IN_DOUBT}
    # Who cannot compute together may still push, through the daemons.
    backoff.keep_from_sums(peers[0], peers[1], 10.0)
    assert not backoff.are_apart(peers[0], peers[1], 10.0)
    assert backoff.apart(names, 10.0)[frozenset({"forgotten", "good"})] == INDIRECT


@pytest.mark.parametrize(("lasted", "left"), [(STEADY_SECONDS, 0), (STEADY_SECONDS - 1, 1)])
def test_a_long_run_without_blame_ends_a_row(lasted: float, left: int) -> None:
    backoff = WorkerBackoff()
    for worker in (BAD, GOOD):
        backoff.ended(worker, "it went", 0.0, lasted=0.0, in_doubt=True)
    blame = Blame()
    blame.loaded_at = 100.0
    assert blame.tell(backoff, [BAD, GOOD], {GOOD.peer}, 100.0 + lasted) == []
    assert (backoff.ends(GOOD.peer), backoff.ends(BAD.peer)) == (left, 1), "who took no part stays as it was"


def test_pairs_come_together_again() -> None:
    backoff = WorkerBackoff()
    backoff.part(BAD.peer, GOOD.peer, 0.0)
    backoff.keep_from_sums(BAD.peer, GOOD.peer, 10.0)
    names = {BAD.peer: "bad", GOOD.peer: "good"}
    before, after = APART_SECONDS - 1, APART_SECONDS + 1
    assert backoff.are_apart(BAD.peer, GOOD.peer, before)
    assert not backoff.are_apart(BAD.peer, GOOD.peer, after)
    assert list(backoff.apart(names, before).values()) == [IN_DOUBT]
    assert list(backoff.apart(names, after).values()) == [INDIRECT]
    assert not backoff.apart(names, after + 10)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("error: invalid argument: --nosuchopt", "invalid argument: --nosuchopt"),
        ("error: unknown value for --flash-attn: 'x'", "unknown value for --flash-attn: 'x'"),
        ('error while handling argument "-np": stoi', 'argument "-np": stoi'),
        ("error loading model: out of memory", ""),
        ("ggml_backend_mesh: error: invalid argument", ""),
        ("llama_model_load: error loading model", ""),
    ],
)
def test_what_llama_server_says_of_its_options(line: str, said: str) -> None:
    expected = f"llama-server refuses its options: {said}" if said else ""
    assert refused_option(("before", f"{line}\n", "", "usage:")) == expected
