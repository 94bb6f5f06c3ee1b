"""A member at a relay: whatever it asks there, the relay's decisions keep their bounds."""

import random

from meshd.base.errors import MeshdError
from meshd.identity.keys import KeyPair
from meshd.relay.switchboard import SMALL, NodeIdentity, Switchboard, Tell
from meshd.wire.relay import Mail, decode_from_node

from tests.hostile.draw import Draw, Pool, drawn_seed
from tests.hostile.words import Speech

WORDS = 12_000
VISITS = 40
MESH = bytes(32)
HONEST = tuple(KeyPair.from_seed(bytes([number]) * 32).peer.raw for number in (1, 2))
HOSTILE = KeyPair.from_seed(bytes(32)).peer.raw


def test_a_relay_bears_any_member() -> None:
    rng = random.Random(drawn_seed())
    speech = Speech(rng, Draw(rng, Pool(blobs=(*HONEST, HOSTILE, bytes(16)))))
    taken = told = 0
    for _ in range(VISITS):
        board, now = Switchboard(SMALL, random=rng.randbytes), 1000.0
        for client, peer in enumerate(HONEST):
            board.enter(client, NodeIdentity(peer, MESH), host="192.0.2.1", seen="192.0.2.1:1", now=now)
        mine = NodeIdentity(HOSTILE, rng.choice((MESH, b"")))
        board.enter(9, mine, host="192.0.2.2", seen="192.0.2.2:1", now=now)
        for _ in range(WORDS // VISITS):
            try:
                message = decode_from_node(speech.say(speech.of("relay")))
            except MeshdError:
                continue
            taken += 1
            for action in board.receive(9, message, now):
                told += isinstance(action, Tell)
                if isinstance(action, Tell) and isinstance(action.message, Mail):
                    assert action.message.sender == HOSTILE
            now += 0.1
            assert board.mail_bytes <= SMALL.mail_bytes
            assert board.boxes <= SMALL.boxes
            assert board.circuits <= SMALL.circuits_of_key
        board.sweep(now)
    assert taken > WORDS / 10
    assert told
