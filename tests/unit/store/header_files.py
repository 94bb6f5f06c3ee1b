"""Files with only the header of a model, as a pull leaves them."""

from functools import cache
from pathlib import Path

from blake3 import blake3
from meshd.library.pulled_names import note_names
from meshd.model.model_name import MeshName
from meshd.model.weights_index import fingerprint
from meshd.store.hash_cache import FileState
from meshd.store.header_file import HeaderNote, present_tensors, write_note

from tests.gguf_bytes import parse


@cache
def hashes_of(data: bytes) -> tuple[bytes, ...]:
    """Of all tensors of a model."""
    tensors = parse(data).tensors
    return tuple(blake3(data[one.offset : one.offset + one.size]).digest() for one in tensors)


def with_holes(folder: Path, data: bytes, *, stem: str = "tiny-Q4_0") -> Path:
    """`STEM.header` of this model in a folder, with what is noted of it."""
    header = parse(data)
    path = folder / f"{stem}.header"
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(data[: header.data_offset])
        for one in present_tensors(header):
            file.seek(one.offset)
            file.write(data[one.offset : one.offset + one.size])
        file.truncate(len(data))
    digests = hashes_of(data)
    note = HeaderNote(
        name=stem,
        node="desk",
        content=b"c" * 32,
        fingerprint=fingerprint([header], [digests]),
        digests=digests,
        state=FileState.at(path),
    )
    write_note(path, note)
    note_names(folder, [MeshName(stem)])
    return path
