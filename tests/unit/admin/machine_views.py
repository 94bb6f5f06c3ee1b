"""Devices, disks and paths, as a daemon made for tests tells of them."""

from meshd.admin.plan_api import (
    CapacityReply,
    DeviceCapacity,
    FitsReply,
    PathCapacity,
    ShortModelFit,
)
from meshd.admin.status import DeviceView, LeftOutView, StorageCapacity, StorageView, StoredFile

DEVICES = (
    DeviceView(
        name="CPU",
        kind="cpu",
        description="some processor",
        free_bytes=12 << 30,
        total_bytes=16 << 30,
        listed_s=240.0,
        weight_bytes_s=14.5e9,
        flops=722e9,
    ),
    DeviceView(
        name="CUDA0",
        kind="gpu",
        description="some card",
        free_bytes=300 << 20,
        total_bytes=24 << 30,
        listed_s=240.0,
    ),
)
STORAGE = StorageView(
    path="/home/u/.cache/meshd",
    free_bytes=310_200_000_000,
    cache_room_bytes=19_900_000_000,
    models=3,
    models_bytes=10_100_000_000,
)
CAPACITY = CapacityReply(
    devices=(
        DeviceCapacity(
            node="desk",
            device="CPU",
            free_bytes=8 << 30,
            total_bytes=16 << 30,
            weight_bytes_s=13.7e9,
            flops=2e11,
        ),
        DeviceCapacity(
            node="garage",
            device="CUDA0",
            free_bytes=20 << 30,
            total_bytes=24 << 30,
            weight_bytes_s=None,
            flops=None,
        ),
    ),
    paths=(PathCapacity(source="desk", to="garage", rtt_ms=0.85, bytes_s=None),),
    left_out=(LeftOutView(node="attic", why="it does not answer"),),
    unmeasured=(LeftOutView(node="garage", why="it computes for somebody"),),
    storage=(
        StorageCapacity(
            node="desk",
            free_bytes=310_200_000_000,
            cache_room_bytes=None,
            models=(
                StoredFile(name="big-Q4_0", bytes=9_900_000_000, fingerprint="ab" * 32),
                StoredFile(name="small-Q8_0", bytes=145_000_000, fingerprint=None),
            ),
            more_models=4,
        ),
        StorageCapacity(node="garage", free_bytes=0, cache_room_bytes=12_000_000_000),
        StorageCapacity(node="elder", free_bytes=None, cache_room_bytes=None),
        StorageCapacity(node="attic", free_bytes=None, cache_room_bytes=None, why_not="it does not answer"),
    ),
)
FITS = FitsReply(
    models=(
        ShortModelFit(name="qwen3-4b", here="gpu", mesh="gpu"),
        ShortModelFit(name="glm", here="partly_cpu", mesh="gpu"),
        ShortModelFit(name="llama-3.3-70b", here="no", mesh="cpu"),
        ShortModelFit(name="of-a-later-version", here="no", mesh="no"),
    ),
    workers=("garage",),
    left_out=(LeftOutView(node="attic", why="it does not answer"),),
)
