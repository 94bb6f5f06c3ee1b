"""A process that answers on the control socket of MESHD_HOME as a daemon with one child would.

`python -m tests.process.cli_daemon [deaf | orphan]`: says `ready CHILD` when it listens; ends when asked
to, unless `deaf`; leaves its child behind if `orphan`. The child lives until its standard input, which is
ours, ends.
"""

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from meshd.admin.request import Request
from meshd.admin.server import AdminServer
from meshd.admin.status import ChildView
from meshd.base.tasks import Owner

from tests.unit.admin.fake import FakeControl, R, full_status

CHILD = [sys.executable, "-c", "import sys; sys.stdin.read()"]


@dataclass
class Stoppable(FakeControl):
    """Sets an event when it shall end."""

    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: Request[R]) -> R:
        reply = await super().answer(request)
        if self.stopping:
            self.stopped.set()
        return reply


async def answer(child: int, *, deaf: bool) -> None:
    view = ChildView(name="llama-server", pid=child, state="ready", restarts=0)
    control = Stoppable(replace(full_status(os.getpid()), children=(view,)))
    server = AdminServer(home=Path(os.environ["MESHD_HOME"]), control=control)
    server.open()
    async with Owner() as owner:
        owner.start(server.serve(), name="admin")
        sys.stdout.write(f"ready {child}\n")
        sys.stdout.flush()
        await control.stopped.wait()
        if not deaf:
            owner.cancel()


def main(how: str) -> None:
    with subprocess.Popen(CHILD) as child:
        asyncio.run(answer(child.pid, deaf=how == "deaf"))
        if how == "orphan":
            os._exit(0)
        child.terminate()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
