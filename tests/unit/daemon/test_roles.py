"""The roles stand in one table, and nothing else tells one from another by its name; a worker's library."""

import ast
import asyncio
import os
from pathlib import Path

from meshd.cli.main import VERBS
from meshd.daemon.roles import ROLES, OwnModels
from meshd.store.hash_cache import HashCache

from tests.rules.source import Source, sources


def compared(source: Source) -> list[str]:
    """Names of roles that something is compared with."""
    return [
        f"{source.path}:{node.lineno}"
        for node in source.nodes
        if isinstance(node, ast.Compare)
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and part.value in ROLES
    ]


def test_every_role_has_a_verb() -> None:
    assert set(ROLES) <= {verb.name for verb in VERBS}


def test_no_name_of_a_role_is_compared_with() -> None:
    asked = Source.of("x.py", 'if role == "serve" or role in ("worker", "x"): pass\nroles = {"worker": 1}')
    assert compared(asked) == ["x.py:1", "x.py:1"]
    found = [place for source in sources("meshd") for place in compared(source)]
    assert found == []


def test_a_workers_library_is_the_whole_models_in_meshds_own_folder(tmp_path: Path) -> None:
    """Not what is being pulled, not a model that lacks a shard, and nothing beside that folder."""
    folder = tmp_path / "models"
    whole = (folder / "demo.gguf", folder / "mesh-abc/pulled-00001-of-00002.gguf")
    others = (
        folder / "mesh-abc/pulled-00002-of-00002.gguf",
        folder / "cut-00001-of-00002.gguf",
        folder / ".parts/abc/coming.gguf",
        tmp_path / "beside.gguf",
    )
    for path in (*whole, *others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    library = OwnModels(folder, HashCache(tmp_path / "weights"))
    assert set(asyncio.run(library.paths())) == set(whole)
    assert asyncio.run(OwnModels(tmp_path / "none", library.hashes).paths()) == []
    if os.getuid() == 0:  # so that files can be another's
        os.chown(whole[0], 12345, 12345)
        assert whole[0] not in asyncio.run(library.paths()), "somebody else's"
