"""A copy of sources that a build folder compiles from, as cmake ties one to the path of its source."""

from pathlib import Path


def renew(copy: Path, sources: Path) -> None:
    """Make `copy` equal to the folder `sources`. Raises OSError.

    What is the same stays untouched, so that it is not compiled again. What differs gets the time of now: one
    of its own, which may be older than what was compiled of another version, would be taken for compiled.
    """
    wanted = {path.relative_to(sources) for path in sources.rglob("*") if path.is_file()}
    folders = {folder for name in wanted for folder in name.parents}
    # first what goes, what is in a folder before it: a file may take the place of a folder, or the other way
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
