"""The relay: listens on one port for TCP and UDP, and does what the switchboard decides.

To run one: `open`, print `hint(...)`, `serve` until cancelled; `close` in the end. A daemon may run one
beside its own links, with its own key. Nothing is kept on disk here.
"""

import asyncio
import contextlib
import heapq
import itertools
import secrets
import socket
import ssl
from collections.abc import Callable

from meshd.base.admission import TokenBucket
from meshd.base.errors import Closed, LocalProtocolError, MeshdError, UserError
from meshd.base.log import get
from meshd.base.sockets import accept_from
from meshd.base.tasks import Owner
from meshd.base.unproven_connections import UnprovenConnections
from meshd.identity.invite import JoinKeys, RelayHint
from meshd.identity.keys import MeshId
from meshd.identity.proof import Credentials, ListenProof, Proven, Purpose
from meshd.identity.tls_certificate import make_link_certificate
from meshd.link.secure.handshake import run_proof
from meshd.link.secure.tls import listener_context
from meshd.link.tcp.sockets import listen
from meshd.relay.connection import Connection, Hold, RelayStage, Spaces
from meshd.relay.stun import StunPorts
from meshd.relay.switchboard import SMALL, Action, Cut, Drop, Limits, NodeIdentity, Switchboard, Tell
from meshd.wire.message import LengthParser, framed
from meshd.wire.relay import MAX_RELAY_MESSAGE_BYTES, Mail, decode_from_node

_SWEEP_SECONDS = 0.5
UDP_TRIES = 8  # for a port that is free in TCP and UDP
_log = get("relay")


class Throttle:
    """`rest(seconds, wake)` calls `wake` that much later, while `serve` runs."""

    def __init__(self) -> None:
        self._resting: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._sooner = asyncio.Event()

    def __len__(self) -> int:
        return len(self._resting)

    def rest(self, seconds: float, wake: Callable[[], None]) -> None:
        """Call `wake`, which must not raise, after `seconds`."""
        at = asyncio.get_running_loop().time() + seconds
        heapq.heappush(self._resting, (at, next(self._numbers), wake))
        if self._resting[0][0] == at:
            self._sooner.set()

    async def serve(self) -> None:
        """Serve until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._sooner.clear()
            while self._resting and self._resting[0][0] <= loop.time():
                heapq.heappop(self._resting)[2]()
            until = self._resting[0][0] if self._resting else None
            try:
                async with asyncio.timeout_at(until):
                    await self._sooner.wait()
            except TimeoutError:
                continue


def _no_invites(invite_id: bytes) -> JoinKeys | None:
    return None


class RelayServer:
    """`meshes` empty: any mesh. `host` empty: every address of this machine. Port 0 picks one.

    `credentials`: the key that nodes pin; a chain, if there is one, is shown and means nothing here.
    `first_host` and `second_host`: two addresses of this host, which make it a STUN server by RFC 5780.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        host: str = "",
        port: int = 0,
        meshes: frozenset[MeshId] = frozenset(),
        limits: Limits = SMALL,
        first_host: str = "",
        second_host: str = "",
    ) -> None:
        # The user's choices.
        self._credentials = credentials
        self._host = host
        self._asked_port = port
        self._meshes = meshes
        self.limits = limits
        # The decisions, and the certificate that all connections show.
        self.board = Switchboard(limits, random=secrets.token_bytes)
        self._certificate = make_link_certificate()
        self._context: ssl.SSLContext = listener_context(self._certificate)
        self._spaces = Spaces(self._context)
        # What is open now.
        self._sockets: list[socket.socket] = []
        self._stun = StunPorts(self.board.counts, self.board.has_client_at, second=second_host)
        self._first_host = first_host or host
        self._connections: dict[int, Connection] = {}
        self._of_host: dict[str, int] = {}
        self._circuits: dict[int, list[Connection]] = {}
        self._unproven = UnprovenConnections(most=limits.unproven, most_of_one=limits.unproven_of_host)
        self._throttle = Throttle()
        self._owner: Owner | None = None
        self._next = 1
        self._port = 0
        self.carried_bytes = 0

    # --- life

    @property
    def port(self) -> int:
        """The port in use, known after `open`; the same for TCP and UDP."""
        return self._port

    @property
    def connections(self) -> int:
        """TCP connections of all kinds."""
        return len(self._connections)

    @property
    def resting(self) -> int:
        """The circuit ends that are not read just now, because their nodes have exceeded their rate."""
        return len(self._throttle)

    @property
    def sent_away(self) -> int:
        """The connections dropped so far before they had proven anything, to make room."""
        return self._unproven.sent_away

    def hint(self, public_host: str) -> RelayHint:
        """Return the hint by which nodes come here, after `open`. `public_host`: a name or an address."""
        host = f"[{public_host}]" if ":" in public_host else public_host
        return RelayHint(f"{host}:{self._port}", self._credentials.key.peer)

    def open(self) -> None:
        """Bind both ports: from here on connections wait for `serve`. Raises PortTaken, UserError."""
        for attempt in range(UDP_TRIES):
            self._sockets = listen(self._host, self._asked_port)
            self._port = self._sockets[0].getsockname()[1]
            try:
                self._stun.open(self._sockets, self._first_host)
            except OSError as error:
                self.close()
                if self._asked_port or attempt == UDP_TRIES - 1:
                    raise UserError(
                        f"cannot use UDP port `{self._port}`: {(error.strerror or '').lower()}",
                        hint="choose another port: a relay answers STUN on the UDP port of the same number",
                    ) from None
            else:
                return

    def close(self) -> None:
        """Stop listening, if it still does."""
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()
        self._stun.close()

    async def serve(self) -> None:
        """Serve until cancelled; then drop every connection."""
        if not self._sockets:
            raise LocalProtocolError("the relay is not open")
        try:
            async with Owner() as owner:
                self._owner = owner
                for sock in self._sockets:
                    owner.start(accept_from(sock, self._fresh), name="relay accept")
                await self._stun.start(owner)
                owner.start(self._throttle.serve(), name="relay throttle")
                owner.start(self._sweep(), name="relay sweep")
                await asyncio.Event().wait()
        finally:
            self._owner = None
            self.close()
            for connection in list(self._connections.values()):
                connection.abort()
            await asyncio.sleep(0)  # the loop closes the sockets in its next turn

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = loop.time()
            self._do(self.board.sweep(now))
            for connection in list(self._connections.values()):
                early = connection.stage in (
                    RelayStage.FIRST,
                    RelayStage.STUN,
                    RelayStage.SHAKING,
                    RelayStage.PREFACE,
                    RelayStage.WEB,
                )
                if (early and now - connection.since > self.limits.unproven_seconds) or (
                    connection.stage is RelayStage.CONTROL
                    and now - connection.heard > self.limits.silent_seconds
                ):
                    connection.abort()

    # --- what connections tell (Exchange)

    def _fresh(self) -> Connection:
        self._next += 1
        return Connection(self._spaces, self, number=self._next)

    def arrived(self, connection: Connection) -> bool:
        """Admit a TCP connection; False if there is no room for it."""
        of_host = self._of_host.get(connection.host, 0)
        if (
            self._owner is None
            or len(self._connections) >= self.limits.connections
            or of_host >= self.limits.connections_of_host
        ):
            self.board.counts["connections_refused"] += 1
            return False
        self._connections[connection.number] = connection
        self._of_host[connection.host] = of_host + 1
        self._unproven.arrive(connection, host=connection.host, send_away=connection.abort)
        return True

    def lost(self, connection: Connection) -> None:
        """Forget a closed connection; the circuit ends with the last of its two."""
        self._unproven.leave(connection)
        if self._connections.pop(connection.number, None) is None:
            return
        left = self._of_host[connection.host] - 1
        if left:
            self._of_host[connection.host] = left
        else:
            del self._of_host[connection.host]
        ends = self._circuits.get(connection.circuit)
        if ends is not None and connection in ends:
            ends.remove(connection)
            if not ends:
                del self._circuits[connection.circuit]
                self.board.ended(connection.circuit)

    def control(self, connection: Connection) -> None:
        """Begin the proof of a control connection."""
        if self._owner is None:
            return
        try:
            task = self._owner.start_for(
                connection.host, self._welcome(connection), name=f"relay {connection.remote}"
            )
        except Closed:
            connection.abort()
        else:
            task.add_done_callback(lambda _: connection.abort())

    def ticket(self, connection: Connection, ticket: bytes) -> None:
        """Join a connection to the circuit of its ticket."""
        found = self.board.arrive(ticket)
        if found is None:
            self.board.counts["tickets_refused"] += 1
            connection.abort()
            return
        circuit, side = found
        self._unproven.leave(connection)
        bound = self.board.join_bounds(circuit)
        connection.bind(circuit, side, bound=bound)
        ends = self._circuits.setdefault(circuit, [])
        ends.append(connection)
        if len(ends) == 2:
            first, second = ends
            self._unproven.leave(first)  # a browser, which has shown no ticket
            first.join(second)
            second.join(first)
            first.begin()
            second.begin()

    def browser(self, connection: Connection, box: bytes) -> bool:
        """Ring a box for a browser; False if nobody is there, or there is no room."""
        found = self.board.browse(box, host=connection.host, now=asyncio.get_running_loop().time())
        if found is None:
            self.board.counts["browsers_refused"] += 1
            return False
        circuit, actions = found
        connection.bind(circuit, 0, bound=0)
        self._circuits[circuit] = [connection]
        self._do(actions)
        return True

    def carried(self, connection: Connection, size: int) -> None:
        """Charge bytes of a circuit to their sender, which rests when it owes."""
        self.carried_bytes += size
        seconds = self.board.owed(
            connection.circuit, connection.side, size, asyncio.get_running_loop().time()
        )
        if seconds > 0 and not connection.holds(Hold.OWED):
            connection.hold(Hold.OWED)
            self.board.counts["rests"] += 1
            self._throttle.rest(seconds, lambda: self._rested(connection))

    def _rested(self, connection: Connection) -> None:
        """Resume a rested connection, unless its node owes again by then, on this circuit or others."""
        seconds = self.board.owed(connection.circuit, connection.side, 0, asyncio.get_running_loop().time())
        if seconds > 0:
            self._throttle.rest(seconds, lambda: self._rested(connection))
        else:
            connection.release(Hold.OWED)

    # --- control connections

    async def _welcome(self, connection: Connection) -> None:
        """Run the whole life of one control connection."""
        proof = ListenProof(
            credentials=self._credentials,
            mesh=None,
            binding=self._certificate.sha256,
            nonce=secrets.token_bytes(32),
            invites=_no_invites,
            purposes=frozenset({Purpose.RELAY}),
        )
        try:
            proven = await run_proof(connection, proof, seconds=self.limits.unproven_seconds)
            self._unproven.leave(connection)
            await self._talk(connection, proven)
        except (MeshdError, TimeoutError) as error:
            _log.debug("relay_client_gone", remote=connection.remote, why=str(error) or "timed out")
        finally:
            self.board.leave(connection.number)
            await connection.aclose()

    async def _talk(self, connection: Connection, proven: Proven) -> None:
        loop = asyncio.get_running_loop()
        number = connection.number
        member = proven.member
        counts = member is not None and (not self._meshes or member.mesh in self._meshes)
        who = NodeIdentity(proven.peer.raw, member.mesh.raw if counts and member is not None else b"")
        self._do(self.board.enter(number, who, host=connection.host, seen=connection.remote, now=loop.time()))
        pace = TokenBucket(rate=self.limits.messages_rate, burst=self.limits.messages_burst, now=loop.time())
        parser = LengthParser(limit=MAX_RELAY_MESSAGE_BYTES)
        parser.feed(proven.leftover)
        while True:
            for message in parser.messages():
                self._do(self.board.receive(number, decode_from_node(message), loop.time()))
                seconds = pace.take(1, loop.time())
                if seconds:
                    await asyncio.sleep(seconds)  # unread messages stop the connection being read
            parser.feed(await connection.receive())

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Tell(client, message):
                    self._tell(client, framed(message.encode()), may_drop=isinstance(message, Mail))
                case Drop(client):
                    if client in self._connections:
                        self._connections[client].close()
                case Cut(circuit):
                    for connection in list(self._circuits.get(circuit, ())):
                        connection.end_other(clean=False)
                        connection.cut()

    def _tell(self, client: int, data: bytes, *, may_drop: bool) -> None:
        connection = self._connections.get(client)
        if connection is None:
            return
        if may_drop and connection.backlog > self.limits.control_backlog // 2:
            self.board.counts["mail_dropped"] += 1  # a sender of too much must not cost it its place
            return
        with contextlib.suppress(MeshdError):
            connection.try_send([data])
        if connection.backlog > self.limits.control_backlog:
            connection.abort()
