"""A mesh-server that can be made to stand still in a graph: nothing ends, and nothing answers.

It runs under a preloaded library that replaces the entry of OpenMP, which each graph of more than
one thread calls. Once a file is there it sleeps in it for ever, as a thread in a driver that never returns;
or it computes for long, once. Every connection stays open, and no signal is involved. Needs Linux and cc.
"""

import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.e2e import half_mesh

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef void (*parallel)(void (*)(void *), void *, unsigned, unsigned);

void GOMP_parallel(void (*work)(void *), void * data, unsigned threads, unsigned flags) {
    static parallel real;
    if (!real) {
        real = (parallel) dlsym(RTLD_NEXT, "GOMP_parallel");
    }
    while (access(FOLDER "/stop", F_OK) == 0) {
        close(open(FOLDER "/stands", O_CREAT | O_WRONLY, 0600));
        pause();
    }
    if (unlink(FOLDER "/slow") == 0) {
        const struct timespec turn = { 0, 180*1000*1000 };
        const time_t end = time(NULL) + 36;
        while (time(NULL) < end) {
            const clock_t rest = clock() + CLOCKS_PER_SEC/50;
            while (clock() < rest) {
            }
            nanosleep(&turn, NULL);
        }
    }
    real(work, data, threads, flags);
}
"""


def skip_reason() -> str:
    """Why this cannot be done here; empty when it can."""
    linux_and_cc = sys.platform == "linux" and shutil.which("cc") is not None
    return _lacking() if linux_and_cc else "needs Linux and a C compiler"


def _lacking() -> str:
    listed = subprocess.run(
        ["ldd", str(half_mesh.real_program())], check=False, capture_output=True, text=True
    )
    return "" if "libgomp" in listed.stdout else "the build has no OpenMP that a library could stand before"


def preloaded(folder: Path) -> Path:
    """The library, whose files are in `folder`."""
    library, source = folder / "stands.so", folder / "stands.c"
    source.write_text(_SOURCE)
    subprocess.run(
        ["cc", "-shared", "-fPIC", f'-DFOLDER="{folder}"', "-o", library, source, "-ldl"], check=True
    )
    return library


class Frozen:
    """`cache`: one for a worker whose servers have the library; `stop` ends all progress of these."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        library = preloaded(folder)
        program = f'#!/bin/sh\nLD_PRELOAD={library} exec {half_mesh.real_program()} "$@"\n'
        self.cache = half_mesh.install(folder / "cache", program)

    def stop(self) -> None:
        """From the next graph on."""
        (self._folder / "stop").touch()

    def since(self) -> float:
        """When the first server stood still, of time.monotonic()."""
        return time.monotonic() - (time.time() - (self._folder / "stands").stat().st_mtime)

    def go_on(self) -> None:
        """For servers that are started later; those that stand still do so for good."""
        (self._folder / "stop").unlink()
