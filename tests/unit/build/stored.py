"""A finished build in a cache, without a compiler."""

from pathlib import Path

from meshd.build import cache as builds
from meshd.build.cache import BuildKey
from meshd.build.interface import LLAMA_SERVER, RPC_SERVER
from meshd.build.machine import cpu_kind
from meshd.build.pin import read_pin
from meshd.wire.native import STOCK_PATCHES


def store(cache: Path, backend: str, *, patched: bool = True) -> Path:
    """The folder of its programs."""
    pin = read_pin()
    key = BuildKey(pin.commit, pin.patches_sha256 if patched else STOCK_PATCHES, backend, cpu_kind())
    made = {}
    for name, file in ((RPC_SERVER, "ggml-rpc-server"), (LLAMA_SERVER, "llama-server")):
        made[name] = cache / "out" / file
        made[name].parent.mkdir(parents=True, exist_ok=True)
        made[name].write_text("x")
        made[name].chmod(0o755)
    return builds.store(cache / "native" / key.name, key, made).bin_dir
