"""The worker: lends devices to heads, one rpc-server process for each lease.

A lease is asked for over a stream of service `lease` and lives as long as that stream; the head's RPC
connections come as streams of service `rpc` that name the lease. When the head is gone the process is
ended, so its memory is back for certain.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshd.base import log
from meshd.base.errors import (
    Broken,
    Closed,
    EndOfStream,
    MeshdError,
    Refused,
    RemoteProtocolError,
    UserError,
)
from meshd.base.tasks import Owner, first_error
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member, Role
from meshd.model.weights_index import WeightsIndex, encode_index, join_indexes
from meshd.peer.interface import MetadataValue, Stream
from meshd.peer.messages import MessageStream
from meshd.process.interface import Child, ChildSpec, ChildState, ChildStatus
from meshd.role import command
from meshd.role.devices import list_devices, pick
from meshd.role.interface import Kit, Report, RoleStatus
from meshd.role.lease import Lease, Ledger
from meshd.role.outgoing import Outgoing
from meshd.role.weights_report import count_of
from meshd.store.interface import HashProgress, WeightsFile
from meshd.wire.lease import (
    LEASE_ID_BYTES,
    LEASE_SERVICE,
    RPC_SERVICE,
    Acquire,
    Device,
    Grant,
    Lost,
    Offer,
    Progress,
    Reserve,
    decode,
)

SECRET_BYTES = 32
READY_LINE = r"^  transport +:"  # the last of rpc-server's banner, flushed when it takes connections
UNKNOWN_PIN = "unknown"
KEPT_LOGS = 8  # of rpc-servers, the oldest is written over
PROGRESS_SECONDS = 2.0
RESERVE_SECONDS = 60.0  # the head plans in milliseconds; a silent one must not hold an offer open
LOG = log.get("worker")


def check_may_work(roles: frozenset[Role]) -> None:
    """Raises UserError when a node whose certificate has these roles may not lend devices."""
    if Role.WORK not in roles:
        raise UserError(
            "this node may not lend its devices: its certificate has not the role `work`",
            hint="get a token that gives it (`meshd invite --role work` on a member that may), run `meshd "
            "leave` here, then start again with `--join TOKEN`",
        )


@dataclass(slots=True)
class _Running:
    """A lease with its process."""

    lease: Lease
    child: Child
    port: int
    secret: bytes
    loaded_bytes: int = 0
    missed: int = 0


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """`memory` is bytes per device, None for all of it; `devices` empty means all GPUs, else the CPU."""

    devices: tuple[str, ...] = ()
    memory: int | None = None
    machine: str = ""


class Worker:
    """Implements Role."""

    def __init__(self, kit: Kit, files: Sequence[WeightsFile], options: WorkerOptions) -> None:
        self._kit = kit
        self._files = files
        self._options = options
        self._ledger = Ledger(limit=options.memory)
        self._running: dict[bytes, _Running] = {}
        self._index: WeightsIndex | None = None
        self._indexed = asyncio.Event()
        self._stale = asyncio.Event()
        self._hashing = ""
        self._log_number = 0
        kit.mesh.handle(LEASE_SERVICE, self._serve_lease, allow=self._may_lease)
        kit.mesh.handle(RPC_SERVICE, self._serve_rpc, allow=self._may_rpc)

    @property
    def status(self) -> RoleStatus:
        """See Role."""
        children: list[ChildStatus] = [running.child.status for running in self._running.values()]
        return RoleStatus(children=children, tunnels=(), model=None)

    async def prepare(self) -> None:
        """Look at the devices once: a wrong `--device` is an error at the start. Raises MeshdError."""
        devices = await self._devices()
        for device in devices:
            LOG.info("device", device=device.name, kind=device.kind, free=device.free_bytes)

    async def serve(self) -> None:
        """See Role: knows its files by content, and again when one has changed before a lease."""
        await self._know_files()
        while True:
            self._stale.clear()
            self._indexed.set()
            await self._stale.wait()
            try:
                await self._know_files()
            except UserError as error:  # cut short, say: the weights come over the network then
                LOG.warning("weights_unknown", why=error.what, hint=error.hint)

    async def _know_files(self) -> None:
        self._index = None
        if self._files:
            indexes = [await file.index(self._hash_progress) for file in self._files]
            self._index = join_indexes(indexes)
            LOG.info("weights_known", count=len(self._index.tensors), bytes=self._index.weight_bytes)

    def _hash_progress(self, progress: HashProgress) -> None:
        if progress.text != self._hashing:
            LOG.info("hashing", what=progress.text)
        self._hashing = progress.text

    async def _devices(self) -> tuple[Device, ...]:
        listed = await list_devices(
            self._kit.native.rpc_server,
            run_to_end=self._kit.run_to_end,
            log=self._kit.logs / "devices.log",
        )
        return pick(listed, self._options.devices)

    # Who may.

    def _may_lease(self, member: Member, _metadata: Mapping[str, MetadataValue]) -> str | None:
        return None if Role.USE in member.roles else "this member may not use workers (role `use` is missing)"

    def _may_rpc(self, member: Member, metadata: Mapping[str, MetadataValue]) -> str | None:
        if Role.USE not in member.roles:
            return "this member may not use workers (role `use` is missing)"
        return None if self._find(member.peer, metadata) is not None else "no live lease with this id"

    def _find(self, peer: PeerId, metadata: Mapping[str, MetadataValue]) -> _Running | None:
        lease_id = metadata.get("lease")
        if not isinstance(lease_id, bytes):
            return None
        running = self._running.get(lease_id)
        return running if running is not None and running.lease.peer == peer else None

    # Services.

    async def _serve_rpc(self, stream: Stream) -> None:
        running = self._find(stream.peer, stream.metadata)
        if running is None:
            raise Broken("the lease has ended")
        await self._kit.connect_through(stream, "127.0.0.1", running.port, secret=running.secret)

    async def _serve_lease(self, stream: Stream) -> None:
        messages = MessageStream(stream)
        try:
            lease, devices = await self._agree(messages)
            try:
                await self._run_lease(messages, lease, devices)
            finally:
                self._ledger = self._ledger.release(lease.lease_id)
        except Broken:
            return  # the head has gone, and everything of its lease with it
        except EndOfStream:
            pass  # it gave up before it had a lease: our half of the stream ends as well
        except Refused as error:
            LOG.warning("lease_refused", peer=stream.peer.short, why=error.what)
            await messages.send(Lost(error.code, error.what, error.hint).encode())
        except RemoteProtocolError:
            raise
        except MeshdError as error:
            LOG.warning("lease_failed", peer=stream.peer.short, why=error.what)
            await messages.send(Lost("failed", error.what, error.hint).encode())
        stream.write_eof()

    async def _agree(self, messages: MessageStream) -> tuple[Lease, tuple[Device, ...]]:
        acquire = decode(await messages.receive())
        if not isinstance(acquire, Acquire):
            raise RemoteProtocolError("lease: expected `acquire`", code="lease")
        self._check_version(acquire)
        await self._until_indexed(messages)
        devices = self._ledger.offer(await self._devices())
        offer = Offer(devices, has_model=self._index is not None, machine=self._options.machine)
        await messages.send(offer.encode())
        try:
            async with asyncio.timeout(RESERVE_SECONDS):
                reserve = decode(await messages.receive())
        except TimeoutError:
            raise Refused("no reservation came", code="timeout") from None
        if not isinstance(reserve, Reserve):
            raise RemoteProtocolError("lease: expected `reserve`", code="lease")
        why_not = self._ledger.why_not(devices, reserve.bytes_per_device)
        if why_not is not None:
            raise Refused(why_not, code="memory", hint="ask again: what is free has changed")
        memory = {
            device.name: count
            for device, count in zip(devices, reserve.bytes_per_device, strict=True)
            if count
        }
        lease = Lease(self._kit.random(LEASE_ID_BYTES), messages.stream.peer, memory)
        self._ledger = self._ledger.take(lease)
        return lease, devices

    def _check_version(self, acquire: Acquire) -> None:
        mine = self._kit.native.version
        # a build that the user named has no pin: then the RPC protocol's own HELLO has to find out
        if UNKNOWN_PIN not in (acquire.native_pin, mine.pin) and acquire.native_pin != mine.pin:
            raise Refused(
                f"the head runs llama.cpp {acquire.native_pin}, this worker {mine.pin}",
                code="version",
                hint="install the same version of meshd on both and run `meshd native build`",
            )

    async def _until_indexed(self, messages: MessageStream) -> None:
        if self._index is not None and not all(file.stat_unchanged() for file in self._files):
            self._indexed.clear()
            self._stale.set()
        while not self._indexed.is_set():
            try:
                async with asyncio.timeout(PROGRESS_SECONDS):
                    await self._indexed.wait()
            except TimeoutError:
                await messages.send(Progress(self._hashing or "getting ready").encode())

    async def _run_lease(self, messages: MessageStream, lease: Lease, devices: tuple[Device, ...]) -> None:
        names = [device.name for device in devices if device.name in lease.memory]
        try:
            report = self._kit.make_report()
        except OSError as error:
            raise MeshdError(f"no rpc-server can be started: {error.strerror}") from None
        outgoing = Outgoing()
        outgoing.add(report.child_end)
        running = self._start(lease, names, report, outgoing)
        try:
            async with Owner() as owner:
                owner.start(running.child.serve(), name="rpc-server")
                owner.start(self._read_report(report, running), name="rpc-server report")
                await running.child.ensure_ready()
                self._running[lease.lease_id] = running
                LOG.info("lease_granted", peer=lease.peer.short, pid=running.child.status.pid)
                await messages.send(Grant(lease.lease_id).encode())
                ended = owner.start(self._until_child_ends(running.child), name="rpc-server end")
                released = owner.start(self._until_released(messages), name="lease release")
                await asyncio.wait([ended, released], return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    await messages.send(Lost("rpc_server_ended", ended.result().reason).encode())
                owner.cancel()
        except ExceptionGroup as group:
            raise first_error(group) from None
        finally:
            report.close()
            outgoing.close()
            self._running.pop(lease.lease_id, None)
            LOG.info("lease_ended", peer=lease.peer.short)

    async def _read_report(self, report: Report, running: _Running) -> None:
        while True:
            try:
                line = await report.line()
            except (EndOfStream, Closed, Broken):
                return
            match line.split(" "):
                case ["loaded", _count, size] if (loaded := count_of(size)) is not None:
                    running.loaded_bytes += loaded
                    LOG.info("weights_loaded", peer=running.lease.peer.short, bytes=loaded)
                case ["miss", reason, *name]:
                    running.missed += 1
                    LOG.warning("weight_missed", tensor=" ".join(name), why=reason)

    async def _until_child_ends(self, child: Child) -> ChildStatus:
        status = child.status
        while status.state in (ChildState.READY, ChildState.STARTING):
            status = await child.wait_changed(status)
        return status

    async def _until_released(self, messages: MessageStream) -> None:
        try:
            while True:
                decode(await messages.receive())  # nothing is said after the grant in this version
        except (EndOfStream, Broken):
            return

    def _start(self, lease: Lease, devices: Sequence[str], report: Report, outgoing: Outgoing) -> _Running:
        secret = self._kit.random(SECRET_BYTES)
        self._log_number = self._log_number % KEPT_LOGS + 1
        log_path = self._kit.logs / f"rpc-server-{self._log_number}.log"
        program = str(self._kit.native.rpc_server)
        memory = [lease.memory[name] for name in devices]

        def spec() -> ChildSpec:
            listen, running.port = self._kit.listening()
            outgoing.add(listen)
            weights, data = self._weights(outgoing)
            ready = self._kit.line_ready(READY_LINE)
            descriptors = command.Descriptors(
                listen=listen,
                secret=outgoing.add(self._kit.hand_over(secret)),
                weights=weights,
                report=report.child_end,
            )
            return ChildSpec(
                name="rpc-server",
                argv=command.rpc_server(program, devices=devices, memory=memory, descriptors=descriptors),
                log=log_path,
                probe=ready,
                on_line=ready.see,
                pass_fds=data,
                hand_over=outgoing.give(),
            )

        running = _Running(lease, self._kit.make_child(spec, "rpc-server"), 0, secret)
        return running

    def _weights(self, outgoing: Outgoing) -> tuple[int, tuple[int, ...]]:
        if self._index is None:
            return -1, ()
        data = tuple(descriptor for file in self._files for descriptor in file.descriptors)
        return outgoing.add(self._kit.hand_over(encode_index(self._index, data))), data
