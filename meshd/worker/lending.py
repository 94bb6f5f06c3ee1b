"""The worker: it lends devices to heads and runs one mesh-server process for each lease.

A head asks for a lease on a stream of service `lease`; the lease lives as long as that stream. The head's
connections arrive as streams of service `rpc` that name the lease. When the head is gone, the worker ends the
process, which is certain to free its memory.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

from meshd import __version__
from meshd.base import log
from meshd.base.admission import Rates, Slots
from meshd.base.errors import (
    Broken,
    EndOfStream,
    MeshdError,
    Refused,
    RemoteProtocolError,
)
from meshd.base.peer_limits import LEASE_MESSAGES, LEASES_ASKED, LEASES_ASKED_OF_PEER, TRIALS_ASKED
from meshd.base.processes import Outgoing
from meshd.base.tasks import Owner, first_error
from meshd.devices.device_list import Listing
from meshd.devices.device_trial import DeviceTrials
from meshd.devices.devices import pick
from meshd.devices.interface import RoleRuntime, RoleStatus
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member, Role
from meshd.peer.interface import MetadataValue, Stream
from meshd.peer.messages import MessageStream
from meshd.store.interface import ContentStore, WeightsFile
from meshd.wire.lease import (
    HEAD_ENDED,
    LEASE_ID_BYTES,
    LEASE_SERVICE,
    NO_MEMORY,
    PAUSED,
    Acquire,
    Admit,
    Grant,
    Introduced,
    LeaseMessage,
    Loaded,
    Lost,
    Neighbour,
    OfferedDevice,
    Reserve,
    WorkerOffer,
    decode,
)
from meshd.wire.versions import VERSION_CODE, NodeVersion, understand, upgrade_hint
from meshd.worker.known_files import KnownFiles, Library
from meshd.worker.leases import MAX_LEASES, Held, Lease, Ledger, lent
from meshd.worker.lent_streams import NO_USE, Lending, LentStreams
from meshd.worker.mesh_server import CHILD_NAME, AgreedLease, MeshServer
from meshd.worker.missing_weights import MissingWeights, progress_to
from meshd.worker.worker_options import IS_PAUSED, Pause, WorkerOptions

UNKNOWN_PIN = "unknown"
ASK_AGAIN = "ask again: the free memory has changed"
_ANSWER_SECONDS = 60.0  # the head plans in milliseconds; a silent head must not hold an offer open
_GIVEN_BACK_SECONDS = 3.0  # a driver takes most of a second to free the memory of a process
# A lease without messages for this long does not compute, so devices may be measured beside it.
_QUIET_SECONDS = 10.0
LOG = log.get("worker")


class Worker:
    """Lend this machine's devices to heads (implements Role)."""

    def __init__(
        self,
        runtime: RoleRuntime,
        files: Sequence[WeightsFile],
        options: WorkerOptions,
        store: ContentStore | None = None,
        pause: Pause | None = None,
        library: Library | None = None,
    ) -> None:
        """Take leases from now on, unless `pause` is on."""
        native, run_to_end, paths = runtime.native, runtime.processes.run_to_end, runtime.paths
        self._runtime = runtime
        self._files = KnownFiles(files, store, library)
        self.lacks = self._files.lacks
        self._store = store
        self._options = options
        choose = partial(pick, asked=options.devices)
        self._listing = Listing(native, run_to_end, paths, machine=options.machine, choose=choose)
        self._device_trials = DeviceTrials(native, run_to_end, paths, machine=options.machine)
        self._trials_asked = Rates(TRIALS_ASKED)
        self._seals = native.seals and runtime.tunnels.plain is not None
        self._ledger = Ledger(limit=options.memory)
        self._running: dict[bytes, MeshServer] = {}
        self._streams = LentStreams(runtime.mesh, local=runtime.tunnels.local)
        self._ending: dict[bytes, PeerId] = {}  # leases that are over, but whose processes still hold memory
        self._given_back = asyncio.Event()  # set when the next of these leases has given its memory back
        self._asking = Slots(LEASES_ASKED, LEASES_ASKED_OF_PEER)  # each may hold descriptors of all files
        self._logs: deque[int] = deque(range(1, MAX_LEASES + 1))
        self.pause = pause or Pause()
        self._missing = MissingWeights(runtime.from_members, self._files, self.pause)
        runtime.mesh.handle(LEASE_SERVICE, self._serve_lease, allow=self._may_lease)

    @property
    def status(self) -> RoleStatus:
        """The state of the worker, its leases and its model files, for `meshd status`."""
        loaded = [lease_id for lease_id, server in self._running.items() if server.is_loaded]
        computed = {lease_id: server.turns.seconds for lease_id, server in self._running.items()}
        return RoleStatus(
            children=[server.child.status for server in self._running.values()],
            tunnels=[tunnel for server in self._running.values() for tunnel in server.neighbours.tunnels],
            model=None,
            notes=self._files.notes,
            unfit=self._device_trials.notes,
            refused=self._streams.refused,
            store=self._store.status if self._store is not None else None,
            is_computing=bool(loaded),
            lent=lent(self._ledger.leases, self._held(), loaded, computed),
            listed=replace(self._listing.last, devices=self.lendable(self._listing.last.devices)),
        )

    async def prepare(self) -> None:
        """List the devices once, so that a wrong `--device` is reported at the start. Raises MeshdError."""
        for device in await self._listing.devices():
            LOG.info("device", device=device.name, kind=device.kind, free=device.free_bytes)

    async def serve(self) -> None:
        """Serve the content store, and hash the model files whenever one has changed before a lease."""
        try:
            async with Owner() as owner:
                owner.start(self._files.serve(), name="model files")
                owner.start(self._files.library.serve(), name="library")
                if self._store is not None:
                    owner.start(self._store.serve(), name="content store")
        except ExceptionGroup as group:
            raise first_error(group) from None

    async def devices(self, *, recent: bool) -> tuple[OfferedDevice, ...]:
        """Return the devices with their lendable memory; `recent` accepts the last listing's figures."""
        return self.lendable(await (self._listing.recent() if recent else self._listing.devices()))

    def lendable(self, listed: Sequence[OfferedDevice]) -> tuple[OfferedDevice, ...]:
        """Return the `listed` devices with the memory of each that may be lent."""
        return self._ledger.offer(listed, looks=(self._held(),) * 2)

    @property
    def is_lending(self) -> bool:
        """True while a head uses this worker's devices."""
        return bool(self._running)

    @property
    def is_computing(self) -> bool:
        """True while a lease computes, has computed a moment ago, or is not loaded yet.

        A standby lease never computes.
        """
        leases = (lease for lease in self._ledger.leases if not lease.is_standby)
        return any(lease.lease_id not in self._running for lease in leases) or any(
            not server.is_loaded or server.turns.quiet_seconds < _QUIET_SECONDS
            for server in self._running.values()
        )

    def may_seal(self, peer: PeerId) -> bool:
        """Say whether a mesh-server here could exchange sealed data with one of this worker."""
        plain = self._runtime.tunnels.plain if self._seals else None
        return plain is not None and plain.is_direct(peer)

    @property
    def servers(self) -> Collection[MeshServer]:
        """The running mesh-servers, one for each lease."""
        return self._running.values()

    # Leases.

    def _may_lease(self, member: Member, _metadata: Mapping[str, MetadataValue]) -> str | None:
        if Role.USE not in member.roles:
            return NO_USE
        return IS_PAUSED if self.pause.is_on else None

    async def _serve_lease(self, stream: Stream) -> None:
        messages = MessageStream(stream, LEASE_MESSAGES)
        outgoing = Outgoing()
        lease_id = self._runtime.tunnels.random(LEASE_ID_BYTES)
        try:
            with self._streams.lend(lease_id, stream.peer) as lending:
                agreed = await self._negotiate(messages, outgoing, lease_id)
                try:
                    if agreed.fetch:
                        agreed = await self._missing.fetch(messages, agreed, outgoing)
                    await self._run_lease(messages, agreed, lending, outgoing)
                finally:
                    self._ledger = self._ledger.release(lease_id)
                    self._ending.pop(lease_id, None)
                    self._given_back.set()
                    self._given_back = asyncio.Event()
        except Broken:
            return  # the head has gone, and everything of its lease with it
        except EndOfStream:
            pass  # the head gave up before it had a lease: our half of the stream ends as well
        except Refused as error:
            LOG.warning("lease_refused", peer=stream.peer.short, why=error.what)
            await messages.send(Lost(error.code, error.what, error.hint).encode())
        except RemoteProtocolError:
            raise
        except MeshdError as error:
            LOG.warning("lease_failed", peer=stream.peer.short, why=error.what)
            await messages.send(Lost("failed", error.what, error.hint).encode())
        finally:
            outgoing.close()
        stream.write_eof()

    async def _negotiate(self, messages: MessageStream, outgoing: Outgoing, lease_id: bytes) -> AgreedLease:
        """Agree on a lease with the head. Few leases are negotiated at once. Raises Refused."""
        release = self._asking.take(messages.stream.peer)
        if release is None:
            raise Refused(
                "too many leases are being negotiated", code="busy", hint="ask again in a few seconds"
            )
        try:
            return await self._agree(messages, outgoing, lease_id)
        finally:
            release()

    async def _agree(self, messages: MessageStream, outgoing: Outgoing, lease_id: bytes) -> AgreedLease:
        peer = messages.stream.peer
        # The head asks.
        acquire = await _within(messages)
        if not isinstance(acquire, Acquire):
            raise RemoteProtocolError("lease: expected `acquire`", code="lease")
        self._check_version(acquire, peer)
        # The weights and the devices that this worker can offer.
        try:
            weights = await self._files.take(
                outgoing, progress_to(messages), peer=str(peer), marks=acquire.marks
            )
        except OSError as error:
            raise MeshdError(f"cannot create a lease: {error.strerror}") from None
        await self._until_given_back(peer)
        before, held = self._ledger, self._held()  # looked at before the devices: see Ledger.offer
        listed, is_kept = await self._listing.for_lease(alone=not before.leases)
        unfit = await self._device_trials.unfit(
            listed,
            acquire.operations,
            progress_to(messages),
            admit=cache(partial(self._charge_trial, peer)),  # once, however many devices there are
        )
        devices = before.offer(listed, unfit, looks=(held, self._held()))
        # The offer.
        offer = WorkerOffer(
            devices,
            has_model=weights is not None and weights.has_model,
            machine=self._options.machine,
            lease_id=lease_id,
            unfit=unfit if any(unfit) else (),
            compressed=self._runtime.tunnels.compressed,
            protocol=self._runtime.native.version.protocol,
            lacks=weights.lacks(acquire.marks) if weights is not None else b"",
            seals=self._seals,
        )
        await messages.send(offer.encode())
        # The head reserves memory.
        reserve = await _within(messages)
        if not isinstance(reserve, Reserve):
            raise RemoteProtocolError("lease: expected `reserve`", code="lease")
        refusal = self._ledger.refusal_reason(devices, reserve.bytes_per_device, before=before, peer=peer)
        if refusal is not None:
            raise Refused(refusal, code=NO_MEMORY, hint=ASK_AGAIN)
        memory = {
            device.name: count
            for device, count in zip(devices, reserve.bytes_per_device, strict=True)
            if count
        }
        lease = Lease(lease_id, peer, memory, acquire.model, is_standby=reserve.hold)
        self._ledger = self._ledger.take(lease)
        return AgreedLease(lease, weights, fetch=reserve.fetch, is_kept=is_kept)

    async def _until_given_back(self, peer: PeerId) -> None:
        """Wait until this head's former leases have freed their memory: after a loss they may still end."""
        try:
            async with asyncio.timeout(_GIVEN_BACK_SECONDS):
                while peer in self._ending.values():
                    await self._given_back.wait()
        except TimeoutError:
            LOG.info("memory_not_given_back", peer=peer.short)

    def _charge_trial(self, peer: PeerId) -> None:
        if not self._trials_asked.spend(peer, asyncio.get_running_loop().time()):
            what = "this head has asked for too many trials of devices"
            raise Refused(what, code="busy", hint="ask again in a minute")

    def _held(self) -> Held:
        return {lease_id: server.held for lease_id, server in self._running.items()}

    def _check_version(self, acquire: Acquire, peer: PeerId) -> None:
        mine = self._runtime.native.version
        if not understand(mine.protocol, acquire.protocol):
            what = f"the head speaks the native protocol `{acquire.protocol}`, this worker `{mine.protocol}`"
            raise Refused(what, code="native_protocol", hint=self._upgrade_hint(peer))
        if UNKNOWN_PIN not in (acquire.native_pin, mine.pin) and acquire.native_pin != mine.pin:
            what = f"the head runs llama.cpp {acquire.native_pin}, this worker {mine.pin}"
            raise Refused(what, code=VERSION_CODE, hint=self._upgrade_hint(peer))

    def _upgrade_hint(self, peer: PeerId) -> str:
        """Return what to do about a head of another version, in words that are right on both nodes."""
        head = next((status for status in self._runtime.mesh.peers() if status.peer == peer), None)
        name, software = (head.name, head.software) if head is not None else ("", "")
        ours, theirs = (
            NodeVersion("this worker", __version__),
            NodeVersion(f"the head {name}".strip(), software),
        )
        return upgrade_hint(ours, theirs)

    async def _run_lease(
        self, messages: MessageStream, agreed: AgreedLease, lending: Lending, outgoing: Outgoing
    ) -> None:
        lease = agreed.lease
        number = self._logs.popleft()  # there is one number for each lease, so no two live leases share a log
        try:
            server = self._make_server(messages, agreed, outgoing, number)
            lending.server = server
            try:
                await self._lend(messages, server, lending)
            finally:
                lending.over()
                server.close()
                self._running.pop(lease.lease_id, None)
                LOG.info("lease_ended", peer=lease.peer.short)
        finally:
            self._logs.append(number)

    def _make_server(
        self, messages: MessageStream, agreed: AgreedLease, outgoing: Outgoing, number: int
    ) -> MeshServer:
        try:
            return MeshServer(
                self._runtime,
                agreed,
                messages=messages,
                threads=self._options.cpu_threads,
                outgoing=outgoing,
                log_path=self._runtime.paths.logs / f"{CHILD_NAME}-{number}.log",
                seals=self._seals,
            )
        except OSError as error:
            raise MeshdError(f"cannot start a server: {error.strerror}") from None

    async def _lend(self, messages: MessageStream, server: MeshServer, lending: Lending) -> None:
        """Run the lease from the start of its process until either side ends it."""
        try:
            async with Owner() as owner:
                owner.start(server.child.serve(), name=CHILD_NAME)  # starts it when `until_ready` asks
                owner.start(server.read_report(), name=f"{CHILD_NAME} report")
                released = owner.start(self._until_released(messages, server, owner), name="lease release")
                ended = owner.start(self._serve_head(messages, server, lending), name=f"{CHILD_NAME} end")
                paused = owner.start(self._until_paused(messages), name="pause")
                await asyncio.wait([ended, released, paused], return_when=asyncio.FIRST_COMPLETED)
                if server.is_loaded and (released.done() or server.code_of_end() == HEAD_ENDED):
                    self._listing.held()
                self._ending[server.lease.lease_id] = server.lease.peer
                owner.cancel()
        except ExceptionGroup as group:
            raise first_error(group) from None

    async def _serve_head(self, messages: MessageStream, server: MeshServer, lending: Lending) -> None:
        lease = server.lease
        await server.until_ready(progress_to(messages))
        self._running[lease.lease_id] = server
        lending.up()
        LOG.info("lease_granted", peer=lease.peer.short, pid=server.child.status.pid)
        await messages.send(Grant(lease.lease_id, compressed=self._runtime.tunnels.compressed).encode())
        why = await server.until_ended()
        code = server.code_of_end()
        await messages.send(Lost(code, why, ASK_AGAIN if code == NO_MEMORY else "").encode())

    async def _until_paused(self, messages: MessageStream) -> None:
        await self.pause.until_leases_end()
        await messages.send(Lost(PAUSED, IS_PAUSED).encode())

    async def _until_released(self, messages: MessageStream, server: MeshServer, owner: Owner) -> None:
        neighbours = server.neighbours
        try:
            while True:
                match decode(await messages.receive()):
                    case Loaded():
                        server.model_loaded()
                    case Admit() as admitted:
                        neighbours.admit(admitted)
                    case Neighbour() as neighbour:
                        neighbours.take(neighbour)
                        owner.start(neighbours.keep(neighbour), name=f"neighbour {neighbour.number}")
                    case Introduced():
                        neighbours.all_named()
                        owner.start(neighbours.settle(), name="neighbours")
                    case _:
                        pass
        except (EndOfStream, Broken):
            return


async def _within(messages: MessageStream) -> LeaseMessage:
    """Return the next message of the head. Raises Refused when the head keeps us waiting."""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            return decode(await messages.receive())
    except TimeoutError:
        raise Refused("the head did not answer in time", code="timeout") from None
