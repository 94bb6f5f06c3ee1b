"""Look at all machines of the mesh for a model: what they could lend, how fast they are, how far apart.

Nothing is reserved. What somebody computes meanwhile is not disturbed: then devices have no new times.

Plain rpc-servers of the LAN (`--rpc HOST:PORT`) are without meshd and without a secret, and get weights over
the wire. They are asked once before a load, while nobody uses the connection: such a server has one client at
a time.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from meshd.base import log
from meshd.base.errors import MeshdError, RemoteProtocolError
from meshd.devices.capacity import CapacityAnswer, ask_all, lacks_times
from meshd.devices.device_list import CpuCache, Listing
from meshd.devices.device_speeds import DeviceSpeeds
from meshd.devices.device_trial import DeviceTrials, listing_key
from meshd.devices.devices import only_cpu, pick_for_head
from meshd.devices.interface import ListedDevices, NativeBuild, RolePaths, RoleRuntime
from meshd.devices.path_probe import PathProber
from meshd.head.worker_choice import Roster
from meshd.identity import naming
from meshd.identity.keys import PeerId
from meshd.identity.naming import CLIENT_ROLE, WORKER_ROLE
from meshd.link.interface import LOOPBACK
from meshd.model.device_speed import DeviceSpeed
from meshd.model.layer_work import LayerWork
from meshd.model.output import NEAR_SECONDS, DevicePath
from meshd.peer.interface import PathStatus, PeerState, PeerStatus
from meshd.plan.machines import Held, Machines, NodeOffer, PlainRpc, with_given_back
from meshd.plan.reasons import Reported
from meshd.plan.wishes import HeadOptions
from meshd.process.interface import RunToEnd
from meshd.rpc import probe
from meshd.wire.capacity import WHOLE_SHARE, Capacity
from meshd.wire.lease import LEASE_ID_BYTES, OfferedDevice, WorkerOffer, from_bits

LENDS_NOTHING = "it serves a model, and lends nothing"

COMPUTES = "it computes for somebody, and was not measured before"

BUSY = "it has a model loaded, and was not measured before; run `meshd capacity` there, or ask again later"

ONLY_ASKS = "it is a client, and lends nothing"

IN_VAIN = "its speed cannot be measured"

_ASK_SECONDS = 5.0  # a plain rpc-server
LOG = log.get("serve")
OnProgress = Callable[[str], None]

Lendable = Callable[[Sequence[OfferedDevice]], tuple[OfferedDevice, ...]]


@dataclass(frozen=True, slots=True)
class MachineSpeeds:
    """Hold `speeds` by node and device, `paths` from node to node, and what each node answered.

    `unmeasured`: nodes that do not tell the speed of each device, and why. `to_measure`: those that can tell
    it once they are asked to measure.
    """

    speeds: Mapping[tuple[str, str], DeviceSpeed]
    paths: Mapping[tuple[str, str], DevicePath]
    answers: Mapping[PeerId, CapacityAnswer]
    unmeasured: Mapping[str, str] = field(default_factory=dict)
    to_measure: frozenset[str] = frozenset()

    def machines(
        self,
        offers: Sequence[NodeOffer],
        own: Sequence[OfferedDevice],
        plain_rpc: Sequence[PlainRpc],
        own_excluded: Mapping[str, str],
    ) -> Machines:
        """Return the machines of a plan, with what is known of their speed."""
        return Machines(
            tuple(offers),
            tuple(own),
            self.speeds,
            self.paths,
            tuple(plain_rpc),
            {name: Reported(why) for name, why in own_excluded.items()},
            self.unmeasured,
            to_measure=self.to_measure,
        )


@dataclass(frozen=True, slots=True)
class Surveyed:
    """Hold the `machines` for a plan; `left_out`: nodes that take no part, and why.

    `unmeasured`: those that lack the speed of a device, and why. `spared`: those of `machines` that a head
    asks only where the model cannot be run without them, and why. `names`: what its workers are called.
    """

    machines: Machines
    left_out: tuple[tuple[str, str], ...] = ()
    unmeasured: tuple[tuple[str, str], ...] = ()
    spared: tuple[tuple[str, str], ...] = ()
    names: Mapping[PeerId, str] = field(default_factory=dict)


class Surveyor:
    """Survey the mesh for one daemon."""

    def __init__(
        self,
        runtime: RoleRuntime,
        options: HeadOptions,
        speeds: DeviceSpeeds,
        lendable: Lendable = tuple,
        serves: Callable[[], bool] = lambda: False,
    ) -> None:
        """Ask nothing yet.

        `speeds`: of its own devices; `lendable`: what may be used of them; `serves`: a model of this node may
        use them now.
        """
        native, run_to_end, paths = runtime.native, runtime.processes.run_to_end, runtime.paths
        self._mesh = runtime.mesh
        self._prober = PathProber(runtime.mesh)
        self._options = options
        self._always_compressed = runtime.tunnels.always_compressed
        self._listing = Listing(native, run_to_end, paths, machine=options.machine, choose=tuple)
        self._speeds = speeds
        self._lendable = lendable
        self._serves = serves

    async def survey(
        self,
        timed: Sequence[str],
        on_progress: OnProgress,
        *,
        roster: Roster | None = None,
        devices: Sequence[str] | None = None,
        own_timed: Sequence[str] | None = None,
        measure: bool = True,
        marks: bytes = b"",
    ) -> Surveyed:
        """Survey all there is, or what a head with this `roster` would use; this node with these `devices`.

        `own_timed` and `measure` as in `speeds_of`. Offers say what workers lack of the tensors with these
        `marks`.

        Raises MeshdError when this node's own devices cannot be listed.
        """
        # Choose whom to ask.
        asked = self._options.devices if devices is None else devices
        own = self._lendable(pick_for_head(await self._listing.devices(), asked))
        connected = [peer for peer in self._mesh.peers() if peer.state is PeerState.CONNECTED]
        workers = [peer for peer in connected if peer.role == WORKER_ROLE]
        called = naming.labels({str(peer.peer): peer.name for peer in workers}, (self._options.node_name,))
        left_out = [
            (peer.name, ONLY_ASKS if peer.role == CLIENT_ROLE else LENDS_NOTHING)
            for peer in connected
            if peer.role != WORKER_ROLE
        ]
        spared: list[tuple[str, str]] = []
        if roster is not None:
            workers = _useful(roster, called, left_out, spared)
        names = {peer.peer: called[str(peer.peer)] for peer in workers}
        # Ask how fast they are.
        me = self._options.node_name
        found = await self.speeds_of(
            names, own, timed, me, on_progress, own_timed=own_timed, measure=measure, marks=marks
        )
        # Make offers of the answers.
        near = {peer_status.peer: path_to(peer_status.paths) for peer_status in self._mesh.peers()}
        offers: list[NodeOffer] = []
        unmeasured: list[tuple[str, str]] = []
        for peer, answer in found.answers.items():
            if answer.capacity is None:
                left_out.append((names[peer], answer.why_not))
            else:
                offers.append(NodeOffer(names[peer], _as_offer(answer.capacity), near.get(peer)))
                if answer.capacity.busy and lacks_times(answer.capacity, len(timed)):
                    unmeasured.append((names[peer], BUSY))
        offers.sort(key=lambda offer: offer.node)
        machines = found.machines(offers, own, (), {})
        return Surveyed(machines, tuple(left_out), tuple(unmeasured), tuple(spared), names)

    async def compared(
        self,
        work: LayerWork,
        options: HeadOptions,
        roster: Roster,
        held: Held,
        on_progress: OnProgress = lambda _text: None,
        *,
        measure: bool = True,
        marks: bytes = b"",
    ) -> Surveyed:
        """Look at the machines between which a head with these options chooses.

        `held`: memory that its model takes now, which is free for another plan. Raises as `survey`.
        """
        found = await self.survey(
            work.texts,
            on_progress,
            roster=roster,
            devices=options.devices,
            own_timed=own_timed(work, options),
            measure=measure,
            marks=marks,
        )
        apart = roster.backoff.apart(found.names, asyncio.get_running_loop().time())
        machines = with_given_back(found.machines, held, options.node_name)
        return replace(found, machines=replace(machines, apart=apart))

    async def speeds_of(
        self,
        names: Mapping[PeerId, str],
        own: Sequence[OfferedDevice],
        timed: Sequence[str],
        me: str,
        on_progress: OnProgress,
        *,
        own_timed: Sequence[str] | None = None,
        measure: bool = True,
        recent: bool = False,
        marks: bytes = b"",
    ) -> MachineSpeeds:
        """Return the speeds of these nodes and of this one, which is called `me`.

        `own_timed`: of `timed` what this node's own devices may compute, if not all. `measure`: now,
        where that was not done before. `recent`: how much memory is free is known from elsewhere. `marks` as
        for `survey`.
        """

        async def tell(text: str) -> None:
            on_progress(f"{me}: {text}")

        async def look_at_paths() -> None:
            await self._prober.probe(names)

        # This node first, then all others together: they measure while nothing computes here.
        own_timed = timed if own_timed is None else own_timed
        if measure:
            await self._speeds.measure(own, own_timed, tell, beside_model=self._serves())
        answers = await ask_all(
            self._mesh,
            list(names),
            timed,
            lambda peer, text: on_progress(f"{names[peer]}: {text}"),
            measure=measure,
            recent=recent,
            marks=marks,
            before_measuring=look_at_paths if measure else None,
        )
        return self.speeds_from(answers, names, own, timed, me, own_timed=own_timed, measured=measure)

    async def ask_known(
        self, names: Mapping[PeerId, str], timed: Sequence[str]
    ) -> Mapping[PeerId, CapacityAnswer]:
        """Ask these nodes what was measured before, with one question each; nobody lists devices for it."""
        return await ask_all(
            self._mesh, list(names), timed, lambda _peer, _text: None, measure=False, recent=True
        )

    def speeds_from(
        self,
        answers: Mapping[PeerId, CapacityAnswer],
        names: Mapping[PeerId, str],
        own: Sequence[OfferedDevice],
        timed: Sequence[str],
        me: str,
        *,
        own_timed: Sequence[str],
        measured: bool = False,
    ) -> MachineSpeeds:
        """Return what this node knows of its `own` devices, and what the others have answered.

        `measured`: what can be measured was.
        """
        # This node's own devices.
        share, cores = self._speeds.cpu_share / WHOLE_SHARE, self._speeds.core_set
        speeds = {
            (me, device.name): DeviceSpeed(self._speeds.known(device, timed), share=share, cores=cores)
            for device in own
        }
        to_measure = {me} if not measured and self._speeds.lacks(own, own_timed) else set()
        # Those of the others, and the paths between them.
        paths: dict[tuple[str, str], DevicePath] = {}
        unmeasured: dict[str, str] = {}
        by_id = {peer.raw: name for peer, name in names.items()}
        for peer, answer in answers.items():
            node, capacity = names[peer], answer.capacity
            if capacity is None:
                unmeasured[node] = f"its speed is not known: {answer.why_not}"
                continue
            if lacks_times(capacity, len(timed)):
                if not measured and not capacity.busy:
                    to_measure.add(node)
                else:
                    unmeasured[node] = COMPUTES if capacity.busy else IN_VAIN
            share = capacity.cpu_share / WHOLE_SHARE
            for offered in capacity.devices:
                speeds[node, offered.device.name] = DeviceSpeed(
                    offered.times, share=share, cores=capacity.core_set
                )
            sealable = from_bits(capacity.sealable, len(capacity.paths))
            wireless = from_bits(capacity.wireless, len(capacity.paths))
            for number, path in enumerate(capacity.paths):
                if path.peer in by_id:
                    seals = sealable[number] and not self._always_compressed
                    paths[node, by_id[path.peer]] = DevicePath(
                        path.rtt_us / 1e6, path.rate or None, seals=seals, is_wireless=wireless[number]
                    )
        return MachineSpeeds(speeds, paths, answers, unmeasured, frozenset(to_measure))


def _useful(
    roster: Roster,
    called: Mapping[str, str],
    left_out: list[tuple[str, str]],
    spared: list[tuple[str, str]],
) -> list[PeerStatus]:
    """Return those that may be asked; the others are added to the lists."""
    found: list[PeerStatus] = []
    for candidate in roster.candidates():
        name = called.get(str(candidate.peer.peer), candidate.peer.name)
        if candidate.excluded:
            left_out.append((name, candidate.excluded))
            continue
        found.append(candidate.peer)
        if candidate.spared:
            spared.append((name, candidate.spared))
    return found


def _as_offer(capacity: Capacity) -> WorkerOffer:
    return WorkerOffer(
        tuple(device.device for device in capacity.devices),
        has_model=False,
        machine=capacity.machine,
        lease_id=bytes(LEASE_ID_BYTES),
        lacks=capacity.lacks,
    )


def path_to(paths: Sequence[PathStatus]) -> DevicePath | None:
    """Return the path that carries data; None where it was never measured."""
    path = next((path for path in paths if path.selected), None)
    rtt = None if path is None else path.idle_rtt
    if path is None or rtt is None:
        return None
    # a forwarded port of this machine leads elsewhere
    return DevicePath(rtt, path.rate, path.link.path == LOOPBACK and rtt < NEAR_SECONDS)


def own_timed(work: LayerWork, options: HeadOptions) -> Sequence[str]:
    """Return what the head's own devices may compute: without layers (`--device none`) at most the output."""
    if options.devices != ("none",):
        return work.texts
    if work.output is None or options.output not in ("auto", "head"):
        return []
    return [work.texts[work.output]]


class OwnDevices:
    """Find the devices of the head's own machine: which may compute, and which cannot.

    `find` for each run: what is free changes, and a trial that was passed is not made again.
    """

    def __init__(
        self, native: NativeBuild, run_to_end: RunToEnd, paths: RolePaths, options: HeadOptions
    ) -> None:
        choose = partial(pick_for_head, asked=options.devices)
        cpu = CpuCache(paths.cpu_cache, listing_key(native, options.machine))
        self._listing = Listing(
            native,
            run_to_end,
            paths,
            machine=options.machine,
            choose=choose,
            cpu=cpu if only_cpu(options.devices) else None,
        )
        self._trials = DeviceTrials(native, run_to_end, paths, machine=options.machine)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return a line for each device that failed its last trial."""
        return self._trials.notes

    @property
    def listed(self) -> ListedDevices:
        """Return them as they were found last."""
        return self._listing.last

    async def ahead(self) -> None:
        """List them for the next `find`, if that comes soon: nothing of an earlier run holds memory now."""
        await self._listing.ahead()

    async def find(
        self, operations: Sequence[str], on_progress: Callable[[str], Awaitable[None]]
    ) -> tuple[tuple[OfferedDevice, ...], Mapping[str, str]]:
        """Return the CPU and the GPUs that the head may use, and those that are unfit, each with the reason.

        Raises MeshdError.
        """
        found = await self._listing.as_ahead()
        gpus = [device for device in found if device.kind == "gpu"]
        reasons = await self._trials.unfit(gpus, operations, on_progress)
        return found, {device.name: why for device, why in zip(gpus, reasons, strict=True) if why}


# rpc-servers without meshd.


async def ask_plain(endpoints: Sequence[str], *, protocol: str) -> tuple[PlainRpc, ...]:
    """Ask each for its devices; `protocol` is ours (`7.0.0`). Raises MeshdError naming the server."""
    servers = []
    for endpoint in endpoints:
        LOG.warning("plain_rpc", remote=endpoint, why="no encryption, no identity, weights over the network")
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                servers.append(PlainRpc(endpoint, await _devices(endpoint, protocol)))
        except TimeoutError:
            raise MeshdError(
                f"the rpc-server `{endpoint}` does not answer",
                hint="another client may be using it: it serves one at a time",
            ) from None
        except (OSError, asyncio.IncompleteReadError) as error:
            raise MeshdError(
                f"cannot use the rpc-server `{endpoint}`: {_in_words(error)}",
                hint="check that it is running, and its port",
            ) from None
        except RemoteProtocolError as error:
            raise MeshdError(
                f"cannot use the rpc-server `{endpoint}`: {error.what}", hint=error.hint
            ) from None
    return tuple(servers)


def _in_words(error: OSError | asyncio.IncompleteReadError) -> str:
    if isinstance(error, asyncio.IncompleteReadError):
        return "it closed the connection; llama.cpp's rpc-server does not"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, socket.gaierror):
        return "its name cannot be resolved"
    return (error.strerror or "no connection to any of its addresses").lower()


async def _devices(endpoint: str, protocol: str) -> tuple[OfferedDevice, ...]:
    host, _, port = endpoint.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))

    async def ask(request: bytes) -> bytes:
        writer.write(request)
        await writer.drain()
        (size,) = probe.RPC_ANSWER.unpack(await reader.readexactly(probe.RPC_ANSWER.size))
        if size > probe.MAX_ANSWER_BYTES:
            raise RemoteProtocolError(
                "the answer is too long", hint="check that it is llama.cpp's rpc-server"
            )
        return await reader.readexactly(size)

    try:
        version = probe.read_hello(await ask(probe.hello()))
        mine = tuple(int(part) for part in protocol.split("."))
        if version[0] != mine[0] or version[1] > mine[1]:
            theirs = ".".join(map(str, version))
            raise RemoteProtocolError(
                f"it speaks RPC protocol {theirs}, this build {protocol}",
                hint="build both from one version of llama.cpp",
            )
        count = probe.read_count(await ask(probe.device_count()))
        devices = []
        for number in range(count):
            free, total = probe.read_memory(await ask(probe.device_memory(number)))
            # the protocol does not tell what a device is; people lend GPUs this way, or have nothing better
            devices.append(OfferedDevice(f"RPC{number}", "gpu", endpoint[:64], free, total))
        return tuple(devices)
    finally:
        writer.close()
        await writer.wait_closed()
