"""A process that answers on the control socket of MESHD_HOME as a daemon with one child would.

`python -m tests.process.cli_daemon [deaf | orphan | hostile]`: says `ready CHILD` when it listens; ends when
asked to, unless `deaf`; leaves its child behind if `orphan`; has a peer and a model with evil names if
`hostile`. The child lives until its standard input, which is ours, ends.
"""

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from meshd.admin.request import Request
from meshd.admin.server import AdminServer
from meshd.admin.status import ChildView, Status
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


EVIL = "[red]\x1b[2J\x1b]0;owned\x07\u202eevil漢字\u200b"


def hostile_status(status: Status) -> Status:
    """Names that would move the cursor, turn the text around, or be markup."""
    assert status.model is not None
    peers = tuple(replace(peer, name=EVIL, why_not_direct=EVIL * 5) for peer in status.peers)
    return replace(status, peers=peers, model=replace(status.model, name=EVIL, reason=EVIL * 5))


async def answer(child: int, *, deaf: bool, hostile: bool) -> None:
    view = ChildView(name="llama-server", pid=child, state="ready", restarts=0)
    status = replace(full_status(os.getpid()), children=(view,))
    control = Stoppable(hostile_status(status) if hostile else status)
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
        asyncio.run(answer(child.pid, deaf=how == "deaf", hostile=how == "hostile"))
        if how == "orphan":
            os._exit(0)
        child.terminate()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
