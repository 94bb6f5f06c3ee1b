"""A head and its workers on this machine, as far apart as asked."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from meshd.admin.status import Status
from meshd.base.errors import UserError
from meshd.base.tasks import Owner
from meshd.fleet.networks import API_PORT, FleetPlace, listen_address, need_namespaces
from meshd.fleet.node import LocalNode, NodeSpec, start_all
from meshd.model.output import NEAR_SECONDS
from meshd.process.child import OwnedChild
from meshd.process.interface import ChildFailed, ChildSpec
from meshd.process.ready import LineSeen

HEAD_NAME = "head"
# Runs the program behind it on the processors that it names: not every system has `taskset`
_PINNED = """
import os, sys
os.sched_setaffinity(0, map(int, sys.argv[1].split(",")))
os.execv(sys.argv[2], sys.argv[2:])
"""


async def apart(owner: Owner, argv: Sequence[str], folder: Path) -> FleetPlace:
    """Run `argv`, which creates networks as networks.py does. Raises UserError."""
    need_namespaces()
    seen = LineSeen(r'^\{"pid"')
    child = OwnedChild(
        ChildSpec(
            name="networks",
            argv=argv,
            log=folder / "networks.log",
            stamped=False,
            probe=seen,
            on_line=seen.see,
        )
    )
    owner.start(child.serve(), name="networks")
    try:
        await child.ensure_ready()
    except ChildFailed as error:
        reason = error.tail[-1] if error.tail else error.what
        raise UserError(
            f"cannot create networks: {reason}", hint="run this as root, or allow user namespaces"
        ) from None
    found = json.loads(seen.line)
    return FleetPlace(int(found["pid"]), tuple(map(int, found["networks"])), int(found["api_port"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """`round_trips`: one worker for each, so many seconds from the head; nothing is put between if all are 0.

    `worker_model` is the workers' file, None: they have none. The head waits for all of them.
    `worker_options`: what else each worker is told, where anything.
    `environments`: variables of nodes, by their names (HEAD_NAME, worker_names).
    `cores`: the processors that each worker may use, where not all.
    """

    folder: Path
    cache: Path
    model: Path
    worker_model: Path | None
    round_trips: Sequence[float]
    head_options: tuple[str, ...] = ()
    worker_options: Sequence[tuple[str, ...]] = ()
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    cores: Sequence[Sequence[int]] = ()


def worker_names(count: int) -> list[str]:
    """Return the names of a fleet's workers."""
    return ["worker"] if count == 1 else [f"worker-{number}" for number in range(1, count + 1)]


class Fleet:
    """The nodes; `start_workers`, then `start_head`. They end with their owner."""

    is_on_loopback: ClassVar[bool] = True  # there a node does not compress by itself

    def __init__(self, spec: FleetSpec) -> None:
        self.spec = spec
        self._place: FleetPlace | None = None
        self._token = ""
        self.workers: list[LocalNode] = []

    async def connect(self, owner: Owner) -> FleetPlace | None:
        """Create a network for each node, so far apart; None: nothing is between them. Raises UserError."""
        far = list(self.spec.round_trips)
        if not any(far):
            return None
        argv = (sys.executable, "-m", "meshd.fleet.networks", json.dumps(far))
        return await apart(owner, argv, self.spec.folder)

    def listen_address(self, number: int) -> str:
        """Return where a node listens in its network."""
        return listen_address(number)

    async def start_workers(self, owner: Owner) -> None:
        """Start the workers; the first one founds the mesh. Raises MeshdError."""
        spec = self.spec
        self._place = await self.connect(owner)
        has = ("--model", str(spec.worker_model)) if spec.worker_model is not None else ()
        for number, name in enumerate(worker_names(len(spec.round_trips)), 1):
            more = [word for words in spec.worker_options[number - 1 : number] for word in words]
            worker = LocalNode(self._node(number, name, "worker", (*has, *more)))
            self.workers.append(worker)
            await start_all(owner, worker)
            self._token = self._token or await worker.token()

    async def start_head(self, owner: Owner, *more: str) -> LocalNode:
        """Start the head's process; of an option that is given twice the last one counts.

        Another head may follow over the same workers once it has ended. Raises MeshdError.
        """
        spec = self.spec
        port = API_PORT if self._place is not None else 0
        least = ("--min-workers", str(len(spec.round_trips)))
        is_far = self.is_on_loopback and max(spec.round_trips, default=0.0) >= NEAR_SECONDS
        far = ("--set", "links.compress=on") if is_far else ()
        # what is compared computes one token at a time, on all workers
        alike = ("--split", "always", "--speculate", "off")
        given = ("--model", str(spec.model), "--port", str(port), *alike)
        options = (*given, *least, *far, *spec.head_options, *more)
        head = LocalNode(self._node(0, HEAD_NAME, "serve", options))
        await start_all(owner, head)
        return head

    def api_url(self, status: Status) -> str:
        """Return the head's API, as it is reached from here; empty while it has none."""
        if self._place is not None:
            return f"http://127.0.0.1:{self._place.api_port}"
        return status.api.url if status.api is not None else ""

    def _node(self, number: int, name: str, role: str, options: tuple[str, ...]) -> NodeSpec:
        place = self._place
        own = self.spec.environments.get(name, {})
        cores = self.spec.cores[number - 1] if 0 < number <= len(self.spec.cores) else ()
        pinned = (sys.executable, "-c", _PINNED, ",".join(map(str, cores))) if cores else ()
        return NodeSpec(
            name=name,
            role=role,
            home=self.spec.folder / name,
            cache=self.spec.cache,
            options=options,
            listen=self.listen_address(number) if place is not None else "127.0.0.1:0",
            environment={**own, **({"MESHD_JOIN": self._token} if self._token else {})},
            prefix=(*(place.prefix(number) if place is not None else ()), *pinned),
        )
