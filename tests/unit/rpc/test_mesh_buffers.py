"""What a mesh-server holds: what it has answered, not what its head has asked for."""

import pytest
from meshd.base.errors import RemoteProtocolError
from meshd.rpc import mesh_protocol as wire
from meshd.rpc.mesh_firewall import MeshFirewall

from tests.unit.rpc import mesh_talk as talk
from tests.unit.rpc.mesh_talk import BUFFER, ROOM, MeshTalk


def held(firewall: MeshFirewall) -> dict[int, int]:
    return dict(firewall.memory_held())


def test_buffers_count_once_the_server_has_made_them_and_until_they_are_freed() -> None:
    it = MeshTalk()
    assert held(it.firewall) == {0: ROOM}
    it.say(talk.allocate(2, 1, 100, identity=8) + talk.allocate(3, 1, 10, identity=9))
    assert held(it.firewall) == {0: ROOM}
    it.hear(talk.allocated(identity=8) + talk.allocated(0, identity=9))
    assert held(it.firewall) == {0: ROOM, 1: 100}
    with pytest.raises(RemoteProtocolError, match="buffer 3, which there is not"):
        it.say(talk.write(3))
    assert held(it.firewall) == {0: ROOM, 1: 100}


def test_what_is_freed_before_it_was_made_never_counts() -> None:
    it = MeshTalk()
    it.say(
        talk.allocate(2, 1, 100, identity=8) + talk.message(wire.FREE, 2) + talk.message(wire.FREE, BUFFER)
    )
    assert held(it.firewall) == {}
    it.hear(talk.allocated(identity=8))
    assert held(it.firewall) == {}
