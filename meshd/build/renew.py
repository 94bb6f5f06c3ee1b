"""A copy of sources that a build folder compiles from, as cmake ties one to the path of its source."""

from pathlib import Path


def renew(copy: Path, sources: Path) -> None:
    """Make `copy` equal to the folder `sources`. Raises OSError.

    What is the same stays untouched, so that it is not compiled again. What differs gets the time of now: one
    of its own, which may be older than what was compiled of another version, would be taken for compiled.
    """
    wanted = {path.relative_to(sources) for path in sources.rglob("*") if path.is_file()}
    for name in wanted:
        place, content = copy / name, (sources / name).read_bytes()
        if not (place.is_file() and place.read_bytes() == content):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
    for place in [path for path in copy.rglob("*") if path.is_file()]:
        if place.relative_to(copy) not in wanted:
            place.unlink()
