"""Splits a GGUF file into parts as llama-gguf-split does: all keys in the first, tensors in order."""

import struct
from pathlib import Path

from gguf import GGUFReader
from meshd.model.gguf import DEFAULT_ALIGNMENT, TensorInfo

from tests.e2e.models import header_of
from tests.gguf_bytes import INT32, UINT16, string


def split(model: Path, folder: Path, name: str, parts: int) -> list[Path]:
    """Files `NAME-0000N-of-0000M.gguf` in `folder`."""
    header = header_of(model)
    data = model.read_bytes()
    first_tensor = GGUFReader(model).tensors[0].field.offset
    keys = data[24:first_tensor]  # behind magic, version and the two counts
    count = -(-len(header.tensors) // parts)
    paths = []
    for number in range(parts):
        own = header.tensors[number * count : (number + 1) * count]
        marks = _marks(number, parts, len(header.tensors))
        before = (keys, len(header.metadata)) if number == 0 else (b"", 0)
        path = folder / f"{name}-{number + 1:05d}-of-{parts:05d}.gguf"
        path.write_bytes(_file(before[0] + marks, before[1] + 3, own, data))
        paths.append(path)
    return paths


def _marks(number: int, parts: int, tensors: int) -> bytes:
    return (
        string("split.no")
        + struct.pack("<IH", UINT16, number)
        + string("split.count")
        + struct.pack("<IH", UINT16, parts)
        + string("split.tensors.count")
        + struct.pack("<Ii", INT32, tensors)
    )


def _file(keys: bytes, key_count: int, tensors: tuple[TensorInfo, ...], data: bytes) -> bytes:
    infos, body = b"", bytearray()
    for tensor in tensors:
        infos += string(tensor.name) + struct.pack("<I", len(tensor.dims))
        infos += b"".join(struct.pack("<Q", dim) for dim in tensor.dims)
        infos += struct.pack("<IQ", tensor.kind.number, len(body))
        body += data[tensor.offset : tensor.offset + tensor.size]
        body += bytes(-len(body) % DEFAULT_ALIGNMENT)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), key_count) + keys + infos
    return head + bytes(-len(head) % DEFAULT_ALIGNMENT) + bytes(body)
