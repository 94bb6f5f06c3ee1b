"""Mailboxes of a relay: joining by one, and mail."""

from dataclasses import replace

import pytest
from meshd.base.errors import Broken, MeshdError
from meshd.identity.invite import derive
from meshd.identity.proof import Purpose
from meshd.link.interface import DialError
from meshd.link.relayed.through_relay import dial_join
from meshd.relay.switchboard import WIDE

from tests.conformance.relays import House, in_house
from tests.conformance.run import until

KEYS = derive(bytes(16))


def test_a_joiner_reaches_the_inviter_through_its_mailbox() -> None:
    async def work(home: House) -> None:
        relay = home.start(meshes=frozenset({home.mesh.mesh}))
        (ann,) = await home.parties(1)
        ann.node.invite(KEYS)
        await ann.client.set_boxes({KEYS.mailbox: 60})
        await until(lambda: relay.board.boxes == 1)
        joiner = home.mesh.stranger()
        pipe = await dial_join(
            [home.hint], handshake=joiner.now(), inviter=ann.node.peer, join=KEYS, environ={}
        )
        there = await ann.joiners.get()
        who = there.proven
        assert (who.peer, who.purpose, who.invite_id) == (joiner.peer, Purpose.JOIN, KEYS.invite_id)
        assert pipe.peer == ann.node.peer
        await pipe.send([b"let me in"])
        assert await there.receive() == b"let me in"
        await there.send([b"welcome"])
        assert await pipe.receive() == b"welcome"
        await pipe.aclose()

    in_house(work)


def test_boxes_are_opened_again_after_a_restart_and_shut_when_not_wanted() -> None:
    async def work(home: House) -> None:
        relay = home.start()
        (ann,) = await home.parties(1)
        await ann.client.set_boxes({KEYS.mailbox: 60, bytes(16): 60})
        await until(lambda: relay.board.boxes == 2)
        await ann.client.set_boxes({KEYS.mailbox: 60})
        await until(lambda: relay.board.boxes == 1)
        await home.stop()
        again = home.start(port=relay.port)
        await until(lambda: again.board.boxes == 1)

    in_house(work)


def test_without_an_open_mailbox_nobody_joins() -> None:
    async def work(home: House) -> None:
        home.start()
        (ann,) = await home.parties(1)
        joiner = home.mesh.stranger()
        with pytest.raises(DialError, match="no such mailbox"):
            await dial_join([home.hint], handshake=joiner.now(), inviter=ann.node.peer, join=KEYS, environ={})
        with pytest.raises(DialError, match="names no relay"):
            await dial_join([], handshake=joiner.now(), inviter=ann.node.peer, join=KEYS, environ={})

    in_house(work)


def test_a_joining_circuit_carries_little() -> None:
    async def work(home: House) -> None:
        relay = home.start(limits=replace(WIDE, join_bytes=32 << 10))
        (ann,) = await home.parties(1)
        ann.node.invite(KEYS)
        await ann.client.set_boxes({KEYS.mailbox: 60})
        await until(lambda: relay.board.boxes == 1)
        joiner = home.mesh.stranger()
        pipe = await dial_join(
            [home.hint], handshake=joiner.now(), inviter=ann.node.peer, join=KEYS, environ={}
        )
        there = await ann.joiners.get()
        with pytest.raises(Broken):
            while True:
                await pipe.send([bytes(4096)])
        with pytest.raises(MeshdError):
            while True:
                await there.receive()
        await pipe.aclose()

    in_house(work)


def test_mail_comes_at_once_or_waits() -> None:
    async def work(home: House) -> None:
        relay = home.start()
        (ann,) = await home.parties(1)
        node = home.mesh.node()
        await ann.client.send_mail(node.peer, b"first")
        bob = await home.party(node)
        letter = await bob.client.receive_mail()
        assert (letter.sender, letter.box, letter.blob) == (ann.node.peer, b"", b"first")
        await ann.client.send_mail(node.peer, b"second")
        assert (await bob.client.receive_mail()).blob == b"second"
        await bob.client.set_boxes({KEYS.mailbox: 60})
        await until(lambda: relay.board.boxes == 1)
        await ann.client.send_mail(KEYS.mailbox, b"third")
        letter = await bob.client.receive_mail()
        assert (letter.box, letter.blob, letter.relay) == (KEYS.mailbox, b"third", home.hint)

    in_house(work)


def test_mail_that_nobody_takes_is_broken() -> None:
    async def work(home: House) -> None:
        home.start()
        (ann,) = await home.parties(1)
        with pytest.raises(Broken, match="no such mailbox"):
            await ann.client.send_mail(KEYS.mailbox, b"x")
        with pytest.raises(Broken, match="no relay is known"):
            await ann.client.send_mail(KEYS.mailbox, b"x", relays=[])
        with pytest.raises(Broken, match="at most"):
            await ann.client.send_mail(ann.node.peer, bytes(7000))

    in_house(work)
