"""Files with only the header of a model, as a pull leaves them."""

from functools import cache
from pathlib import Path

from blake3 import blake3
from meshd.library.pulled_models import note_names
from meshd.model.gguf_names import HEADER_SUFFIX, file_names
from meshd.model.model_name import MeshName
from meshd.model.weights_index import fingerprint
from meshd.store.hash_cache import FileState
from meshd.store.header_file import HeaderFile, HeaderNote, present_tensors, write_note

from tests.gguf_bytes import parse


@cache
def hashes_of(data: bytes) -> tuple[bytes, ...]:
    """Return the hashes of all tensors of a model."""
    tensors = parse(data).tensors
    return tuple(blake3(data[one.offset : one.offset + one.size]).digest() for one in tensors)


def with_holes(folder: Path, *files: bytes, stem: str = "tiny-Q4_0") -> Path:
    """`STEM.header` of this model in a folder, with what is noted of it; of several files, the first one."""
    headers = [parse(data) for data in files]
    paths = [folder / name for name in file_names(stem, len(files), HEADER_SUFFIX)]
    folder.mkdir(parents=True, exist_ok=True)
    for path, header, data in zip(paths, headers, files, strict=True):
        with path.open("wb") as file:
            file.write(data[: header.data_offset])
            for one in present_tensors(header):
                file.seek(one.offset)
                file.write(data[one.offset : one.offset + one.size])
            file.truncate(len(data))
    digests = [hashes_of(data) for data in files]
    note = HeaderNote(
        name=stem,
        node="desk",
        content=b"c" * 32,
        fingerprint=fingerprint(headers, digests),
        digests=tuple(digest for some in digests for digest in some),
        states=tuple(map(FileState.at, paths)),
    )
    write_note(paths[0], note)
    note_names(folder, [MeshName(stem)])
    return paths[0]


async def opens(path: Path) -> None:
    """As a head does."""
    (await HeaderFile.open_header(path)).close()
