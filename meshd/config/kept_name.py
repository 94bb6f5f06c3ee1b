"""The name that a node was given, kept in its home for starts that give none (docs/config.md).

Other nodes know it by that name: a restart with a plain `meshd worker` would otherwise use the host's name.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from meshd.config.load import LoadedConfig
from meshd.config.tree import host_name
from meshd.identity import naming
from meshd.identity.folder import PrivateFolder

if TYPE_CHECKING:
    from meshd.identity.keystore import Home  # cryptography, which `config show` does without

_KEY = "node.name"


def with_kept_name(loaded: LoadedConfig) -> LoadedConfig:
    """Return `loaded` with the kept name where no option, variable or file gives one. Raises UserError."""
    if loaded.origin(_KEY) != "default":
        return loaded
    config = loaded.config
    name = _kept(config.paths.home)
    if not name:
        return loaded
    values = tuple(
        replace(value, value=name, origin=f"kept in {config.paths.home}")
        if value.setting.name == _KEY
        else value
        for value in loaded.values
    )
    return LoadedConfig(replace(config, node=replace(config.node, name=name)), values)


def keep_name(home: "Home", name: str) -> None:
    """Keep the name for the next start. The host's name alone is not kept: it is the default, and
    may change.
    """
    kept = _kept(home.path)
    if name != kept and (kept or name != host_name()):
        home.keep_blob(naming.NAME_BLOB, name.encode())


def _kept(home: Path) -> str:
    folder = PrivateFolder(home, mark="")
    data = folder.read(f"{naming.NAME_BLOB}.blob", limit=naming.MAX_NAME_CHARS)
    name = (data or b"").decode("ascii", "replace")
    return name if naming.is_name(name) else ""
