"""The leases of one life of a model: reserved from all workers at once, granted side by side, watched."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner
from meshd.head.blame import Blame
from meshd.head.device_exclusions import DevicesInUse
from meshd.head.lease_client import LeaseClient
from meshd.head.load_report import WeightsReport
from meshd.head.push_plan import names_neighbour
from meshd.plan.machines import NodeOffer
from meshd.wire.lease import HEAD_ENDED, Lost
from meshd.wire.needs import Needs

AFTER_HEAD_SECONDS = 5.0  # LEASE_WORD_SECONDS, and some more for a process to be reaped
LOG = log.get("serve")


class Reserving:
    """`begin` once. `blame` gets the worker that failed, and why; `on_progress` what is waited for.

    `granted` is called when all have granted, `ended` when a lease has ended after its grant.
    """

    def __init__(
        self,
        leases: Sequence[LeaseClient],
        *,
        devices_in_use: DevicesInUse,
        blame: Blame,
        on_progress: Callable[[str], None],
        granted: Callable[[], None],
        ended: Callable[[LeaseClient, Lost], None],
    ) -> None:
        self._leases = leases
        self._devices_in_use = devices_in_use
        self._blame = blame
        self._on_progress = on_progress
        self._granted = granted
        self._ended = ended

    async def begin(
        self,
        offers: Sequence[NodeOffer],
        wanted: Sequence[tuple[int, ...]],
        needs: Mapping[str, Needs],
        report: WeightsReport,
        owner: Owner,
    ) -> asyncio.Task[None]:
        """Returns when there is a tunnel to each worker; the task when all have granted, or one has refused.

        With `needs`, of each worker by name, they first take what they lack of these from members. Tunnels
        and leases live in tasks of `owner`; `report` learns whose they are. Raises MeshdError.
        """
        if needs:
            await self._fetch(wanted, needs)
        if self._leases:
            names = ", ".join(lease.name for lease in self._leases)
            self._on_progress(f"starting the server of {names}")
        await self._reserve(offers, wanted, fetched=bool(needs))
        granted = owner.start(self._until_granted(owner), name="grants")
        for lease in self._leases:
            assert lease.tunnel is not None
            report.names[lease.tunnel.endpoint] = lease.name
            owner.start(lease.tunnel.serve(), name=f"tunnel {lease.name}")
        return granted

    async def _fetch(self, wanted: Sequence[tuple[int, ...]], needs: Mapping[str, Needs]) -> None:
        """By all at once. Raises MeshdError."""
        async with Owner() as fetching:
            for lease, counts in zip(self._leases, wanted, strict=True):
                fetching.start(self._fetch_one(lease, counts, needs[lease.name]), name=f"fetch {lease.name}")

    async def _fetch_one(self, lease: LeaseClient, counts: tuple[int, ...], needs: Needs) -> None:
        try:
            fetched = await lease.fetch(counts, needs)
        except MeshdError as error:
            self._blame.failed[lease.peer] = error.what
            raise
        LOG.info("worker_fetched", name=lease.name, bytes=fetched.count, what=fetched.text)

    async def _reserve(
        self, offers: Sequence[NodeOffer], wanted: Sequence[tuple[int, ...]], *, fetched: bool
    ) -> None:
        """Say to all what is wanted of each, and wait for no answer. Raises MeshdError."""
        for place, (lease, item, counts) in enumerate(zip(self._leases, offers, wanted, strict=True)):
            self._devices_in_use.uses(lease.peer, item.offer.devices, counts)
            try:
                await lease.reserve(counts, place, fetched=fetched)
            except MeshdError as error:
                self._blame.failed[lease.peer] = error.what
                raise

    async def _until_granted(self, owner: Owner) -> None:
        """By all. Raises MeshdError when one refuses."""
        async with Owner() as waiting:
            for lease in self._leases:
                waiting.start(self._until_one_granted(lease, owner), name=f"grant of {lease.name}")
        self._granted()

    async def _until_one_granted(self, lease: LeaseClient, owner: Owner) -> None:
        try:
            await lease.until_granted()
        except MeshdError as error:
            self._blame.failed[lease.peer] = error.what
            raise
        owner.start(self._watch(lease), name=f"lease {lease.name}")

    async def _watch(self, lease: LeaseClient) -> None:
        lost = await lease.until_lost()
        # a consequence, if it is true: the end of llama-server, or of the other worker, is noticed first
        if lost.code == HEAD_ENDED or names_neighbour(lost.text):
            await asyncio.sleep(AFTER_HEAD_SECONDS)
        self._ended(lease, lost)
