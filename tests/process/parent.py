"""A program that owns a child, to be killed by a test: `python parent.py FOLDER MARKER FLAGS…`.

Prints `{}` when it is about to start the child and the pids of all that runs when that is ready.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from meshd.base import log

from tests.process.scenes import Maker, owned


async def main(folder: str, marker: str, *flags: str) -> None:
    log.set_up(level="error")
    maker = Maker(Path(folder), "--marker", marker, *flags, name=marker)
    async with owned(maker) as child:
        _print({})
        await child.ensure_ready()
        pid = child.status.pid
        assert pid is not None
        _print({"child": pid, "guard": os.getpgid(pid), "grandchild": maker.pid_of("grandchild")})
        await asyncio.Event().wait()


def _print(pids: dict[str, int]) -> None:
    sys.stdout.write(json.dumps(pids) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    asyncio.run(main(*sys.argv[1:]))
