"""All leases of one run: asked for and reserved at once, granted and introduced, watched, given up.

Workers whose layers follow one another send their activations straight to the next one. The head introduces
them, and hears what came of it: from a worker why there is no way to the other one, from both of their
servers with whom they have a connection.

Losing a link is not losing a worker: a lost link comes back within seconds, mostly, and nobody needs to know.
Answers under way wait on for the grace, while new requests would wait behind them, so they hear of it earlier
(`as_reached`). A worker that is back for moments only would use up no grace, and keep the model degraded for
ever: so its gaps count together, until it has made up for them (`PeerPatience`).
"""

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from meshd.base import log
from meshd.base.errors import MeshdError, Refused
from meshd.base.tasks import Owner
from meshd.devices.interface import RoleRuntime
from meshd.gateway.interface import Readiness
from meshd.head.failures import Blame, DeviceExclusions, WorkerBackoff
from meshd.head.lease import Lease, MeshEnd, WeightsReport, why_unfit
from meshd.head.served_files import ServedModel, marks_of
from meshd.head.survey import path_to
from meshd.identity.keys import PeerId
from meshd.model.status import ModelState, SplitPart
from meshd.peer.interface import Mesh, PeerState, PeerStatus
from meshd.plan.machines import NodeOffer
from meshd.plan.over_offers import reservations
from meshd.plan.reasons import Reported, why_idle
from meshd.plan.split import Plan, followers
from meshd.tunnel.interface import LISTEN_LOCAL, TunnelStatus
from meshd.wire.lease import HEAD_ENDED, Acquire, Lost, Needs
from meshd.wire.versions import NativeVersion

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
        self._exclusions = exclusions
        self.device_failed = False
        """The server of a worker crashed in the load, so a device of its may be unable."""
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
            peer.peer in used and peer.state is not PeerState.CONNECTED for peer in self._runtime.mesh.peers()
        ):
            return None
        return sum(tunnel.sent_bytes + tunnel.received_bytes for tunnel in self.tunnels)

    def crossed(self) -> int:
        """Count the bytes to and from all workers so far, over links and direct connections."""
        used = set(self.peers)
        paths = (path for peer in self._runtime.mesh.peers() if peer.peer in used for path in peer.paths)
        on_links = sum(path.sent_bytes + path.received_bytes for path in paths)
        past_links = (tunnel for tunnel in self.tunnels if tunnel.listen == LISTEN_LOCAL)
        return on_links + sum(link.sent_bytes + link.received_bytes for link in past_links)

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
            unable = self._exclusions.offered(lease.peer, versions[lease.peer], lease.offer)
            excluded = {name: Reported(why) for name, why in unable.items()}
            offers.append(NodeOffer(lease.name, lease.offer, paths.get(lease.peer), excluded))
        return offers

    def late_ones(self) -> str:
        """Say which workers were late; empty when nobody was."""
        late = [
            refusal for refusal in self.refusals if isinstance(refusal, Refused) and refusal.code == NOT_READY
        ]
        return "; ".join(refusal.what for refusal in late)

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
        for place, (lease, counts) in enumerate(zip(self.held, wanted, strict=True)):
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

    def device_crashed(self, lease: Lease, why: str) -> None:
        """Note that the lease's server ended by its own fault before the model was loaded."""
        self.device_failed = True
        self._exclusions.crashed(lease.peer, lease.devices, why)

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


_WRONG_VALUE = ": wrong value: "  # a mesh-server cannot compute with this (`bad_value` in native/mesh/wire.h)
_SENT_WRONG = ": it sent values that are not finite"  # to llama-server (client_copies.cpp)
_COMPUTED_WRONG = ": its device computed values that are not finite"  # for a sum (sums.cpp)
OFF = "disabled (`no_push`)"
WHY_APART = "during this push one of the two ended a lease before, and it is unknown which"
_NAMED_NEIGHBOUR = re.compile(r"neighbour ([0-9]{1,2})\b")
UNCONNECTED = "the two have no connection"


def names_neighbour(why: str) -> bool:
    """Return True if a mesh-server says that it has ended because of another one."""
    return _NAMED_NEIGHBOUR.search(why) is not None


Place = tuple[str, str]  # node and device


@dataclass(frozen=True, slots=True)
class PushRoute:
    """Lead from a worker to the one with the layers behind its own, which is `number` in the head's list."""

    source: Lease
    target: Lease
    number: int

    @property
    def ends(self) -> Place:
        """Return both as llama-server names them."""
        return self.source.endpoint, self.target.endpoint


class PushPlan:
    """Hold the push routes of one run, and what came of each.

    `introduce` once all leases are there.
    """

    def __init__(self, *, allowed: bool, backoff: WorkerBackoff) -> None:
        """Introduce nobody yet. `allowed`: the user wants pushes. `backoff`: who is kept apart."""
        self._allowed = allowed
        self._backoff = backoff
        self._is_by_tensors = False
        # By where they begin and lead; by tensors, more than one may lead to a worker.
        self._routes: dict[tuple[Place, Place], PushRoute] = {}
        self._no_push_reasons: dict[Place, str] = {}
        self._chain: list[PeerId] = []  # workers in the order of their layers

    async def introduce(self, plan: Plan, leases: Sequence[Lease]) -> None:
        """Tell the workers of each other. One that is lost meanwhile is found out elsewhere."""
        now = asyncio.get_running_loop().time()
        self._is_by_tensors = plan.by_tensors
        numbers = {lease.name: number for number, lease in enumerate(leases)}
        by_name = {lease.name: lease for lease in leases}
        nodes = [share.device.node for share in plan.taking]
        self._chain = [by_name[node].peer for node in nodes if node in by_name]
        for before, behind in followers(plan):
            place = behind.device.node, behind.device.name
            source, target = by_name.get(before.device.node), by_name.get(behind.device.node)
            if not self._allowed:
                self._no_push_reasons[place] = OFF
            elif source is None or target is None:
                plain = behind if target is None else before
                self._no_push_reasons[place] = f"{plain.device.node} is a plain rpc-server"
            elif self._backoff.are_apart(source.peer, target.peer, now):
                self._no_push_reasons[place] = WHY_APART
            else:
                begin = before.device.node, before.device.name
                self._routes[begin, place] = PushRoute(source, target, numbers[target.name])
        # A worker expects who may push to it before the other one is told of it.
        routes = {route.ends: route for route in self._routes.values()}.values()
        for route in routes:
            await route.target.admit(route.source)
        for route in routes:
            # a direct connection is lost with its path: worth that only for the sums of each layer
            await route.source.introduce(route.number, route.target, may_seal=plan.by_tensors)
        for lease in leases:
            await lease.say_introduced()

    def others(self, peer: PeerId, why: str) -> tuple[PeerId, ...]:
        """Find who else may be at fault for its loss, by what `why` says.

        The neighbour that it names. All with layers before its own, if it cannot compute with a value: they
        may have sent what leads to that. If llama-server got hidden states from it that are not finite, those
        whose own were pushed on to it: of all others llama-server has seen that they were finite. By tensors,
        each value has been added up from those of all workers: what is wrong in one may come from any.
        """
        if self._is_by_tensors and any(text in why for text in (_SENT_WRONG, _WRONG_VALUE, _COMPUTED_WRONG)):
            return tuple(dict.fromkeys(worker for worker in self._chain if worker != peer))
        if _SENT_WRONG in why:
            return self._pushed_on_to(peer)
        if _WRONG_VALUE in why:
            return self._before(peer)
        named = _NAMED_NEIGHBOUR.search(why)
        found = []
        for route in self._routes.values():
            ends = (route.source, route.target)
            if peer not in (ends[0].peer, ends[1].peer) or not self._result(route)[0]:
                continue
            other = ends[1] if ends[0].peer == peer else ends[0]
            if named is not None and int(named[1]) == other.place:
                found.append(other.peer)
        return tuple(dict.fromkeys(found))

    def _before(self, peer: PeerId) -> tuple[PeerId, ...]:
        last = max((place for place, worker in enumerate(self._chain) if worker == peer), default=0)
        return tuple(dict.fromkeys(worker for worker in self._chain[:last] if worker != peer))

    def _pushed_on_to(self, peer: PeerId) -> tuple[PeerId, ...]:
        found, last = [peer], 0
        while last < len(found):
            found += [
                route.source.peer
                for route in self._routes.values()
                if route.target.peer == found[last]
                and route.source.peer not in found
                and self._result(route)[0]
            ]
            last += 1
        return tuple(found[1:])

    def parts(self, split: Sequence[SplitPart]) -> tuple[SplitPart, ...]:
        """Return the split with how each part gets its activations now."""
        return tuple(self._part(part) for part in split)

    def _part(self, part: SplitPart) -> SplitPart:
        place = part.node, part.device
        results = [self._result(route) for (_, end), route in self._routes.items() if end == place]
        if results:
            pushed, why = min(results)  # the one that failed, if any has
            return replace(part, push=pushed, why_no_push=why)
        if (reason := self._no_push_reasons.get(place)) is not None:
            return replace(part, push=False, why_no_push=reason)
        return part

    @property
    def indirect(self) -> list[tuple[Lease, Lease, str]]:
        """Return each two workers that have no connection past both daemons, with the reason."""
        found = []
        for route in self._routes.values():
            pushed, why = self._result(route)
            if not pushed or route.number not in route.source.direct:
                found.append((route.source, route.target, why or "results cross both daemons"))
        return found

    def _result(self, route: PushRoute) -> tuple[bool, str]:
        """Return True if both servers have a connection with each other, and if not, why."""
        pushed = route.source.has_neighbour(route.target) and route.target.has_neighbour(route.source)
        return pushed, "" if pushed else route.source.unreached.get(route.number) or UNCONNECTED

    @property
    def results(self) -> list[tuple[str, str, str]]:
        """Return of each route its source, its target, and why there is no push; empty: there is one."""
        routes = self._routes.values()
        return [(route.source.name, route.target.name, self._result(route)[1]) for route in routes]
