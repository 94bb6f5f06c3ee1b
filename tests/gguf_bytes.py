"""Make small GGUF files in memory for tests: well-formed ones, and pieces to break."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshd.model.ggml import TENSOR_TYPE_NAMES
from meshd.model.gguf import Header, read_header

UINT8, UINT16, INT32, UINT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 0, 2, 5, 4, 6, 7, 8, 9, 10
_LAYOUT = {UINT8: "<B", UINT16: "<H", INT32: "<i", UINT32: "<I", FLOAT32: "<f", BOOL: "<?", UINT64: "<Q"}
_CYCLE = bytes(range(251))  # what tensors are filled with; a prime, so that neighbouring blocks differ


@dataclass(frozen=True, slots=True)
class Tensor:
    """`dims` innermost first, as in the file."""

    name: str
    dims: tuple[int, ...]
    kind: str = "f32"
    fill: int = 1


Plain = bool | int | float | str | Sequence[int] | Sequence[str]


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def value(item: Plain) -> bytes:
    """Type and value bytes; ints become uint32, lists arrays."""
    if isinstance(item, bool):
        return struct.pack("<I?", BOOL, item)
    if isinstance(item, int):
        return struct.pack("<II", UINT32, item)
    if isinstance(item, float):
        return struct.pack("<If", FLOAT32, item)
    if isinstance(item, str):
        return struct.pack("<I", STRING) + string(item)
    if item and isinstance(item[0], str):
        return struct.pack("<IIQ", ARRAY, STRING, len(item)) + b"".join(string(str(text)) for text in item)
    kind = BOOL if item and isinstance(item[0], bool) else INT32
    return struct.pack("<IIQ", ARRAY, kind, len(item)) + b"".join(
        struct.pack(_LAYOUT[kind], number) for number in item
    )


def key_value(key: str, item: Plain) -> bytes:
    return string(key) + value(item)


def gguf(
    metadata: Mapping[str, Plain],
    tensors: Sequence[Tensor] = (),
    *,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """A whole file; each tensor is filled with bytes that depend on its name and `fill`."""
    parts = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(metadata))]
    parts += [key_value(key, item) for key, item in metadata.items()]
    data = bytearray()
    for tensor in tensors:
        kind = TENSOR_TYPE_NAMES[tensor.kind]
        parts.append(string(tensor.name) + struct.pack("<I", len(tensor.dims)))
        parts.append(b"".join(struct.pack("<Q", dim) for dim in tensor.dims))
        parts.append(struct.pack("<IQ", kind.number, len(data)))
        size = kind.tensor_bytes(tensor.dims)
        first = (sum(tensor.name.encode()) + tensor.fill) % len(_CYCLE)
        data += (_CYCLE * (size // len(_CYCLE) + 2))[first : first + size]
        data += bytes(-len(data) % alignment)
    header = b"".join(parts)
    return header + bytes(-len(header) % alignment) + bytes(data)


def parse(data: bytes, *, label: str = "test.gguf") -> Header:
    return read_header(lambda offset, length: data[offset : offset + length], size=len(data), label=label)


def language_model(
    *,
    architecture: str = "llama",
    layers: int = 4,
    width: int = 32,
    vocabulary: int = 64,
    tied: bool = True,
    extra: Mapping[str, Plain] | None = None,
    fill: int = 1,
) -> tuple[dict[str, Plain], list[Tensor]]:
    """Metadata and tensors of a tiny model with the tensors that a planner looks at."""
    name = architecture
    metadata: dict[str, Plain] = {
        "general.architecture": name,
        "general.name": "tiny",
        f"{name}.block_count": layers,
        f"{name}.context_length": 4096,
        f"{name}.embedding_length": width,
        f"{name}.feed_forward_length": 2 * width,
        f"{name}.attention.head_count": 4,
        f"{name}.attention.head_count_kv": 2,
        "tokenizer.ggml.tokens": [f"t{number}" for number in range(vocabulary)],
    }
    metadata.update(extra or {})
    tensors = [Tensor("token_embd.weight", (width, vocabulary), fill=fill)]
    for layer in range(layers):
        tensors.append(Tensor(f"blk.{layer}.attn_norm.weight", (width,), fill=fill))
        tensors.append(Tensor(f"blk.{layer}.attn_q.weight", (width, width), "q8_0", fill=fill))
    tensors.append(Tensor("output_norm.weight", (width,), fill=fill))
    if not tied:
        tensors.append(Tensor("output.weight", (width, vocabulary), fill=fill))
    return metadata, tensors
