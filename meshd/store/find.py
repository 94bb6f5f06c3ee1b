"""From what a user wrote after `--model` to the path of a file."""

import os
from collections.abc import Mapping
from pathlib import Path

from meshd.base.errors import UserError


def find_model(given: str, *, known: Mapping[str, Path] | None = None) -> Path:
    """The absolute path of the model `given`: a path, or one of the names in `known`.

    The path is not resolved further: shards and people go by the name that was given. Whether the file can be
    used is found when it is opened. Raises UserError when `given` is neither.
    """
    known = known or {}
    if given in known:
        return known[given]
    path = Path(given).expanduser() if given.startswith("~") else Path(given)
    if given and "\0" not in given:
        path = path.absolute()
        if path.exists() or os.sep in given or given.endswith(".gguf"):
            return path
    names = ", ".join(f"`{name}`" for name in known)
    raise UserError(
        f"no model `{given}`: there is no such file"
        + (f", and the known names are {names}" if known else ""),
        hint="give the path of a *.gguf file",
    )
