"""Tensor types of ggml with the bytes of a row of each, and the names of quantisations of files.

The numbers are those of `ggml/include/ggml.h` (enum) and `ggml/src/ggml-common.h` (block layouts) of the
pinned upstream commit. Types that upstream removed (4, 5, 31 to 33, 36 to 38) are absent, so a file that uses
one is refused by name rather than misread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor type: `block_elements` weights are stored in `block_bytes` bytes; a row has whole blocks."""

    number: int
    name: str
    block_elements: int
    block_bytes: int

    @property
    def quantized(self) -> bool:
        return self.block_elements > 1

    def row_bytes(self, elements: int) -> int:
        """Return the bytes of one row; `elements` must be a multiple of `block_elements`."""
        return elements // self.block_elements * self.block_bytes

    def tensor_bytes(self, dims: Sequence[int]) -> int:
        """Return the bytes of a tensor without padding, as `ggml_nbytes` of a contiguous one."""
        rows = 1
        for size in dims[1:]:
            rows *= size
        return self.row_bytes(dims[0] if dims else 1) * rows


F32, Q4_0 = 0, 2  # the types that code names
_TABLE: tuple[tuple[int, str, int, int], ...] = (
    (0, "f32", 1, 4),
    (1, "f16", 1, 2),
    (2, "q4_0", 32, 18),
    (3, "q4_1", 32, 20),
    (6, "q5_0", 32, 22),
    (7, "q5_1", 32, 24),
    (8, "q8_0", 32, 34),
    (9, "q8_1", 32, 36),
    (10, "q2_k", 256, 84),
    (11, "q3_k", 256, 110),
    (12, "q4_k", 256, 144),
    (13, "q5_k", 256, 176),
    (14, "q6_k", 256, 210),
    (15, "q8_k", 256, 292),
    (16, "iq2_xxs", 256, 66),
    (17, "iq2_xs", 256, 74),
    (18, "iq3_xxs", 256, 98),
    (19, "iq1_s", 256, 50),
    (20, "iq4_nl", 32, 18),
    (21, "iq3_s", 256, 110),
    (22, "iq2_s", 256, 82),
    (23, "iq4_xs", 256, 136),
    (24, "i8", 1, 1),
    (25, "i16", 1, 2),
    (26, "i32", 1, 4),
    (27, "i64", 1, 8),
    (28, "f64", 1, 8),
    (29, "iq1_m", 256, 56),
    (30, "bf16", 1, 2),
    (34, "tq1_0", 256, 54),
    (35, "tq2_0", 256, 66),
    (39, "mxfp4", 32, 17),
    (40, "nvfp4", 64, 36),
    (41, "q1_0", 128, 18),
    (42, "q2_0", 64, 18),
)

TENSOR_TYPES: Mapping[int, TensorType] = {row[0]: TensorType(*row) for row in _TABLE}
TENSOR_TYPE_NAMES: Mapping[str, TensorType] = {kind.name: kind for kind in TENSOR_TYPES.values()}


# by `general.file_type`, as in `llama_ftype` of the pinned source
FILE_TYPES: Mapping[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
    39: "NVFP4",
    40: "Q1_0",
    41: "Q2_0",
}
