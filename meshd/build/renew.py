"""Keeps a copy of sources up to date: cmake binds a build folder to the path of its sources."""

from pathlib import Path


def renew(copy: Path, sources: Path) -> None:
    """Make `copy` equal to the folder `sources`. Raises OSError.

    Equal files stay untouched, so that they are not compiled again. A changed file gets the current time:
    with the time of its source, it could be older than an object of another version, and would be skipped.
    """
    wanted = {path.relative_to(sources) for path in sources.rglob("*") if path.is_file()}
    folders = {folder for name in wanted for folder in name.parents}
    # delete first, and a folder's content before the folder: a file may replace a folder, or a folder a file
    for place in sorted(copy.rglob("*"), reverse=True):
        name = place.relative_to(copy)
        if not place.is_dir():
            if name not in wanted:
                place.unlink()
        elif name not in folders:
            place.rmdir()
    for name in wanted:
        place, content = copy / name, (sources / name).read_bytes()
        if not (place.is_file() and place.read_bytes() == content):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
