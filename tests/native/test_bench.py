"""Test what `python -m tests.native.bench` says of its results, and what it starts programs with."""

from tests.native.bench import table
from tests.native.bench_places import here, seen


def test_each_way_is_shown_beside_the_box() -> None:
    samples = {
        "prompt 512": {"alone": [10.0], "box": [21.0, 20.0, 19.0], "mesh": [18.0, 1.0, 19.0]},
        "8 streams": {"rpc": [5.0]},
    }
    assert table(samples).splitlines()[2:] == [
        "| prompt 512 | 10 (0.50) | 20 | – | 18 (0.90) |",
        "| 8 streams | – | – | 5 | – |",
    ]


def test_a_worker_sees_its_own_device_only() -> None:
    assert seen("CUDA1") == ("CUDA0", {"CUDA_VISIBLE_DEVICES": "1"})
    assert seen("CPU") == ("CPU", {})


def test_cpus_are_no_devices_to_llama_cpp() -> None:
    with here(["CPU", "CPU"]) as place:
        assert place.device_option("/") == []
    with here(["CUDA0", "CUDA1"]) as place:
        assert place.device_option("/") == ["-dev", "CUDA0/CUDA1"]
