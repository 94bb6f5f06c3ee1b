"""Prompts over more workers than this machine has cores: `python -m tests.native.asleep --workers 1,4`.

As `python -m tests.bench.prompt`, whose options it takes, but workers compute nothing: their
mesh-server sleeps as long as one thread of a CPU would take (native/mesh/tests/asleep.cpp). Daemons, links,
llama-server and the plan are real; texts are not. Compiles that mesh-server in the cache the first time. The
model has random weights and 16 layers, as many for each of 2, 4 or 8 workers, unless `--model` names another.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from meshd.build import cache as builds
from meshd.build import native
from meshd.build.cache import BuildKey
from meshd.build.interface import MESH_PROGRAM
from meshd.build.pin import read_pin
from meshd.config.tree import find_cache

from tests.bench import prompt
from tests.bench.random_model import random_model
from tests.native.build import told

_ASLEEP = "mesh-server-asleep"


def main(argv: Sequence[str]) -> int:
    """Run; returns the exit code."""
    cache = find_cache(os.environ)
    asyncio.run(native.build_programs(cache, (*native.OUR_PROGRAMS, _ASLEEP), progress=told))
    model = random_model("small", cache / "bench-models")
    with tempfile.TemporaryDirectory(prefix="meshd-asleep-") as folder:
        lay_out(Path(folder), cache, builds.ours_key(read_pin(), "cpu"))
        os.environ["MESHD_CACHE"] = folder
        return prompt.main(["--model", str(model), *argv])


def lay_out(folder: Path, cache: Path, key: BuildKey) -> None:
    """A cache like this one, where mesh-server is the one that sleeps."""
    staged = folder / "staged"
    staged.mkdir()
    for name in native.OUR_PROGRAMS:
        source = _ASLEEP if name == MESH_PROGRAM else name
        (staged / name).symlink_to(builds.folder_of(cache, key) / source)
    builds.store(folder, key, staged.iterdir())
    for entry in cache.iterdir():
        if entry.name != "native":
            (folder / entry.name).symlink_to(entry)
    for entry in (cache / "native").iterdir():
        if entry.name not in (key.name, "lock"):
            (folder / "native" / entry.name).symlink_to(entry)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
