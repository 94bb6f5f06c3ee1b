"""Which devices are left out for a model, and until when."""

from dataclasses import replace

from meshd.identity.keys import KeyPair
from meshd.role.head.device_exclusions import Equipment, Unable
from meshd.wire.lease import OfferedDevice
from meshd.wire.native import NativeVersion

PEER, OTHER = (KeyPair.from_seed(bytes([number]) * 32).peer for number in (1, 2))
NATIVE = NativeVersion("7.0.0", "pin", "patches", "cuda")
CARD = OfferedDevice("CUDA0", "gpu", "a card", 5, 10)
CPU = OfferedDevice("CPU", "cpu", "a processor", 5, 10)
HERE = Equipment.of(NATIVE, [CARD, CPU])
ABORTED = "`rpc-server` was ended by SIGABRT while it ran"


def test_a_device_that_lacks_an_operation_is_out_at_once() -> None:
    unable = Unable()
    unable.lacks(PEER, HERE, "CUDA0", "SET_ROWS")
    assert unable.excluded(PEER, HERE) == {"CUDA0": "it cannot compute SET_ROWS"}
    assert unable.excluded(OTHER, HERE) == {}


def test_a_crash_may_happen_once() -> None:
    unable = Unable()
    unable.crashed(PEER, HERE, ["CUDA0", "CPU"], ABORTED)
    assert unable.excluded(PEER, HERE) == {}
    unable.worked([PEER])
    unable.crashed(PEER, HERE, ["CUDA0"], ABORTED)
    assert unable.excluded(PEER, HERE) == {}
    unable.crashed(PEER, HERE, ["CUDA0"], ABORTED)
    ((name, why),) = unable.excluded(PEER, HERE).items()
    assert name == "CUDA0" and "crashed 2 times" in why and "SIGABRT" in why


def test_it_stays_out_when_others_work_and_memory_changes() -> None:
    unable = Unable()
    unable.lacks(PEER, HERE, "CUDA0", "SET_ROWS")
    unable.worked([PEER, OTHER])
    assert unable.excluded(PEER, Equipment.of(NATIVE, [replace(CARD, free_bytes=1), CPU]))


def test_another_native_part_or_other_devices_are_tried() -> None:
    changes = [
        Equipment.of(replace(NATIVE, patches="newer"), [CARD, CPU]),
        Equipment.of(NATIVE, [CARD]),
        Equipment.of(NATIVE, [replace(CARD, description="another card"), CPU]),
        Equipment.of(None, [CARD, CPU]),
    ]
    for changed in changes:
        unable = Unable()
        unable.lacks(PEER, HERE, "CUDA0", "SET_ROWS")
        assert unable.excluded(PEER, changed) == {}


def test_crashes_count_on_when_the_devices_are_said_to_be_others() -> None:
    unable = Unable()
    bigger = [Equipment.of(NATIVE, [replace(CARD, total_bytes=10 + more), CPU]) for more in range(4)]
    for number, equipment in enumerate(bigger, 1):
        assert unable.excluded(PEER, equipment) == {}
        unable.crashed(PEER, equipment, ["CUDA0"], ABORTED)
        assert list(unable.excluded(PEER, equipment)) == ["CUDA0"] * (number > 1)
    unable.worked([PEER])
    unable.crashed(PEER, HERE, ["CUDA0"], ABORTED)
    assert unable.excluded(PEER, HERE) == {}, "it was of use meanwhile"
