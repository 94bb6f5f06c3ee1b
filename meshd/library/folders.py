"""Folders of GGUF files: LM Studio's, `~/.models`, meshd's cache, and one that the user names."""

from collections.abc import Iterator
from pathlib import Path

from meshd.base.errors import UserError
from meshd.library.interface import ModelSource, StoredModel
from meshd.library.walk import files_below
from meshd.model.gguf_names import GgufFile, models_in

_LM_STUDIO_DEPTH = 4  # LM Studio's have PUBLISHER/REPO/FILE


def lm_studio_folders() -> list[Path]:
    """Of present and earlier versions."""
    return [Path(text).expanduser() for text in ("~/.lmstudio/models", "~/.cache/lm-studio/models")]


def models_folder() -> Path:
    """Where people put files themselves."""
    return Path("~/.models").expanduser()


def all_models(folder: Path, source: ModelSource) -> Iterator[StoredModel]:
    """Every model below the folder, named by its path."""
    files = files_below(folder, depth=_LM_STUDIO_DEPTH)
    for model in models_in(GgufFile(path.relative_to(folder).as_posix(), size) for path, size in files):
        missing = model.missing
        paths = tuple(folder / file.path for file in model.files)
        yield StoredModel(
            name=str(paths[0]),
            source=source,
            paths=paths,
            size=model.size,
            stem=model.name.rpartition("/")[2],
            quant=model.quant,
            problem=f"missing: {missing[0].rpartition('/')[2]}" if missing else "",
        )


def only_model(folder: Path) -> StoredModel:
    """The folder's one model. Raises UserError when it has none, or several."""
    found = list(all_models(folder, ModelSource.PATH))
    if not found:
        raise UserError(
            f"`{folder}` has no model: no file in it ends in `.gguf`", hint="give the path of a GGUF file"
        )
    if len(found) > 1:
        names = [f"`{one.paths[0].relative_to(folder)}`" for one in found]
        more = f" and {len(names) - 12} more" if len(names) > 12 else ""
        raise UserError(
            f"`{folder}` has several models: {', '.join(names[:12])}{more}",
            hint=f"give the path of one: `{found[0].paths[0]}`",
        )
    return found[0]
