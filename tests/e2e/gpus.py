"""Builds for GPUs that somebody made on this machine: found, and never made by a test, for that takes long.

`meshd native build --backend cuda` (or `vulkan`) makes one. Vulkan without a card runs on Mesa's lavapipe
(Debian: mesa-vulkan-drivers), a processor that says it is a GPU; ggml takes it only when it is named.
A portable build (MESHD_OTHER_BUILD) counts for each GPU that it has a module for.
"""

import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from meshd.build.interface import LLAMA_SERVER, MESH_PROGRAM, NativeInfo
from meshd.build.native import find, read_bin_dir
from meshd.devices.devices import parse_devices
from meshd.process.run import environment
from meshd.wire.lease import OfferedDevice

from tests.bench.random_model import random_model
from tests.e2e.models import cache_folder, made
from tests.e2e.native_rig import PROMPT, Head
from tests.native.build import MeshBuild, other

BACKENDS = ("cuda", "vulkan", "metal", "hip")
LIST_SECONDS = 120.0
_FIRST_VULKAN = "GGML_VK_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A build, and the first device that it shows."""

    native: NativeInfo
    device: OfferedDevice

    @property
    def programs(self) -> MeshBuild:
        """Ours."""
        return MeshBuild(self.native.binaries[MESH_PROGRAM].parent)

    @property
    def llama_server(self) -> Path:
        """Upstream's."""
        return self.native.binaries[LLAMA_SERVER]


@cache
def gpu(backend: str) -> Gpu | str:
    """The build for `backend` and its first GPU; else why there is none."""
    portable = other()
    if portable is not None and (portable / f"libggml-{backend}.so").is_file():
        found = read_bin_dir(portable, cache_folder())
    else:
        found = find(cache_folder(), backend)
    if found is None:
        return f"no build for {backend} in the cache: `meshd native build --backend {backend}` makes one"
    if backend == "vulkan":
        os.environ.setdefault(_FIRST_VULKAN, "0")  # also a driver that computes on the processor
    gpus = [device for device in listed(found) if device.kind == "gpu"]
    return Gpu(found, gpus[0]) if gpus else f"the build for {backend} shows no device here"


def gpu_or_skip(backend: str) -> Gpu:
    """As `gpu`, for a test."""
    if isinstance(found := gpu(backend), str):
        pytest.skip(found)
    return found


def listed(info: NativeInfo) -> tuple[OfferedDevice, ...]:
    """Return the devices that its mesh-server shows."""
    argv = [str(info.binaries[MESH_PROGRAM]), "--list-devices"]
    done = subprocess.run(
        argv, env=environment({}), capture_output=True, text=True, timeout=LIST_SECONDS, check=True
    )
    return tuple(parse_devices(done.stdout.splitlines(), "here"))


def model() -> Path:
    """A small llama with heads of 128, which every attention kernel has."""

    def make(target: Path) -> None:
        random_model("tiny", target.parent).replace(target)

    return made("random-tiny.gguf", make)


@cache
def text_alone(backend: str, file: Path, folder: Path, *, on_cpu: bool = False, prompt: str = PROMPT) -> str:
    """Return what the first GPU answers by itself, or the processor with the same build."""
    found = gpu(backend)
    assert isinstance(found, Gpu), found
    extra = ("-dev", "none") if on_cpu else ("-dev", found.device.name, "-ngl", "999")
    with Head(found.llama_server, folder, file, [], extra=extra) as head:
        return head.complete(prompt)
