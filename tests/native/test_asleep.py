"""The cache that `python -m tests.native.asleep` lays out: all as in the user's, but for one program."""

from pathlib import Path

from meshd.build.interface import MESH_MODULE, MESH_PROGRAM

from tests.native.asleep import lay_out


def test_only_the_server_is_another(tmp_path: Path) -> None:
    cache, folder = tmp_path / "cache", tmp_path / "laid-out"
    made = cache / "native" / "mesh-1"
    for name in (MESH_PROGRAM, "mesh-server-asleep", MESH_MODULE):
        made.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(name)
    for other in ("native/stock", "models"):
        (cache / other).mkdir()
        (cache / other / "file").write_text(other)
    (cache / "native" / "lock").write_text("")
    folder.mkdir()
    lay_out(folder, cache, made)
    assert (folder / "native" / "mesh-1" / MESH_PROGRAM).read_text() == "mesh-server-asleep"
    assert (folder / "native" / "mesh-1" / MESH_MODULE).read_text() == MESH_MODULE
    assert (folder / "native" / "stock" / "file").read_text() == "native/stock"
    assert (folder / "models" / "file").read_text() == "models"
    assert not (folder / "native" / "lock").exists()  # a lock of its own
