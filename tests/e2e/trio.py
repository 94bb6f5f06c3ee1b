"""Two workers and a head in networks of their own: every way between two of them leads through a proxy.

As apart.py, with one more node, and rules of its own for the way between the workers.
"""

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from pathlib import Path

from meshd.base.tasks import Owner
from meshd.fleet.node import LocalNode

from tests.e2e.api_client import Api
from tests.e2e.cutter import Counts, Cutter, Rules
from tests.e2e.nodes import Fleet
from tests.e2e.spaces import Space

PORTS = {"head": 17001, "worker-0": 17002, "worker-1": 17003}
API_PORT = 8090
QUIET = ("--no-mdns", "--no-portmap", "--stun", "none")


@dataclass(slots=True)
class Trio:
    """`between` and `crossed` are of the way between the workers; `head_crossed` of the two to the head."""

    fleet: Fleet
    workers: tuple[LocalNode, LocalNode]
    head: LocalNode
    api: Api
    between: Rules
    crossed: Counts
    head_crossed: Counts
    _cutters: tuple[Cutter, ...]

    def part(self) -> None:
        """From now on the workers do not reach each other: what there is is reset, what comes is refused."""
        self.between.outage = True
        for cutter in self._cutters:
            cutter.cut_all()

    def join(self) -> None:
        """They do again."""
        self.between.outage = False


@asynccontextmanager
async def trio(
    folder: Path, model: Path, *, head_options: tuple[str, ...], seed: int, parted: bool = False
) -> AsyncIterator[Trio]:
    """All three, started; the model is not waited for. No member passes bytes on for the others.

    `parted`: the workers have never reached each other.
    """
    between, crossed, to_head = Rules(), Counts(), Counts()
    with ExitStack() as stack:
        spaces = {name: stack.enter_context(Space()) for name in PORTS}
        async with Owner() as owner, Fleet(folder) as fleet:
            apart: list[Cutter] = []
            for number, (here, there) in enumerate(permutations(PORTS, 2)):
                with_head = "head" in (here, there)
                cutter = Cutter(
                    spaces[here].listen(PORTS[there]),
                    partial(spaces[there].connect, PORTS[there]),
                    rules=Rules() if with_head else between,
                    counts=to_head if with_head else crossed,
                    seed=seed + number,
                )
                owner.start(cutter.serve(), name=f"{here} to {there}")
                apart += [] if with_head else [cutter]

            async def start(name: str, role: str, *options: str, token: str = "") -> LocalNode:
                return await fleet.start(
                    fleet.spec(
                        name,
                        role,
                        "--model",
                        str(model),
                        "--no-relaying",
                        *QUIET,
                        *options,
                        token=token,
                        listen=f"127.0.0.1:{PORTS[name]}",
                        prefix=spaces[name].prefix,
                    )
                )

            between.outage = parted
            head = await start("head", "serve", "--port", str(API_PORT), "--min-workers", "2", *head_options)
            token = await head.token()
            first = await start("worker-0", "worker", token=token)
            second = await start("worker-1", "worker", token=token)
            api = Api(f"http://127.0.0.1:{API_PORT}", partial(spaces["head"].connect, API_PORT))
            yield Trio(fleet, (first, second), head, api, between, crossed, to_head, tuple(apart))
            owner.cancel()
