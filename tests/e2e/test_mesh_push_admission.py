"""Who was not admitted to a lease gets no push stream there, and who was may say nothing else on one."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from meshd.base.errors import Broken, Refused
from meshd.daemon.member_node import MemberNode
from meshd.identity.keys import PeerId
from meshd.peer.interface import MetadataValue
from meshd.peer.messages import MessageStream
from meshd.rpc import mesh_protocol as wire
from meshd.tunnel.compressed import COMPRESSED
from meshd.wire.compressed import Encoder
from meshd.wire.lease import (
    LEASE_SERVICE,
    PUSH_SERVICE,
    Acquire,
    Admit,
    Grant,
    LeaseMessage,
    Progress,
    Reserve,
    WorkerOffer,
    decode,
)
from meshd.wire.versions import mesh_protocol

from tests.e2e.bare_node import bare_node, connected
from tests.e2e.models import native, smollm2
from tests.e2e.nodes import Fleet, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]


READ = wire.HEADER.pack(wire.MESSAGES[wire.READ].body.size, wire.READ, 0, 7) + bytes(24)
_RUDE = Encoder().encode(READ + bytes(1 << 20))
ONE_STREAM = "does not wait for a stream of this member"
# what a neighbour may not say, in a compressed stream as well, and what breaks the rules of these
LIES: tuple[tuple[bytes, str, Mapping[str, MetadataValue]], ...] = (
    (READ, f"message {wire.READ}", {}),
    (_RUDE, f"message {wire.READ}", COMPRESSED),
    (b"\x01\x00\x00\x09\x01\x00\x00\x00x", "kind 9 of a frame is not known", COMPRESSED),
    (_RUDE[:4] + b"\xff\xff\xff\x7f", "a frame of 2147483647 bytes", COMPRESSED),
    (_RUDE[:8] + bytes(len(_RUDE) - 8), "compressed stream: ", COMPRESSED),
)


async def _hears(messages: MessageStream) -> LeaseMessage:
    while isinstance(message := decode(await messages.receive()), Progress):
        pass
    return message


def test_who_was_not_admitted_gets_no_push_stream(tmp_path: Path) -> None:
    """The lease's id alone is worth nothing: its head has to name the member."""

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            worker = await fleet.worker("worker", model=smollm2())
            token = await worker.token()
            async with (
                bare_node(tmp_path / "head", token=token, name="head") as head,
                bare_node(tmp_path / "third", token=token, name="third") as third,
            ):
                peer = await connected(head, "worker")
                messages = MessageStream(head.mesh.open_stream(peer, LEASE_SERVICE, metadata={}))
                speaks = mesh_protocol(wire.VERSION)
                asked = Acquire(bytes(16), "m", "f" * 64, native().pin, protocol=speaks)
                await messages.send(asked.encode())
                offer = await _hears(messages)
                assert isinstance(offer, WorkerOffer)
                await messages.send(Reserve((64 << 20, *[0] * (len(offer.devices) - 1))).encode())
                grant = await _hears(messages)
                assert isinstance(grant, Grant)
                await connected(third, "worker")
                metadata: Mapping[str, MetadataValue] = {"lease": grant.lease_id}
                for by in (third, head):
                    stream = by.mesh.open_stream(peer, PUSH_SERVICE, metadata=metadata)
                    with pytest.raises(Refused, match="admits this member"):
                        await stream.accepted()
                for number, (said, why, more) in enumerate(LIES):
                    await messages.send(Admit(third.node.peer.raw, number).encode())
                    assert why in await refusal(third, peer, {**metadata, **more}, said)
                    with pytest.raises(Refused, match="admits this member"):
                        await head.mesh.open_stream(peer, PUSH_SERVICE, metadata=metadata).accepted()
                    again = third.mesh.open_stream(peer, PUSH_SERVICE, metadata=metadata)
                    with pytest.raises(Broken, match=ONE_STREAM):
                        await again.read()
                assert len((await worker.status()).children) == 1, "the lease goes on"

    play(check())


async def refusal(third: MemberNode, peer: PeerId, metadata: Mapping[str, MetadataValue], said: bytes) -> str:
    """Why what it says on its one stream ends it, once the head's word has arrived: nobody tells it."""
    while True:
        stream = third.mesh.open_stream(peer, PUSH_SERVICE, metadata=metadata)
        try:
            await stream.accepted()
            await stream.write(said)
            await stream.read()
        except (Refused, Broken) as error:
            if "admits this member" not in error.what and ONE_STREAM not in error.what:
                return error.what
            await asyncio.sleep(0.05)
