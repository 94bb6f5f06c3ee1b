"""A worker and a head in networks of their own, whose only way to each other leads through a proxy.

Each of them finds the other at the very address that the other tells: the proxy listens there. So nothing in
the product knows of the proxy, and there is no way round it.
"""

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from meshd.base.tasks import Owner
from meshd.fleet.fleet import LocalNode

from tests.e2e.api_client import Api
from tests.e2e.cutter import Counts, Cutter, Rules
from tests.e2e.nodes import Fleet
from tests.e2e.spaces import Space

WORKER_PORT, HEAD_PORT, API_PORT = 17001, 17002, 8090


@dataclass(slots=True)
class Apart:
    """`rules` and `counts` are those of both proxies (the worker dials as well)."""

    fleet: Fleet
    worker: LocalNode
    head: LocalNode
    api: Api
    rules: Rules
    counts: Counts
    cutters: tuple[Cutter, Cutter]

    def begin_outage(self) -> None:
        """From now on every connection is refused, and those that are there are reset."""
        self.rules.outage = True
        for cutter in self.cutters:
            cutter.cut_all()


@asynccontextmanager
async def apart(
    folder: Path,
    model: Path,
    *,
    worker_has: Path | None,
    options: tuple[str, ...],
    seed: int,
    rate: float | None = None,
    worker_options: tuple[str, ...] = (),
) -> AsyncIterator[Apart]:
    """Both nodes, started; the model is not waited for. `options` are the head's."""
    rules, counts = Rules(rate=rate), Counts()
    with ExitStack() as stack:
        theirs, ours = stack.enter_context(Space()), stack.enter_context(Space())
        to_worker = Cutter(
            ours.listen(WORKER_PORT),
            partial(theirs.connect, WORKER_PORT),
            rules=rules,
            counts=counts,
            seed=seed,
        )
        to_head = Cutter(
            theirs.listen(HEAD_PORT), partial(ours.connect, HEAD_PORT), rules=rules, counts=counts, seed=~seed
        )
        async with Owner() as owner, Fleet(folder) as fleet:
            owner.start(to_worker.serve(), name="proxy to the worker")
            owner.start(to_head.serve(), name="proxy to the head")
            has = ("--model", str(worker_has)) if worker_has is not None else ()
            listen = f"127.0.0.1:{WORKER_PORT}"
            worker = await fleet.start(
                fleet.spec("worker", "worker", *has, *worker_options, listen=listen, prefix=theirs.prefix)
            )
            given = ("--model", str(model), "--port", str(API_PORT))
            head = await fleet.start(
                fleet.spec(
                    "head",
                    "serve",
                    *given,
                    *options,
                    token=await worker.token(),
                    listen=f"127.0.0.1:{HEAD_PORT}",
                    prefix=ours.prefix,
                )
            )
            api = Api(f"http://127.0.0.1:{API_PORT}", partial(ours.connect, API_PORT))
            yield Apart(fleet, worker, head, api, rules, counts, (to_worker, to_head))
            owner.cancel()
