"""All workers are asked for an offer at once; those that only say "soon" are not waited for long."""

import asyncio
from collections.abc import Iterable, Sequence

from meshd.base import log
from meshd.base.errors import MeshdError, Refused
from meshd.base.tasks import Owner
from meshd.head.lease_client import LeaseClient, why_unfit
from meshd.head.missing_weights import marks_of
from meshd.identity.keys import PeerId
from meshd.model.weights_index import WeightsIndex
from meshd.peer.interface import PeerStatus
from meshd.wire.lease import Acquire
from meshd.wire.native import NativeVersion

LATE_OFFER_SECONDS = 30.0  # for the others, once enough have offered: a trial of a GPU takes some seconds
LATE_AGAIN_SECONDS = 3.0  # for those that were late the time before
_NAMED = 4  # of those that are asked
NOT_READY = "not_ready"  # code of what is said of them
LOG = log.get("serve")


class Asking:
    """`ask` once. `blamed` gets each worker that says nothing, or nonsense, and why.

    `late_before` are workers that were late the last time they were asked: one of them can hold up one load,
    and no further one until it has offered.
    """

    def __init__(
        self,
        leases: Sequence[LeaseClient],
        *,
        min_offers: int,
        late_before: set[PeerId],
        blamed: dict[PeerId, str],
    ) -> None:
        self._leases = leases
        self._min_offers = min_offers
        self._late_before = late_before
        self._blamed = blamed

    async def ask(self, acquire: Acquire, refusals: list[MeshdError]) -> list[LeaseClient]:
        """Those with an offer; why the others have none is added to `refusals`."""
        async with Owner() as owner:
            asked = [
                owner.start(self._ask_one(lease, acquire, refusals), name=f"ask {lease.name}")
                for lease in self._leases
            ]
            for lease in await self._late(asked):
                refusals.append(self._leave_out(lease))
            owner.cancel()
        for lease in self._leases:
            if lease.offer is not None:
                self._late_before.discard(lease.peer)
        return [lease for lease in self._leases if lease.offer is not None]

    async def _late(self, asked: Sequence[asyncio.Task[None]]) -> list[LeaseClient]:
        """Those without an answer when it is time to plan."""
        waiting = {task for task in asked if not task.done()}
        while waiting and sum(lease.offer is not None for lease in self._leases) < self._min_offers:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        since = asyncio.get_running_loop().time()
        while True:
            late = [lease for lease, task in zip(self._leases, asked, strict=True) if task in waiting]
            first = any(lease.peer not in self._late_before for lease in late)
            left = (
                since
                + (LATE_OFFER_SECONDS if first else LATE_AGAIN_SECONDS)
                - asyncio.get_running_loop().time()
            )
            if not late or left <= 0:
                return late
            _, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)

    def _leave_out(self, lease: LeaseClient) -> Refused:
        error = Refused(f"{lease.name} is not ready yet: {lease.progress}", code=NOT_READY)
        LOG.warning("worker_left_out", peer=lease.peer.short, name=lease.name, why=error.what)
        self._late_before.add(lease.peer)
        return error

    async def _ask_one(self, lease: LeaseClient, acquire: Acquire, refusals: list[MeshdError]) -> None:
        try:
            await lease.ask(acquire)
        except MeshdError as error:
            LOG.warning("worker_left_out", peer=lease.peer.short, name=lease.name, why=error.what)
            refusals.append(error)
            if not isinstance(error, Refused):  # it said nothing, or what makes no sense
                self._blamed[lease.peer] = error.what
        finally:
            if lease.offer is None:
                lease.release()


def fitting(
    workers: Sequence[PeerStatus], mine: NativeVersion, refusals: list[MeshdError]
) -> list[PeerStatus]:
    """Those whose llama.cpp works with ours; why the others' does not is added to `refusals`."""
    reasons = {worker.peer: why_unfit(mine, worker) for worker in workers}
    refusals += [reason for reason in reasons.values() if reason is not None]
    return [worker for worker in workers if reasons[worker.peer] is None]


def acquire_for(
    alias: str,
    index: WeightsIndex,
    version: NativeVersion,
    incarnation: bytes,
    operations: tuple[str, ...],
) -> Acquire:
    """The question, the same for all."""
    return Acquire(
        incarnation=incarnation,
        model=alias[:100],
        fingerprint=index.fingerprint,
        native_pin=version.pin,
        operations=operations,
        protocol=version.protocol,
        marks=marks_of(index),
    )


def asked(names: Iterable[str]) -> str:
    """For people: who is asked."""
    names = sorted(names)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"asking {', '.join(names[:_NAMED])}{more}"


def not_ready(refusals: Sequence[MeshdError]) -> str:
    """Who was late, in words; empty when nobody was."""
    return "; ".join(
        error.what for error in refusals if isinstance(error, Refused) and error.code == NOT_READY
    )
