"""Test what a node keeps in its home when it starts."""

from pathlib import Path

from meshd.identity.naming import NAME_BLOB

from tests.unit.daemon.test_joining import Machine


async def test_the_name_of_a_node_is_kept_in_its_home(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "garage")
    member = await machine.enter()
    assert machine.home.read_blob(NAME_BLOB) == b"garage"
    member.mesh_port.close()
