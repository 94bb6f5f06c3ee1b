"""Links through a relay: TLS 1.3 and the proof from node to node, over a byte pipe that a relay carries.

The dialer calls the peer over its control connection, and the relay rings the peer over its own. Both
connect with a ticket, and then talk to each other. A relay can delay, cut and count; it cannot read or
pretend.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from meshd.base.errors import Closed, MeshdError, Refused
from meshd.base.log import get
from meshd.base.tasks import Owner, first_error, first_success
from meshd.identity.invite import JoinKeys, RelayHint
from meshd.identity.keys import PeerId
from meshd.identity.proof import Proven, Purpose
from meshd.identity.record import MAX_RELAYS
from meshd.link.interface import Accept, DialError, DialFailure, LinkInfo, LinkKind, Transport
from meshd.link.net.happy_eyeballs import closest
from meshd.link.relayed.control_connection import ControlConnection, RelayTrouble
from meshd.link.relayed.relay_client import RelayClient
from meshd.link.relayed.relay_pipe import RelayPipe
from meshd.link.secure.caller_rates import Callers
from meshd.link.secure.entrance import Entrance
from meshd.link.secure.handshake import (
    PROOF_SECONDS,
    HandshakeContext,
    ProvenLink,
    dial_error,
    prove_accepted,
    prove_dialled,
    proven_link,
)
from meshd.link.secure.joining import Joining, OnJoiner
from meshd.link.secure.tls import dialer_context, listener_context
from meshd.wire.address import Candidate
from meshd.wire.dialable import Dialable, trusted
from meshd.wire.relay import Mail, Ring

BOX_PAUSES = (0.7, 3.0)  # before a joiner asks again for a mailbox; a relay drops who asks four times
_ATTEMPT_SECONDS = 12.0  # through one relay, to the end of the proof
_STAGGER_SECONDS = 0.5  # between two relays
PASSING_BYTES = 128 << 10  # half of what a relay gives a joiner; a welcome takes a quarter
WELCOME_SECONDS = PROOF_SECONDS + 5.0  # the way to the relay included

_log = get("relay")

Reached = tuple[RelayPipe, Proven, RelayHint]


class PassingLink(ProvenLink):
    """A link through the circuit of a joiner, which the relay cuts after 256 KiB each way.

    Before that it takes nothing more: what waits goes on over the link that comes next, without a loss.
    """

    def __init__(self, pipe: RelayPipe, leftover: bytes, info: LinkInfo) -> None:
        super().__init__(pipe, leftover, info)
        self._below = pipe
        self._left = PASSING_BYTES
        self.send = self._send_some
        self.try_send = self._try_some

    def _try_some(self, data: Sequence[bytes | memoryview]) -> bool:
        size = sum(map(len, data))
        if size > self._left or not self._below.try_send(data):
            return False
        self._left -= size
        return True

    async def _send_some(self, data: Sequence[bytes | memoryview]) -> None:
        size = sum(map(len, data))
        if size > self._left:
            await asyncio.Event().wait()  # until the sender gives this link up
        self._left -= size
        await self._below.send(data)


class RelayLinks:
    """Dialer and listener in one: both use the client's control connections, and its `serve` must run."""

    transport = Transport.RELAY
    kind = LinkKind.RELAY

    def __init__(
        self,
        client: RelayClient,
        handshake: Callable[[], HandshakeContext],
        *,
        on_joiner: OnJoiner | None = None,
        proof_seconds: float = PROOF_SECONDS,
    ) -> None:
        self._client = client
        self._handshake = handshake
        self._proof_seconds = proof_seconds
        self._entrance = Entrance(handshake, on_joiner=on_joiner, proof_seconds=proof_seconds)
        self._listening: ssl.SSLContext = listener_context(self._entrance.certificate)
        self._dialling = dialer_context()

    def candidates(self) -> Sequence[Candidate]:
        """Return no candidates: the relays of a node are in its record's `relays` (`RelayClient.urls`)."""
        return ()

    async def dial(self, peer: PeerId, candidates: Sequence[Dialable]) -> ProvenLink:
        """Dial through the relays of the peer, those that we share first; candidates are of no use here.

        Raises Refused when the peer said why not, else DialError.
        """
        relays = self._client.routes(peer)[:MAX_RELAYS]
        if not relays:
            raise DialError("no relay is known", kind=LinkKind.RELAY, failure=DialFailure.UNREACHABLE)
        starts = [
            (at * _STAGGER_SECONDS, partial(self._attempt, relay, peer)) for at, relay in enumerate(relays)
        ]
        try:
            pipe, proven, relay = await first_success(starts, discard=_discard)
        except ExceptionGroup as failures:
            raise closest(failures.exceptions) from None
        return _lasting(pipe, relay, proven, dialled=True)

    async def serve(self, accept: Accept) -> None:
        """Hand every proven link to `accept`, which keeps it as long as it lives, until cancelled."""
        async with Owner() as owner:

            def rung(control: ControlConnection, ring: Ring) -> bool:
                if not self._entrance.hears(_caller(control, ring)):
                    return False
                try:
                    task = owner.start_for(
                        f"relay {control.relay.place}", self._welcome(control, ring, accept), name="relayed"
                    )
                except Closed:  # shutting down
                    return False

                def send_away() -> None:
                    task.cancel()

                unproven = self._entrance.unproven
                unproven.arrive(ring.ticket, host=ring.caller.hex(), send_away=send_away)
                # a task that is cancelled before its first step never comes to its own clean-up
                task.add_done_callback(lambda _: unproven.leave(ring.ticket))
                return True

            self._client.on_ring = rung
            try:
                await asyncio.Event().wait()
            finally:
                self._client.on_ring = None

    async def _attempt(self, relay: RelayHint, peer: PeerId) -> Reached:
        """Dial through one relay. Raises DialError, Refused."""
        try:
            async with asyncio.timeout(_ATTEMPT_SECONDS):
                control = await self._client.reach(relay, peer)
                pipe, proven = await _call(
                    control,
                    peer.raw,
                    outer=self._client.context,
                    inner=self._dialling,
                    environ=self._client.environ,
                    handshake=self._handshake(),
                    expect=peer,
                    join=None,
                )
        except (MeshdError, OSError) as error:
            raise _dial_error(error, relay) from error
        return pipe, proven, relay

    async def _welcome(self, control: ControlConnection, ring: Ring, accept: Accept) -> None:
        """Run the whole life of one circuit on the side that was called."""
        pipe: RelayPipe | None = None
        callers: Callers | None = None  # what fails before the caller is there counts against nobody
        proven: Proven | None = None
        try:
            # Connect to the relay with the ticket, and prove the caller.
            async with asyncio.timeout(self._proof_seconds + WELCOME_SECONDS - PROOF_SECONDS):
                pipe = await RelayPipe.open(
                    control.relay, self._client.context, self._client.environ, control.allow
                )
                await pipe.enter(
                    ring.ticket, self._listening, server_side=True, relay_binding=control.binding
                )
                handshake = self._handshake()
                if handshake.credentials.chain is None:
                    return  # not a member of any mesh yet: nothing to prove, nobody to let in
                callers = handshake.callers
                proven = await prove_accepted(
                    pipe,
                    handshake=handshake,
                    binding=self._entrance.certificate.sha256,
                    seconds=self._proof_seconds,
                )
            # The caller is proven: open full windows, and hand the link over.
            self._entrance.unproven.leave(ring.ticket)
            pipe.widen()
            kind = _passing if proven.purpose is Purpose.JOIN else _lasting
            make_link = partial(kind, pipe, control.relay, dialled=False)
            await self._entrance.hand_over(pipe, proven, make_link, accept)
        except (MeshdError, OSError, TimeoutError) as error:
            # Count a caller that proved nothing against its address.
            if proven is None and callers is not None:
                callers.failed(_caller(control, ring), asyncio.get_running_loop().time())
            _log.debug("link_ended", remote=control.relay.place, why=str(error) or "timed out")
        finally:
            if pipe is not None:
                await pipe.aclose()
            else:
                control.hang_up(ring.ticket)


def _caller(control: ControlConnection, ring: Ring) -> str:
    """Return what stands for an address: the key that the caller has shown to that relay."""
    return f"{control.relay.place} {ring.caller.hex()}"


async def dial_join(
    relays: Sequence[RelayHint],
    *,
    handshake: HandshakeContext,
    inviter: PeerId,
    join: JoinKeys,
    environ: Mapping[str, str],
) -> Joining:
    """Reach the inviter of an invite through its mailbox at a relay, and prove that we hold the invite.

    As `tcp.dial_join`: the caller closes the pipe, or stays. A relay gives such a circuit few bytes and
    little time, so as a link it is one to begin with.
    Raises Refused when the inviter said why not, else DialError.
    """
    starts = [
        (at * _STAGGER_SECONDS, partial(_attempt_join, relay, handshake, inviter, join, environ))
        for at, relay in enumerate(tuple(dict.fromkeys(relays))[:MAX_RELAYS])
    ]
    if not starts:
        raise DialError("the invite names no relay", kind=LinkKind.RELAY, failure=DialFailure.UNREACHABLE)
    try:
        pipe, proven, relay = await first_success(starts, discard=_discard)
    except ExceptionGroup as failures:
        raise closest(failures.exceptions) from None
    make_link = partial(_passing, pipe, relay, dialled=True)
    return Joining(pipe, proven, binding=pipe.binding(), make_link=make_link)


class _Deaf:
    """A handler for a joiner, whom nobody calls."""

    def rung(self, control: ControlConnection, ring: Ring) -> None:
        control.hang_up(ring.ticket)

    def mail(self, control: ControlConnection, mail: Mail) -> None:
        return


async def _attempt_join(
    relay: RelayHint, handshake: HandshakeContext, inviter: PeerId, join: JoinKeys, environ: Mapping[str, str]
) -> Reached:
    context = dialer_context()
    try:
        async with asyncio.timeout(_ATTEMPT_SECONDS), Owner() as owner:
            control = await ControlConnection.open(
                relay, handshake, _Deaf(), context=context, environ=environ, allow=trusted
            )
            owner.start(control.run(), name="relay control")
            try:
                pipe, proven = await _call(
                    control,
                    join.mailbox,
                    outer=context,
                    inner=dialer_context(),
                    environ=environ,
                    handshake=handshake,
                    expect=inviter,
                    join=join,
                )
            finally:
                await control.aclose()
                owner.cancel()
    except (MeshdError, OSError) as error:
        raise _dial_error(error, relay) from error
    except ExceptionGroup as group:
        raise _dial_error(group.exceptions[0], relay) from group
    return pipe, proven, relay


async def _call(
    control: ControlConnection,
    to: bytes,
    *,
    outer: ssl.SSLContext,
    inner: ssl.SSLContext,
    environ: Mapping[str, str],
    handshake: HandshakeContext,
    expect: PeerId,
    join: JoinKeys | None,
) -> tuple[RelayPipe, Proven]:
    """Make a circuit to a key or a box, to the end of the proof; nothing is left open when it fails."""
    # a relay lets a pipe wait 6 s for its ticket: longer than all pauses
    pauses = BOX_PAUSES if join is not None else ()
    # Get a ticket and a pipe, and meet the other side in the circuit.
    ticket, pipe = await _ticket_and_pipe(control, to, outer, environ, pauses=pauses)
    try:
        await pipe.enter(ticket, inner, server_side=False, relay_binding=control.binding)
        purpose = Purpose.MEMBER if join is None else Purpose.JOIN
        proven = await prove_dialled(
            pipe, handshake=handshake, expect=expect, purpose=purpose, binding=pipe.binding(), join=join
        )
    except BaseException as error:
        control.hang_up(ticket)  # heard before the next call; the end of the pipe perhaps after it
        if isinstance(error, asyncio.CancelledError):
            pipe.abort()
            await pipe.wait_lost()
        else:
            await pipe.aclose()
        raise
    pipe.widen()
    return pipe, proven


async def _ticket(control: ControlConnection, to: bytes, *, pauses: Sequence[float]) -> bytes:
    """Return the relay's ticket to meet `to`. Raises RelayTrouble.

    Retries after `pauses`: a mailbox may be about to be opened, as a node prints its invite before its relay
    has answered.
    """
    for pause in (*pauses, None):
        try:
            return await control.call(to)
        except Refused as refusal:  # the relay's word, not the peer's
            if refusal.code != "absent" or pause is None:
                trouble = f"relay `{control.relay.place}`: {refusal.what}"
                raise RelayTrouble(trouble, hint=refusal.hint) from None
        await asyncio.sleep(pause)
    raise AssertionError("the last try returns or raises")


async def _ticket_and_pipe(
    control: ControlConnection,
    to: bytes,
    outer: ssl.SSLContext,
    environ: Mapping[str, str],
    *,
    pauses: Sequence[float],
) -> tuple[bytes, RelayPipe]:
    """Get both at once, as over a long way each takes two round trips. Raises RelayTrouble,
    OSError, Broken.
    """
    opening: asyncio.Task[RelayPipe] | None = None
    ticket = b""
    try:
        async with Owner() as owner:
            opening = owner.start(
                RelayPipe.open(control.relay, outer, environ, control.allow), name="relay pipe"
            )
            ticket = await _ticket(control, to, pauses=pauses)
            pipe = await opening
    except BaseException as error:
        if opening is not None and opening.done() and not opening.cancelled() and not opening.exception():
            opening.result().abort()
            await opening.result().wait_lost()
        if ticket:
            control.hang_up(ticket)
        if isinstance(error, ExceptionGroup):
            raise first_error(error) from None
        raise
    return ticket, pipe


async def _discard(result: Reached) -> None:
    await result[0].aclose()


def _dial_error(error: Exception, relay: RelayHint) -> DialError | Refused:
    if isinstance(error, RelayTrouble):
        failure = DialFailure.UNREACHABLE
        return DialError(error.what, kind=LinkKind.RELAY, failure=failure, hint=error.hint)
    return dial_error(error, kind=LinkKind.RELAY, place=f"relay {relay.place}")


def _lasting(pipe: RelayPipe, relay: RelayHint, proven: Proven, *, dialled: bool) -> ProvenLink:
    return proven_link(
        pipe,
        proven,
        kind=LinkKind.RELAY,
        local=pipe.local,
        remote=relay.place,
        path="relayed",
        dialled=dialled,
    )


def _passing(pipe: RelayPipe, relay: RelayHint, proven: Proven, *, dialled: bool) -> ProvenLink:
    info = _lasting(pipe, relay, proven, dialled=dialled).info
    return PassingLink(pipe, proven.leftover, replace(info, passing=True))
