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
from meshd.rpc import protocol as rpc
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

from tests.e2e.bare_node import bare_node, connected
from tests.e2e.models import patched, smollm2
from tests.e2e.native_protocol import RPC
from tests.e2e.nodes import Fleet, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]


async def _hears(messages: MessageStream) -> LeaseMessage:
    while isinstance(message := decode(await messages.receive()), Progress):
        pass
    return message


def test_who_was_not_admitted_gets_no_push_stream(tmp_path: Path) -> None:
    """The lease's id alone is worth nothing: its head has to name the member."""

    async def check() -> None:
        async with Fleet(tmp_path, protocol=RPC) as fleet:
            worker = await fleet.worker("worker", model=smollm2())
            token = await worker.token()
            async with (
                bare_node(tmp_path / "head", token=token, name="head") as head,
                bare_node(tmp_path / "third", token=token, name="third") as third,
            ):
                peer = await connected(head, "worker")
                messages = MessageStream(head.mesh.open_stream(peer, LEASE_SERVICE, metadata={}))
                pin = patched().pin
                await messages.send(Acquire(bytes(16), "m", "f" * 64, pin, "").encode())
                offer = await _hears(messages)
                assert isinstance(offer, WorkerOffer) and offer.push
                await messages.send(Reserve((64 << 20, *[0] * (len(offer.devices) - 1))).encode())
                grant = await _hears(messages)
                assert isinstance(grant, Grant)
                await connected(third, "worker")
                metadata: Mapping[str, MetadataValue] = {"lease": grant.lease_id}
                for by in (third, head):
                    stream = by.mesh.open_stream(peer, PUSH_SERVICE, metadata=metadata)
                    with pytest.raises(Refused, match="admits this member"):
                        await stream.accepted()
                await messages.send(Admit(third.node.peer.raw).encode())
                await until_admitted(third, peer, metadata)
                with pytest.raises(Refused, match="admits this member"):
                    await head.mesh.open_stream(peer, PUSH_SERVICE, metadata=metadata).accepted()
                rude = third.mesh.open_stream(peer, PUSH_SERVICE, metadata=metadata)
                await rude.write(rpc.REQUEST.pack(rpc.GET_DEVICE_MEMORY, 4) + bytes(4))
                with pytest.raises(Broken, match="command 11 between servers"):
                    await rude.read()
                await until_admitted(third, peer, metadata)
                await liars(third, peer, {**metadata, **COMPRESSED})
                await until_admitted(third, peer, metadata)
                assert len((await worker.status()).children) == 1, "the lease goes on"

    play(check())


async def liars(third: MemberNode, peer: PeerId, metadata: Mapping[str, MetadataValue]) -> None:
    """A neighbour that says what it may not in a compressed stream, or breaks the rules of these."""
    rude = Encoder().encode(rpc.REQUEST.pack(rpc.GET_DEVICE_MEMORY, 4) + bytes(4) + bytes(1 << 20))
    for sent, why in [
        (rude, "command 11 between servers"),
        (b"\x01\x00\x00\x09\x01\x00\x00\x00x", "kind 9 of a frame is not known"),
        (rude[:4] + b"\xff\xff\xff\x7f", "a frame of 2147483647 bytes"),
        (rude[:8] + bytes(len(rude) - 8), "compressed stream: "),
    ]:
        stream = third.mesh.open_stream(peer, PUSH_SERVICE, metadata=metadata)
        await stream.write(sent)
        with pytest.raises(Broken, match=why):
            await stream.read()


async def until_admitted(third: MemberNode, peer: PeerId, metadata: Mapping[str, MetadataValue]) -> None:
    """The head's word has arrived: nothing tells this member of it."""
    while True:
        stream = third.mesh.open_stream(peer, PUSH_SERVICE, metadata=metadata)
        try:
            await stream.accepted()
        except Refused:
            await asyncio.sleep(0.05)
        else:
            return
