"""Which devices are left out for a model, and until when."""

from dataclasses import replace

from meshd.head.device_exclusions import DeviceExclusions, Equipment
from meshd.identity.keys import KeyPair
from meshd.wire.lease import OfferedDevice
from meshd.wire.native import NativeVersion

PEER, OTHER = (KeyPair.from_seed(bytes([number]) * 32).peer for number in (1, 2))
NATIVE = NativeVersion("mesh 4", "pin", "sources", "cuda")
CARD = OfferedDevice("CUDA0", "gpu", "a card", 5, 10)
CPU = OfferedDevice("CPU", "cpu", "a processor", 5, 10)
HERE = Equipment.of(NATIVE, [CARD, CPU])
ABORTED = "`rpc-server` was ended by SIGABRT while it ran"


def out(exclusions: DeviceExclusions) -> None:
    for _ in range(2):
        exclusions.crashed(PEER, HERE, ["CUDA0"], ABORTED)


def test_a_crash_may_happen_once() -> None:
    exclusions = DeviceExclusions()
    exclusions.crashed(PEER, HERE, ["CUDA0", "CPU"], ABORTED)
    assert exclusions.excluded(PEER, HERE) == {}
    exclusions.worked([PEER])
    exclusions.crashed(PEER, HERE, ["CUDA0"], ABORTED)
    assert exclusions.excluded(PEER, HERE) == {}
    exclusions.crashed(PEER, HERE, ["CUDA0"], ABORTED)
    ((name, why),) = exclusions.excluded(PEER, HERE).items()
    assert name == "CUDA0" and "crashed 2 times" in why and "SIGABRT" in why
    assert exclusions.excluded(OTHER, HERE) == {}


def test_it_stays_out_when_others_work_and_memory_changes() -> None:
    exclusions = DeviceExclusions()
    out(exclusions)
    exclusions.worked([PEER, OTHER])
    assert exclusions.excluded(PEER, Equipment.of(NATIVE, [replace(CARD, free_bytes=1), CPU]))


def test_another_native_part_or_other_devices_are_tried() -> None:
    changes = [
        Equipment.of(replace(NATIVE, sources="newer"), [CARD, CPU]),
        Equipment.of(NATIVE, [CARD]),
        Equipment.of(NATIVE, [replace(CARD, description="another card"), CPU]),
        Equipment.of(None, [CARD, CPU]),
    ]
    for changed in changes:
        exclusions = DeviceExclusions()
        out(exclusions)
        assert exclusions.excluded(PEER, changed) == {}


def test_crashes_count_on_when_the_devices_are_said_to_be_others() -> None:
    exclusions = DeviceExclusions()
    bigger = [Equipment.of(NATIVE, [replace(CARD, total_bytes=10 + more), CPU]) for more in range(4)]
    for number, equipment in enumerate(bigger, 1):
        assert exclusions.excluded(PEER, equipment) == {}
        exclusions.crashed(PEER, equipment, ["CUDA0"], ABORTED)
        assert list(exclusions.excluded(PEER, equipment)) == ["CUDA0"] * (number > 1)
    exclusions.worked([PEER])
    exclusions.crashed(PEER, HERE, ["CUDA0"], ABORTED)
    assert exclusions.excluded(PEER, HERE) == {}, "it was of use meanwhile"
