"""The API of this head for members that may use the mesh, over streams and never at a port.

They are told what it serves.

Where the head asks for API keys, a member proves that it has one (identity/proof.py).
"""

import asyncio
import hashlib
import socket
from collections.abc import Callable, Mapping, Sequence

from meshd.base.admission import Release, Slots
from meshd.base.errors import EndOfStream, RemoteProtocolError
from meshd.base.peer_limits import (
    API_CALLS,
    API_CALLS_OF_ISSUER,
    API_CALLS_OF_PEER,
    SERVING_TOLD,
    SERVING_TOLD_OF_ISSUER,
    SERVING_TOLD_OF_PEER,
)
from meshd.devices.capacity import NOT_FOR_YOU
from meshd.devices.interface import Join
from meshd.gateway.interface import MemberCaller, MemberGate
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member, Role
from meshd.identity.proof import proven_key
from meshd.model.served_facts import ServedFacts
from meshd.model.status import ModelState, ModelStatus
from meshd.peer.interface import Mesh, MetadataValue, Stream
from meshd.peer.messages import MessageStream
from meshd.wire.models import API_SERVICE, KEY_PROOF, SERVING_SERVICE, ApiModel, ServingTold

_LOOK_SECONDS = 0.25  # between two looks at what is served: what a message says is at most as old
_ON_DEMAND = {ModelState.READY, ModelState.LOADING, ModelState.UNLOADED}  # a request waits for the load


class MemberApi:
    """Answer nobody yet. `serves` says what the API serves now."""

    def __init__(
        self,
        mesh: Mesh,
        join: Join,
        gate: MemberGate,
        serves: Callable[[], Sequence[ApiModel]],
        *,
        me: PeerId,
    ) -> None:
        self._join = join
        self._gate = gate
        self._serves = serves
        self._me = me
        self._callers = Slots(API_CALLS, API_CALLS_OF_PEER, API_CALLS_OF_ISSUER)
        self._watchers = Slots(SERVING_TOLD, SERVING_TOLD_OF_PEER, SERVING_TOLD_OF_ISSUER)
        self._looked = -_LOOK_SECONDS
        self._message = b""
        mesh.handle(API_SERVICE, self._carry, allow=self._admit_call)
        mesh.handle(SERVING_SERVICE, self._tell, allow=self._admit_watcher)

    def _admit_call(self, member: Member, _metadata: Mapping[str, MetadataValue]) -> str | Release:
        return _admit(self._callers, member, "too many requests are in progress")

    def _admit_watcher(self, member: Member, _metadata: Mapping[str, MetadataValue]) -> str | Release:
        return _admit(self._watchers, member, "too many members are told what is served")

    async def _carry(self, stream: Stream) -> None:
        ours, theirs = socket.socketpair()
        try:
            await self._gate.take(theirs, MemberCaller(self._key_of(stream)))
        except BaseException:
            ours.close()
            raise
        await self._join(stream, ours, inspector=None, on_broken=lambda _error: None)

    def _key_of(self, stream: Stream) -> bytes | None:
        """Return whose share of the API it uses: that of a key, or where none is asked for the member's."""
        digests = self._gate.key_digests
        if not digests:
            return hashlib.sha256(stream.peer.raw).digest()
        proofs = stream.metadata.get(KEY_PROOF, b"")
        if not isinstance(proofs, bytes):
            return None
        return proven_key(proofs, digests, head=self._me, member=stream.peer)

    async def _tell(self, stream: Stream) -> None:
        messages, sent = MessageStream(stream), b""
        while True:
            now = self._serving()
            if now != sent:
                await messages.send(now)
                sent = now
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await stream.read()
            except TimeoutError:
                continue
            except EndOfStream:
                return stream.write_eof()
            raise RemoteProtocolError("serving: nothing is asked on this stream", code="serving")

    def _serving(self) -> bytes:
        """Look it up once for all that are told."""
        now = asyncio.get_running_loop().time()
        if now >= self._looked + _LOOK_SECONDS:
            self._looked = now
            asks_key = bool(self._gate.key_digests)
            self._message = ServingTold(tuple(self._serves()), asks_key).encode()
        return self._message


def served_models(
    models: Sequence[ModelStatus],
    requests_of: Callable[[str], int],
    facts_of: Callable[[str], ServedFacts],
    *,
    on_demand: bool,
) -> tuple[ApiModel, ...]:
    """Describe a head's models for members. `on_demand`: they are loaded for requests."""
    takes = _ON_DEMAND if on_demand else {ModelState.READY}
    return tuple(
        ApiModel(
            name=model.name,
            state=model.state.value,
            takes=model.state in takes,
            reason=model.reason,
            requests=requests_of(model.name),
            slots=model.answers.slots if model.answers is not None else 1,
            fingerprint=bytes.fromhex(model.fingerprint),
            aliases=model.aliases,
            context=facts.context,
            created=facts.created,
            capabilities=facts.capabilities,
        )
        for model, facts in ((model, facts_of(model.name)) for model in models)
    )


def _admit(places: Slots, member: Member, full: str) -> str | Release:
    if Role.USE not in member.roles:
        return NOT_FOR_YOU
    return places.take(member.peer, member.chain.admitter) or full
