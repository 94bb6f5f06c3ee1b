"""Relays that records name, and letters: those of one token's bearers leave room for others."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest
from meshd.base.errors import Broken
from meshd.base.peer_limits import MAIL_WAITING, RELAY_VISITS
from meshd.base.tasks import Owner
from meshd.identity.invite import RelayHint
from meshd.identity.keys import PeerId
from meshd.link.relayed import relay_client as relay_client_module
from meshd.link.relayed.control_connection import ControlConnection
from meshd.link.relayed.relay_client import RelayClient
from meshd.link.secure.handshake import HandshakeContext
from meshd.wire.relay import Mail

from tests.conformance.nodes import TestMesh, fresh_key


class Visitor:
    """A node that calls relays which never answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trusted: set[PeerId] = set()
        self.called: list[RelayHint] = []
        node = TestMesh().node()

        async def never(
            relay: RelayHint, _handshake: HandshakeContext, *_: object, **_words: object
        ) -> ControlConnection:
            self.called.append(relay)
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

        monkeypatch.setattr(ControlConnection, "open", never)
        self.client = RelayClient(
            (), node.now, issuer_of=lambda peer: "ours" if peer in self.trusted else "theirs", environ={}
        )

    async def call(self, whom: PeerId, relays: Sequence[RelayHint]) -> list[str]:
        """Why each of them cannot be reached."""
        said = await asyncio.gather(
            *(self.client.reach(relay, whom) for relay in relays), return_exceptions=True
        )
        assert all(isinstance(one, Broken) for one in said)
        return [str(one) for one in said]


def _relay() -> RelayHint:
    return RelayHint("relay.example:443", fresh_key().peer)


@pytest.mark.virtual
async def test_relays_of_one_tokens_bearers_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    visitor = Visitor(monkeypatch)
    honest, ours = fresh_key().peer, _relay()
    visitor.trusted.add(honest)
    async with Owner() as owner:
        owner.start(visitor.client.serve(), name="relays")
        await asyncio.sleep(0.1)

        async def flood() -> None:
            for _ in range(2 * RELAY_VISITS.most):
                owner.start(visitor.call(fresh_key().peer, [_relay()]), name="call")
            await asyncio.sleep(1)

        await flood()
        assert len(visitor.client._lines) == RELAY_VISITS.most
        said = owner.start(visitor.call(honest, [ours]), name="call")
        await asyncio.sleep(1)
        assert ours in visitor.called
        await flood()
        assert ours in visitor.client._lines, "they displace their own"
        assert len(visitor.client._lines) == RELAY_VISITS.most
        assert "does not answer" in (await said)[0]
        owner.cancel()


@pytest.mark.virtual
async def test_one_peer_displaces_its_own_relays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_client_module, "MAX_VISITS", 4)
    visitor = Visitor(monkeypatch)
    hostile, honest, ours = fresh_key().peer, fresh_key().peer, _relay()  # let in by the same token
    async with Owner() as owner:
        owner.start(visitor.client.serve(), name="relays")
        await asyncio.sleep(0.1)
        owner.start(visitor.call(hostile, [_relay() for _ in range(4)]), name="call")
        await asyncio.sleep(0.1)
        owner.start(visitor.call(honest, [ours]), name="call")
        await asyncio.sleep(0.1)
        assert ours in visitor.called
        assert "too many" in (await visitor.call(hostile, [_relay()]))[0]
        assert ours in visitor.client._lines
        owner.cancel()


@pytest.mark.virtual
async def test_letters_of_many_keys_or_of_one_relay_do_not_push_out_those_of_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    visitor = Visitor(monkeypatch)
    member = fresh_key().peer
    visitor.trusted.add(member)
    hostile, honest = (cast(ControlConnection, SimpleNamespace(relay=_relay())) for _ in range(2))
    visitor.client.mail(hostile, Mail(member.raw, b"", b"one"))
    visitor.client.mail(honest, Mail(member.raw, b"", b"two"))
    for number in range(3 * MAIL_WAITING.most):
        visitor.client.mail(hostile, Mail(fresh_key().peer.raw, b"", b"noise"))
        visitor.client.mail(hostile, Mail(fresh_key().peer.raw, b"", b"noise"))
        if number % 2:  # forged: who sent it is the relay's word
            visitor.client.mail(hostile, Mail(member.raw, b"", b"forged"))
    got = [(await visitor.client.receive_mail()).blob for _ in range(MAIL_WAITING.most)]
    assert got.count(b"two") == 1
    assert got.count(b"noise") <= MAIL_WAITING.most / 2 + 1
