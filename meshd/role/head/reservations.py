"""The leases of one life of a model: reserved from all workers at once, granted side by side, watched."""

import asyncio
from collections.abc import Callable, Sequence

from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner
from meshd.identity.keys import PeerId
from meshd.peer.interface import Mesh, PeerState
from meshd.role.head.blame import GIVEN_UP, Blame
from meshd.role.head.device_exclusions import DevicesInUse
from meshd.role.head.lease_client import Lender
from meshd.role.head.load_report import WeightsReport
from meshd.role.head.split_plan import NodeOffer
from meshd.rpc.hang_detector import LOOK_SECONDS
from meshd.wire.lease import Lost


class Reserving:
    """`begin` once. `blame` gets the worker that failed, and why; `on_progress` what is waited for.

    `granted` is called when all have granted, `ended` when a lease has ended after its grant, or is given up.
    """

    def __init__(
        self,
        mesh: Mesh,
        lenders: Sequence[Lender],
        *,
        devices_in_use: DevicesInUse,
        blame: Blame,
        on_progress: Callable[[str], None],
        granted: Callable[[], None],
        ended: Callable[[Lender, Lost], None],
    ) -> None:
        self._mesh = mesh
        self._lenders = lenders
        self._devices_in_use = devices_in_use
        self._blame = blame
        self._on_progress = on_progress
        self._granted = granted
        self._ended = ended

    async def begin(
        self,
        offers: Sequence[NodeOffer],
        wanted: Sequence[tuple[int, ...]],
        report: WeightsReport,
        owner: Owner,
    ) -> asyncio.Task[None]:
        """Returns when there is a tunnel to each worker; the task when all have granted, or one has refused.

        Tunnels and leases live in tasks of `owner`; `report` learns whose tunnels they are. Raises Broken.
        """
        if self._lenders:
            names = ", ".join(lender.name for lender in self._lenders)
            self._on_progress(f"starting the rpc-server of {names}")
        await self._reserve(offers, wanted)
        granted = owner.start(self._until_granted(owner), name="grants")
        if any(lender.tunnel is None for lender in self._lenders):  # an old worker tells the id then
            await asyncio.wait([granted])
        for lender in self._lenders:
            assert lender.tunnel is not None
            report.names[lender.tunnel.endpoint] = lender.name
            owner.start(lender.tunnel.serve(), name=f"tunnel {lender.name}")
            owner.start(self._bear(lender), name=f"patience {lender.name}")
        return granted

    async def _reserve(self, offers: Sequence[NodeOffer], wanted: Sequence[tuple[int, ...]]) -> None:
        """Say to all what is wanted of each, and wait for no answer. Raises Broken."""
        for lender, item, counts in zip(self._lenders, offers, wanted, strict=True):
            self._devices_in_use.uses(lender.peer, item.offer.devices, counts)
            try:
                await lender.reserve(counts)
            except MeshdError as error:
                self._blame.failed[lender.peer] = error.what
                raise

    async def _until_granted(self, owner: Owner) -> None:
        """By all. Raises MeshdError when one refuses."""
        async with Owner() as waiting:
            for lender in self._lenders:
                waiting.start(self._until_one_granted(lender, owner), name=f"grant of {lender.name}")
        self._granted()

    async def _until_one_granted(self, lender: Lender, owner: Owner) -> None:
        try:
            await lender.until_granted()
        except MeshdError as error:
            self._blame.failed[lender.peer] = error.what
            raise
        owner.start(self._watch(lender), name=f"lease {lender.name}")

    async def _bear(self, lender: Lender) -> None:
        """Until it owes something for too long, whatever it says."""
        while True:
            if why := lender.patience.look(reachable=self._is_reachable(lender.peer)):
                self._ended(lender, Lost(GIVEN_UP, why))
                return
            await asyncio.sleep(LOOK_SECONDS)

    def _is_reachable(self, peer: PeerId) -> bool:
        return any(
            status.peer == peer and status.state is PeerState.CONNECTED for status in self._mesh.peers()
        )

    async def _watch(self, lender: Lender) -> None:
        self._ended(lender, await lender.until_lost())
