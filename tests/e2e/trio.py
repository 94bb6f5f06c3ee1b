"""Two workers and a head in networks of their own: every way between two of them leads through a proxy.

As apart.py, with one more node, and rules of its own for the way between each two.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, permutations
from pathlib import Path

from meshd.base.tasks import Owner
from meshd.fleet.fleet import LocalNode

from tests.e2e.api_client import Api
from tests.e2e.cutter import Counts, Cutter, Rules
from tests.e2e.homes import connected
from tests.e2e.nodes import Fleet
from tests.e2e.spaces import Space

PORTS = {"head": 17001, "worker-0": 17002, "worker-1": 17003}
API_PORT = 8090
QUIET = ("--no-mdns", "--no-portmap", "--stun", "none")


@dataclass(slots=True)
class Way:
    """Between two nodes, whichever of them dials."""

    rules: Rules = field(default_factory=Rules)
    crossed: Counts = field(default_factory=Counts)
    cutters: list[Cutter] = field(default_factory=list)

    def reset(self) -> None:
        """Every connection, now."""
        for cutter in self.cutters:
            cutter.cut_all()

    def part(self) -> None:
        """From now on they do not reach each other: what there is is reset, what comes is refused."""
        self.rules.outage = True
        self.reset()

    def join(self) -> None:
        """They do again."""
        self.rules.outage = False

    def silence(self) -> None:
        """From now on it brings nothing, and tells nobody."""
        self.rules.flowing.clear()

    def flow(self) -> None:
        """It brings bytes again."""
        self.rules.flowing.set()


@dataclass(slots=True)
class Trio:
    """`between` is the way between the workers."""

    fleet: Fleet
    workers: tuple[LocalNode, LocalNode]
    head: LocalNode
    api: Api
    _ways: dict[frozenset[str], Way]

    def way(self, one: str, other: str) -> Way:
        """Between these two nodes."""
        return self._ways[frozenset((one, other))]

    @property
    def between(self) -> Way:
        return self.way("worker-0", "worker-1")


def _open_ways(spaces: Mapping[str, Space], owner: Owner, seed: int) -> dict[frozenset[str], Way]:
    """A proxy for each direction of dialling, run by `owner`."""
    ways = {frozenset(pair): Way() for pair in combinations(PORTS, 2)}
    for number, (here, there) in enumerate(permutations(PORTS, 2)):
        way = ways[frozenset((here, there))]
        cutter = Cutter(
            spaces[here].listen(PORTS[there]),
            partial(spaces[there].connect, PORTS[there]),
            rules=way.rules,
            counts=way.crossed,
            seed=seed + number,
        )
        owner.start(cutter.serve(), name=f"{here} to {there}")
        way.cutters.append(cutter)
    return ways


@asynccontextmanager
async def trio(
    folder: Path,
    model: Path,
    *,
    head_options: tuple[str, ...],
    seed: int,
    parted: bool = False,
    min_workers: int = 2,
    worker_options: tuple[str, ...] = (),
    options: tuple[str, ...] = ("--set", "links.no_relaying=true"),
) -> AsyncIterator[Trio]:
    """All three, started; the model is not waited for. `options` are of each: no member passes bytes on.

    The head comes last, unless they are `parted`: then the workers have never reached each other.
    """
    with ExitStack() as stack:
        spaces = {name: stack.enter_context(Space()) for name in PORTS}
        async with Owner() as owner, Fleet(folder) as fleet:
            ways = _open_ways(spaces, owner, seed)

            async def start(name: str, role: str, *more: str, token: str = "") -> LocalNode:
                return await fleet.start(
                    fleet.spec(
                        name,
                        role,
                        "--model",
                        str(model),
                        *options,
                        *QUIET,
                        *more,
                        token=token,
                        listen=f"127.0.0.1:{PORTS[name]}",
                        prefix=spaces[name].prefix,
                    )
                )

            async def start_head(token: str = "") -> LocalNode:
                least = ("--min-workers", str(min_workers))
                return await start(
                    "head", "serve", "--port", str(API_PORT), *least, *head_options, token=token
                )

            async def start_worker(name: str, token: str = "") -> LocalNode:
                return await start(name, "worker", *worker_options, token=token)

            if parted:
                ways[frozenset(("worker-0", "worker-1"))].rules.outage = True
                head = await start_head()
                token = await head.token()
                first, second = [await start_worker(f"worker-{number}", token) for number in range(2)]
            else:
                first = await start_worker("worker-0")
                token = await first.token()
                second = await start_worker("worker-1", token)
                await connected(first, 1)  # so that the head knows both when it joins
                head = await start_head(token)
            api = Api(f"http://127.0.0.1:{API_PORT}", partial(spaces["head"].connect, API_PORT))
            yield Trio(fleet, (first, second), head, api, ways)
            owner.cancel()
