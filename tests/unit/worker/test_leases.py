"""Who may have what of a worker's memory."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from meshd.base.peer_limits import LEASES_OF_PEER
from meshd.wire.lease import OfferedDevice
from meshd.worker.leases import MAX_LEASES, Lease, Ledger, lent

from tests.unit.identity.cast import GUEST, WORKER, key

CPU = OfferedDevice("CPU", "cpu", "", 80, 100)
HEADS = [key(f"head {number}").peer for number in range(12)]
GPU = OfferedDevice("CUDA0", "gpu", "", 50, 60)


def lease(number: int, **memory: int) -> Lease:
    """Each of another head."""
    return Lease(bytes([number]) * 16, HEADS[number], memory)


def test_who_has_what_and_what_for() -> None:
    three = [replace(lease(number, CPU=40), model=f"m{number}") for number in range(3)]
    three[2] = replace(three[2], is_standby=True)
    running = {one.lease_id: {"CPU": 30} for one in three[:2]}
    found = lent(three, running, [three[0].lease_id], {three[0].lease_id: 1.23456})
    assert [(one.head, one.model, one.bytes, one.state, one.computed_s) for one in found] == [
        (str(HEADS[0]), "m0", 30, "loaded", 1.235),
        (str(HEADS[1]), "m1", 30, "loading", 0.0),
        (str(HEADS[2]), "m2", 40, "standby", 0.0),
    ]
    took_its_place = lent(three, {**running, three[2].lease_id: {}}, [three[2].lease_id], {})
    assert (took_its_place[2].state, took_its_place[2].bytes) == ("loaded", 40)


def test_without_a_limit_what_is_free_is_offered() -> None:
    assert Ledger().offer([CPU, GPU]) == (CPU, GPU)


def test_the_limit_is_what_others_see() -> None:
    (cpu, gpu) = Ledger(limit=55).offer([CPU, GPU])
    assert (cpu.free_bytes, cpu.total_bytes) == (55, 55)
    assert (gpu.free_bytes, gpu.total_bytes) == (50, 55)


def test_what_is_taken_is_not_offered_again() -> None:
    ledger = Ledger(limit=60).take(lease(1, CPU=40))
    assert ledger.offer([CPU])[0].free_bytes == 20
    assert ledger.offer([GPU])[0].free_bytes == 50
    assert ledger.take(lease(2, CPU=90)).offer([CPU])[0].free_bytes == 0
    assert ledger.release(lease(1).lease_id).offer([CPU])[0].free_bytes == 60
    assert ledger.release(b"another") == ledger


def test_a_reservation_is_held_to_what_is_left_now() -> None:
    ledger = Ledger(limit=60)
    offered = ledger.offer([CPU, GPU])
    assert ledger.refusal_reason(offered, [60, 50], before=ledger, peer=GUEST.peer) is None
    assert ledger.refusal_reason(offered, [0, 1], before=ledger, peer=GUEST.peer) is None
    assert "CPU has 0 MiB" in (ledger.refusal_reason(offered, [61, 0], before=ledger, peer=GUEST.peer) or "")
    later = ledger.take(lease(1, CPU=50))
    assert later.refusal_reason(offered, [10, 50], before=ledger, peer=GUEST.peer) is None
    assert later.refusal_reason(offered, [11, 0], before=ledger, peer=GUEST.peer) is not None
    for wanted in ([], [1], [1, 1, 1], [0, 0]):
        assert (
            ledger.refusal_reason(offered, wanted, before=ledger, peer=GUEST.peer)
            == "the reservation does not fit the offer"
        )


def test_there_are_so_many_leases_and_no_more() -> None:
    ledger = Ledger()
    for number in range(MAX_LEASES):
        assert ledger.refusal_reason([CPU], [1], before=ledger, peer=GUEST.peer) is None
        ledger = ledger.take(lease(number, CPU=1))
    assert (
        ledger.refusal_reason([CPU], [1], before=ledger, peer=GUEST.peer)
        == f"{MAX_LEASES} heads already use this worker"
    )


def test_one_head_has_a_few_of_them_and_leaves_the_others_to_others() -> None:
    ledger = Ledger()
    for number in range(LEASES_OF_PEER.most):
        assert ledger.refusal_reason([CPU], [1], before=ledger, peer=GUEST.peer) is None
        ledger = ledger.take(replace(lease(number, CPU=1), peer=GUEST.peer))
    why = f"this head already has {LEASES_OF_PEER.most} leases of this worker"
    assert ledger.refusal_reason([CPU], [1], before=ledger, peer=GUEST.peer) == why
    assert ledger.refusal_reason([CPU], [1], before=ledger, peer=WORKER.peer) is None
    ledger = ledger.release(lease(0).lease_id)
    assert ledger.refusal_reason([CPU], [1], before=ledger, peer=GUEST.peer) is None


def test_what_is_promised_and_not_taken_yet_is_held_back() -> None:
    """Without a limit too: the device shows memory as free that a lease is about to take."""
    ledger = Ledger().take(lease(1, CPU=30))

    def offered(free: int, *held: int) -> int:
        looks = [{lease(1).lease_id: {"CPU": count, "CUDA0": 1000}} for count in held]
        return ledger.offer([replace(CPU, free_bytes=free)], looks=looks)[0].free_bytes

    assert offered(80) == 50
    assert offered(65, 15, 15) == 50
    assert offered(50, 30, 30) == 50
    assert offered(50, 1000, 1000) == 50
    assert offered(10) == 0
    assert offered(80, 30, 0) == 50, "freed while the devices were listed, and to be taken again"
    assert offered(50, 0, 30) == 20, "taken then: held back twice"
    assert ledger.offer([CPU], looks=[{}, {}])[0].free_bytes == 50


def test_what_was_promised_since_the_offer_is_not_to_be_had() -> None:
    before = Ledger().take(lease(1, CPU=30))
    offered = before.offer([CPU])
    assert before.refusal_reason(offered, [50], before=before, peer=GUEST.peer) is None
    now = before.take(lease(2, CPU=20))
    assert now.refusal_reason(offered, [30], before=before, peer=GUEST.peer) is None
    assert "30 MiB" not in (now.refusal_reason(offered, [31], before=before, peer=GUEST.peer) or "30 MiB")


SIZES = st.integers(0, 120)


@given(st.none() | st.integers(1, 120), st.lists(st.tuples(SIZES, SIZES), max_size=12))
def test_leases_that_are_granted_never_go_beyond_the_limit(
    limit: int | None, asked: list[tuple[int, int]]
) -> None:
    ledger = Ledger(limit=limit)
    for number, wanted in enumerate(asked):
        offered = ledger.offer([CPU, GPU])
        if ledger.refusal_reason(offered, wanted, before=ledger, peer=GUEST.peer) is None:
            ledger = ledger.take(lease(number, CPU=wanted[0], CUDA0=wanted[1]))
    for device in (CPU, GPU):
        taken = sum(held.memory[device.name] for held in ledger.leases)
        assert taken <= min(device.free_bytes, limit if limit is not None else device.free_bytes)


@given(SIZES, SIZES)
def test_an_offer_never_promises_more_than_the_device_has(free: int, limit: int) -> None:
    device = replace(CPU, free_bytes=min(free, 100))
    (offered,) = Ledger(limit=limit).offer([device])
    assert offered.free_bytes <= min(device.free_bytes, limit)
