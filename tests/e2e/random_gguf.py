"""Writes small GGUF models with seeded random weights: metadata, a tokenizer of its own, tensors.

The weights are scaled so that every layer, every expert and the whole context have a say in the next token:
embeddings are small beside what the layers add, and queries and keys large enough for sharp attention.
"""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quantize

Values: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float32]]"

F32 = GGMLQuantizationType.F32
F16 = GGMLQuantizationType.F16
Q8_0 = GGMLQuantizationType.Q8_0
Q4_0 = GGMLQuantizationType.Q4_0
MXFP4 = GGMLQuantizationType.MXFP4

VOCABULARY = 1024
_EMBEDDING_SCALE = 0.05
_SILENT_SCALE = 0.001  # rows of tokens that no text should have: their logits are never the largest
_CONTEXT = 4096
_SPACE = "▁"  # what a sentencepiece vocabulary has for a space


class RandomModel:
    """One file in the making. `kind` is the type of its matrices; vectors and convolutions are always F32."""

    def __init__(
        self, path: Path, architecture: str, *, width: int, layers: int, kind: GGMLQuantizationType
    ) -> None:
        self._writer = GGUFWriter(path, architecture)
        self._architecture = architecture
        self._kind = kind
        self._random = np.random.default_rng(zlib.crc32(architecture.encode()))
        self.width = width
        self.layers = layers
        self._writer.add_name(f"random {architecture}")
        self._writer.add_vocab_size(VOCABULARY)
        self.integer("block_count", layers)
        self.integer("context_length", _CONTEXT)
        self.integer("embedding_length", width)
        self._silent = _write_tokenizer(self._writer)

    def integer(self, key: str, value: int) -> None:
        self._writer.add_uint32(f"{self._architecture}.{key}", value)

    def integers(self, key: str, values: Sequence[int]) -> None:
        """One for each layer."""
        self._writer.add_array(f"{self._architecture}.{key}", list(values))

    def real(self, key: str, value: float) -> None:
        self._writer.add_float32(f"{self._architecture}.{key}", value)

    def matrix(
        self,
        name: str,
        *shape: int,
        gain: float = 1.0,
        kind: GGMLQuantizationType | None = None,
    ) -> None:
        """`shape` as llama.cpp has it, rows first; `gain`: the size of a result for inputs of size one."""
        values = self._normal(shape) * np.float32(gain / np.sqrt(shape[0]))
        self._add(f"{name}.weight", values, self._kind if kind is None else kind)

    def vector(self, name: str, *shape: int, centre: float = 0.0, spread: float = 0.1) -> None:
        """F32, around `centre`; the name is whole."""
        self._add(name, np.float32(centre) + np.float32(spread) * self._normal(shape), F32)

    def decay(self, name: str, *shape: int, most: float = 8.0) -> None:
        """F32, from -`most` to -1: how fast a state forgets."""
        size = tuple(reversed(shape))
        self._add(name, -np.exp(self._random.random(size, np.float32) * np.float32(np.log(most))), F32)

    def norm(self, name: str, width: int = 0, *, centre: float = 1.0) -> None:
        """The weights of a norm over `width` elements (0: the model's width)."""
        self.vector(f"{name}.weight", width or self.width, centre=centre)

    def vocabulary(self, name: str) -> None:
        """A matrix with a row for each token; those that no text should have are silent."""
        values = self._normal((self.width, VOCABULARY)) * np.float32(_EMBEDDING_SCALE)
        values[: self._silent] *= np.float32(_SILENT_SCALE)
        self._add(f"{name}.weight", values, self._kind)

    def finish(self) -> None:
        """Write the file."""
        self._writer.write_header_to_file()
        self._writer.write_kv_data_to_file()
        self._writer.write_tensors_to_file()
        self._writer.close()

    def _normal(self, shape: Sequence[int]) -> Values:
        return self._random.standard_normal(tuple(reversed(shape)), np.float32)

    def _add(self, name: str, values: Values, kind: GGMLQuantizationType) -> None:
        self._writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)


def _write_tokenizer(writer: GGUFWriter) -> int:
    """Sentencepiece: any text can be told apart from its bytes, any answer is readable words.

    Words are never merged from letters, so a prompt has as many tokens as letters. Returns how many tokens
    at the beginning are no text: control tokens and bytes.
    """
    control = ["<unk>", "<s>", "</s>"]
    raw = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = [_SPACE, *(chr(code) for code in range(0x21, 0x7F))]
    syllables = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
    words = [f"{_SPACE}{one}{two}" for one in syllables for two in syllables]
    tokens = [*control, *raw, *letters, *words][:VOCABULARY]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * len(raw)]
    kinds += [TokenType.NORMAL] * (VOCABULARY - len(kinds))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(number) for number in range(VOCABULARY)])
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    return len(control) + len(raw)
