"""All leases of one run: asked for and reserved at once, granted side by side, watched, given up.

Losing a link is not losing a worker: a lost link comes back within seconds, mostly, and nobody needs to know.
Answers under way wait on for the grace, while new requests would wait behind them, so they hear of it earlier
(`as_reached`). A worker that is back for moments only would use up no grace, and keep the model degraded for
ever: so its gaps count together, until it has made up for them (`PeerPatience`).
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from meshd.base import log
from meshd.base.errors import MeshdError, Refused
from meshd.base.tasks import Owner
from meshd.devices.interface import RoleRuntime
from meshd.gateway.interface import Readiness
from meshd.head.device_exclusions import DeviceExclusions, DevicesInUse
from meshd.head.lease import Lease, MeshEnd, why_unfit
from meshd.head.load_report import WeightsReport
from meshd.head.missing_weights import marks_of
from meshd.head.push_plan import names_neighbour
from meshd.head.served_files import ServedModel
from meshd.head.survey import path_to
from meshd.head.worker_backoff import WorkerBackoff
from meshd.identity.keys import PeerId
from meshd.model.status import ModelState
from meshd.peer.interface import Mesh, PeerState, PeerStatus
from meshd.plan.machines import NodeOffer
from meshd.plan.over_offers import reservations
from meshd.plan.reasons import Reported
from meshd.plan.split import Plan
from meshd.plan.words import why_idle
from meshd.tunnel.interface import LISTEN_LOCAL, TunnelStatus
from meshd.wire.lease import HEAD_ENDED, Acquire, Lost
from meshd.wire.native import NativeVersion
from meshd.wire.needs import Needs

LATE_OFFER_SECONDS = 30.0  # for the others, once enough have offered: a trial of a GPU takes some seconds
LATE_AGAIN_SECONDS = 3.0  # for those that were late the time before
NOT_READY = "not_ready"  # code of what is said of them
LEASE_WORD_SECONDS = 1.0  # llama-server sees the loss of a worker; the lease tells why, a moment later
AFTER_HEAD_SECONDS = 5.0  # LEASE_WORD_SECONDS, and some more for a process to be reaped
SILENT_SECONDS = 10.0
GIVEN_BACK = 4.0  # seconds out of reach that each second within reach makes up for
LATE_SECONDS = 5.0  # one gap of the grace ends the session by itself, which is nearer to the truth
_LOOK_SECONDS = 1.0
_NAMED = 4  # of those that are asked
LOG = log.get("serve")


class Blame:
    """Remember whose doing the end of one run was: filled while it lives, told to the back-off at its end."""

    def __init__(self) -> None:
        self.failed: dict[PeerId, str] = {}
        """Before the model was loaded."""
        self.loaded_at: float | None = None
        self._left: dict[PeerId, str] = {}
        self._given_up: dict[PeerId, str] = {}
        self._in_doubt: dict[PeerId, str] = {}
        self._pairs: list[tuple[PeerId, PeerId]] = []

    @property
    def anybody(self) -> bool:
        """Return True if a worker is to blame."""
        return bool(self.failed or self._left or self._given_up or self._in_doubt)

    def ended(self, peer: PeerId, why: str, others: Collection[PeerId] = ()) -> None:
        """Blame a worker whose lease or connection ended first; `others` may have made it end.

        A mesh-server ends when a push fails, or when it cannot compute with a value that it has: any of them
        may be at fault, and nobody can tell who. They push to each other no more: what goes through the head
        is looked at there, so the next time it is certain.
        """
        if not others:
            self._of_now()[peer] = why
            return
        for one in (peer, *others):
            self.doubt(one, why)
        self._pairs += combinations((peer, *others), 2)

    def doubt(self, peer: PeerId, why: str) -> None:
        """Note that it may have been this one."""
        self._in_doubt[peer] = why

    def given_up(self, peer: PeerId, why: str) -> None:
        """Note that the head does not wait for this one any more."""
        self._given_up[peer] = why

    def _of_now(self) -> dict[PeerId, str]:
        return self.failed if self.loaded_at is None else self._left

    def tell(self, backoff: WorkerBackoff, workers: Iterable[PeerStatus], now: float) -> None:
        """Tell the back-off, which leaves workers out of later runs for a while."""
        for one, other in self._pairs:
            backoff.part(one, other)
        lasted = now - self.loaded_at if self.loaded_at is not None else 0.0
        for worker in workers:
            peer = worker.peer
            if peer in self.failed:
                backoff.failed(worker, self.failed[peer], now)
            if peer in self._given_up:
                backoff.hung(worker, self._given_up[peer], now)
            elif peer in self._left:
                backoff.ended(worker, self._left[peer], now, lasted=lasted)
            elif peer in self._in_doubt:
                backoff.ended(worker, self._in_doubt[peer], now, lasted=lasted, in_doubt=True)
            else:
                continue
            if (why := backoff.unsteady(peer, now)) is not None:
                LOG.warning("worker_unsteady", peer=peer.short, name=worker.name, why=why)


class Leases:
    """Hold the leases of one run in the order of its plan. In time: `ask`, `offers`, `keep`, `reserve`.

    `blame` gets each worker that fails, and why.
    """

    def __init__(
        self,
        runtime: RoleRuntime,
        model: ServedModel,
        *,
        exclusions: DeviceExclusions,
        late_before: set[PeerId],
        make_end: Callable[[], MeshEnd],
        on_progress: Callable[[str], None],
        on_lost: Callable[[Lease, Lost], None],
    ) -> None:
        """Hold none yet. `make_end`: of a new connection with our llama-server.

        `late_before`: workers that were late the last time they were asked. One of them can hold up one load,
        and no further one until it has offered. `on_lost`: a lease has ended after its grant.
        """
        self._runtime = runtime
        self._model = model
        self._late_before = late_before
        self._make_end = make_end
        self._on_progress = on_progress
        self._on_lost = on_lost
        self.held: list[Lease] = []
        self.are_granted = False
        """All workers run their mesh-servers for us."""
        self.devices_in_use = DevicesInUse(exclusions)
        self.blame = Blame()
        self.refusals: list[MeshdError] = []
        """Why workers that were asked have no lease."""

    @property
    def peers(self) -> Sequence[PeerId]:
        """Return the workers that take part."""
        return [lease.peer for lease in self.held]

    @property
    def tunnels(self) -> Sequence[TunnelStatus]:
        """Return the status of the tunnel to each worker."""
        return [lease.tunnel.status for lease in self.held if lease.tunnel is not None]

    def at(self, endpoint: str) -> Lease | None:
        """Find the lease that llama-server calls by this name; None for an empty or unknown one."""
        return next((lease for lease in self.held if endpoint and lease.endpoint == endpoint), None)

    def moved(self) -> int | None:
        """Count the bytes to and from all workers; None while one is out of reach."""
        used = set(self.peers)
        if any(
            one.peer in used and one.state is not PeerState.CONNECTED for one in self._runtime.mesh.peers()
        ):
            return None
        return sum(one.sent_bytes + one.received_bytes for one in self.tunnels)

    def crossed(self) -> int:
        """Count the bytes to and from all workers so far, over links and direct connections."""
        used = set(self.peers)
        paths = (path for peer in self._runtime.mesh.peers() if peer.peer in used for path in peer.paths)
        on_links = sum(path.sent_bytes + path.received_bytes for path in paths)
        past_links = (one for one in self.tunnels if one.listen == LISTEN_LOCAL)
        return on_links + sum(one.sent_bytes + one.received_bytes for one in past_links)

    def release(self) -> None:
        """Give all back: each worker ends its mesh-server."""
        for lease in self.held:
            lease.release()

    # Asking, and choosing.

    async def ask(
        self,
        workers: Sequence[PeerStatus],
        names: Mapping[PeerId, str],
        operations: tuple[str, ...],
    ) -> None:
        """Ask all workers at once and keep the leases of those that offer something.

        `operations`: of the model's graph. Raises MeshdError when fewer remain than the user demands.
        """
        self._on_progress(_asked(names.values()) if workers else "planning")
        version, least = self._runtime.native.version, self._model.options.least_workers
        for worker in workers:
            if (unfit := why_unfit(version, worker)) is not None:
                self.refusals.append(unfit)
                continue
            self.held.append(
                Lease(
                    self._runtime.mesh,
                    self._runtime.tunnels,
                    peer=worker.peer,
                    name=names[worker.peer],
                    on_progress=self._on_progress,
                    mesh_end=self._make_end(),
                )
            )
        acquire = acquire_for(self._model, version, operations)
        async with Owner() as owner:
            asked = [
                owner.start(self._ask_one(lease, acquire), name=f"ask {lease.name}") for lease in self.held
            ]
            for lease in await self._late(asked, least):
                self.refusals.append(self._leave_out(lease))
            owner.cancel()
        self.held = [lease for lease in self.held if lease.offer is not None]
        self._late_before.difference_update(self.peers)
        if len(self.held) < least and self.refusals:
            raise self.refusals[0]

    async def _late(self, asked: Sequence[asyncio.Task[None]], least: int) -> list[Lease]:
        """Wait for answers; return the leases without one when it is time to plan."""
        waiting = {task for task in asked if not task.done()}
        while waiting and sum(lease.offer is not None for lease in self.held) < least:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        now = asyncio.get_running_loop().time
        since = now()
        while True:
            late = [lease for lease, task in zip(self.held, asked, strict=True) if task in waiting]
            first = any(lease.peer not in self._late_before for lease in late)
            left = since + (LATE_OFFER_SECONDS if first else LATE_AGAIN_SECONDS) - now()
            if not late or left <= 0:
                return late
            _, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)

    def _leave_out(self, lease: Lease) -> Refused:
        error = Refused(f"{lease.name} is not ready yet: {lease.progress}", code=NOT_READY)
        LOG.warning("worker_left_out", peer=lease.peer.short, name=lease.name, why=error.what)
        self._late_before.add(lease.peer)
        return error

    async def _ask_one(self, lease: Lease, acquire: Acquire) -> None:
        try:
            await lease.ask(acquire)
        except MeshdError as error:
            LOG.warning("worker_left_out", peer=lease.peer.short, name=lease.name, why=error.what)
            self.refusals.append(error)
            if not isinstance(error, Refused):  # it said nothing, or what makes no sense
                self.blame.failed[lease.peer] = error.what
        finally:
            if lease.offer is None:
                lease.release()

    def offers(self, workers: Sequence[PeerStatus]) -> list[NodeOffer]:
        """Return what the workers offer, without the devices that cannot run this model."""
        paths = {status.peer: path_to(status.paths) for status in self._runtime.mesh.peers()}
        versions = {worker.peer: worker.native for worker in workers}
        offers = []
        for lease in self.held:
            assert lease.offer is not None
            unable = self.devices_in_use.offered(lease.peer, versions[lease.peer], lease.offer)
            excluded = {name: Reported(why) for name, why in unable.items()}
            offers.append(NodeOffer(lease.name, lease.offer, paths.get(lease.peer), excluded))
        return offers

    def late_ones(self) -> str:
        """Say which workers were late; empty when nobody was."""
        late = [one for one in self.refusals if isinstance(one, Refused) and one.code == NOT_READY]
        return "; ".join(one.what for one in late)

    def keep(self, plan: Plan, used: Sequence[NodeOffer]) -> None:
        """Keep the workers that the plan uses, in its order, and send the others home.

        Raises Refused when fewer remain than the user demands.
        """
        order = [item.node for item in used]
        reasons = [error.what for error in self.refusals]
        for lease in self.held:
            if lease.name not in order:
                reasons.append(why_idle(plan.left_out, lease.name))
                LOG.warning("worker_left_out", peer=lease.peer.short, name=lease.name, why=reasons[-1])
                lease.release()
        self.held = [lease for name in order for lease in self.held if lease.name == name]
        if len(used) < (least := self._model.options.least_workers):
            raise Refused(
                f"{len(used)} of {least} workers can take part",
                code="workers",
                hint="; ".join(reasons) or "start another worker, or lower `--min-workers`",
            )

    # Reserving.

    async def reserve(
        self,
        plan: Plan,
        offers: Sequence[NodeOffer],
        needs: Mapping[str, Needs],
        report: WeightsReport,
        owner: Owner,
    ) -> asyncio.Task[None]:
        """Reserve what the plan gives each worker; return when there is a tunnel to each.

        The task is done when all have granted, or one has refused. With `needs`, of each worker by name, they
        first take what they lack of these from members. Tunnels and leases live in tasks of `owner`;
        `report` learns whose they are, and what was taken. Raises MeshdError.
        """
        wanted = reservations(plan, offers)
        if needs:
            async with Owner() as fetching:
                for lease, counts in zip(self.held, wanted, strict=True):
                    work = self._fetch(lease, counts, needs[lease.name], report)
                    fetching.start(work, name=f"fetch {lease.name}")
        if self.held:
            self._on_progress(f"starting the server of {', '.join(lease.name for lease in self.held)}")
        for place, (lease, item, counts) in enumerate(zip(self.held, offers, wanted, strict=True)):
            self.devices_in_use.uses(lease.peer, item.offer.devices, counts)
            try:
                await lease.reserve(counts, place, fetched=bool(needs))
            except MeshdError as error:
                self.blame.failed[lease.peer] = error.what
                raise
        granted = owner.start(self._until_granted(owner), name="grants")
        for lease in self.held:
            assert lease.tunnel is not None
            report.names[lease.tunnel.endpoint] = lease.name
            owner.start(lease.tunnel.serve(), name=f"tunnel {lease.name}")
        return granted

    async def _fetch(
        self, lease: Lease, counts: tuple[int, ...], needs: Needs, report: WeightsReport
    ) -> None:
        try:
            fetched = await lease.fetch(counts, needs)
        except MeshdError as error:
            self.blame.failed[lease.peer] = error.what
            raise
        report.fetched_bytes += fetched.count
        LOG.info(
            "worker_fetched",
            peer=lease.peer.short,
            name=lease.name,
            bytes=fetched.count,
            what=fetched.text,
        )

    async def _until_granted(self, owner: Owner) -> None:
        """Wait until all have granted. Raises MeshdError when one refuses."""
        async with Owner() as waiting:
            for lease in self.held:
                waiting.start(self._until_one_granted(lease, owner), name=f"grant of {lease.name}")
        self.are_granted = True
        self._on_progress("loading the model")

    async def _until_one_granted(self, lease: Lease, owner: Owner) -> None:
        try:
            await lease.until_granted()
        except MeshdError as error:
            self.blame.failed[lease.peer] = error.what
            raise
        owner.start(self._watch(lease), name=f"lease {lease.name}")

    # Losing.

    async def _watch(self, lease: Lease) -> None:
        lost = await lease.until_lost()
        # a consequence, if it is true: the end of llama-server, or of the other worker, is noticed first
        if lost.code == HEAD_ENDED or names_neighbour(lost.text):
            await asyncio.sleep(AFTER_HEAD_SECONDS)
        self._on_lost(lease, lost)

    async def until_given_up(self) -> str:
        """Wait until a worker was out of reach for longer than the grace in sum; return why it is lost."""
        mesh, grace, now = self._runtime.mesh, self._model.options.grace, asyncio.get_running_loop().time
        patience = PeerPatience(grace, now())
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            worker = patience.look(mesh.peers(), self.peers, now())
            if worker is not None:
                why = f"no lasting connection, {grace:.0f} s without one in total"
                self.blame.given_up(worker.peer, why)
                return f"worker {worker.name} is lost: {why}"


def acquire_for(model: ServedModel, version: NativeVersion, operations: tuple[str, ...]) -> Acquire:
    """Word the question to workers, the same for all; `version` is of our own native programs."""
    return Acquire(
        incarnation=model.options.incarnation,
        model=model.alias[:100],
        fingerprint=model.index.fingerprint,
        native_pin=version.pin,
        operations=operations,
        protocol=version.protocol,
        marks=marks_of(model.index),
    )


def _asked(names: Iterable[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"asking {', '.join(names[:_NAMED])}{more}"


# Workers out of reach.


def as_reached(now: Readiness, mesh: Mesh, used: Collection[PeerId]) -> Readiness:
    """Return `now`, but degraded in place of ready as long as a worker in use is out of reach.

    A load that waits for such a worker says so.
    """
    if now.state not in (ModelState.READY, ModelState.LOADING) or not used:
        return now
    why = why_degraded(mesh.peers(), used, asyncio.get_running_loop().time())
    if why and now.state is ModelState.LOADING:
        return replace(now, reason=f"{now.reason}; {why}")
    return Readiness(ModelState.DEGRADED, why) if why else now


def why_degraded(peers: Iterable[PeerStatus], used: Collection[PeerId], now: float) -> str:
    """Say which workers in use are silent, empty while all is well; `now` in loop time."""
    silent = [
        f"no connection to worker {peer.name} for {now - peer.since:.0f} s"
        for peer in peers
        if peer.peer in used and peer.state is PeerState.SUSPENDED and now - peer.since >= SILENT_SECONDS
    ]
    return "; ".join(silent)


class PeerPatience:
    """Sum up for how long each worker of one run was out of reach. `now` in loop time."""

    def __init__(self, grace: float, now: float) -> None:
        """Begin at `now`; `grace`: seconds that one may be out of reach."""
        self._grace = grace
        self._at = now
        self._away: dict[PeerId, float] = {}

    def look(self, peers: Iterable[PeerStatus], used: Collection[PeerId], now: float) -> PeerStatus | None:
        """Count the time since the last look; return the worker that is not waited for any more."""
        passed, self._at = now - self._at, now
        for peer in peers:
            if peer.peer not in used:
                continue
            change = passed if peer.state is PeerState.SUSPENDED else -GIVEN_BACK * passed
            away = self._away[peer.peer] = max(0.0, self._away.get(peer.peer, 0.0) + change)
            if away >= self._grace + LATE_SECONDS:
                return peer
        return None
