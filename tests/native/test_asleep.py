"""The cache that `python -m tests.native.asleep` lays out: all as in the user's, but for one program."""

from pathlib import Path

from meshd.build import cache as builds
from meshd.build.cache import BuildKey
from meshd.build.interface import MESH_MODULE, MESH_PROGRAM

from tests.native.asleep import lay_out

KEY = BuildKey("c" * 40, "cpu", "12345678", "d" * 64)


def test_only_the_server_is_another(tmp_path: Path) -> None:
    cache, folder = tmp_path / "cache", tmp_path / "laid-out"
    made = builds.folder_of(cache, KEY)
    made.mkdir(parents=True)
    for name in (MESH_PROGRAM, "mesh-server-asleep", MESH_MODULE):
        (made / name).write_text(name)
        (made / name).chmod(0o755)
    for other in ("native/llama", "models"):
        (cache / other).mkdir()
        (cache / other / "file").write_text(other)
    (cache / "native" / "lock").write_text("")
    folder.mkdir()
    lay_out(folder, cache, KEY)
    programs = builds.load(folder, KEY)
    assert programs[MESH_PROGRAM].read_text() == "mesh-server-asleep"
    assert programs[MESH_MODULE].read_text() == MESH_MODULE
    assert (folder / "native" / "llama" / "file").read_text() == "native/llama"
    assert (folder / "models" / "file").read_text() == "models"
    assert not (folder / "native" / "lock").exists()  # a lock of its own
