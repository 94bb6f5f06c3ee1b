"""Commands, layouts and operations of llama.cpp's RPC protocol: what changes with upstream or our patches.

Layouts: ggml/src/ggml-rpc/ggml-rpc.cpp of the pinned upstream (protocol 7.0) and native/patches, all packed
and little endian. A request is command (1 byte), size (8 bytes) and body; an answer is size and body, in the
order of the requests. Operations: the enums of ggml/include/ggml.h. What is not listed here is refused.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass

REQUEST = struct.Struct("<BQ")
ANSWER = struct.Struct("<Q")

NO_ANSWER = -1
BY_REQUEST = -2  # as long as the request says

TENSOR_BYTES = 296
SET_TENSOR_HEAD_BYTES = TENSOR_BYTES + 9  # tensor, cache flag, offset
MAX_SOURCES = 10
MAX_GRAPH_TENSORS = 32_768  # those of the largest models are about 10,000; each takes about 3 µs to check
MAX_LOAD_TENSORS = 4096  # RPC_LOAD_MAX_TENSORS
GRAPH_HEAD_BYTES = 8
GRAPH_MOST_BYTES = GRAPH_HEAD_BYTES + 4 + MAX_GRAPH_TENSORS * (8 + TENSOR_BYTES)
LOAD_HEAD_BYTES = 8
LOAD_ENTRY_BYTES = 140
MAX_ASKED_OPS = 4096  # RPC_MAX_ASKED_OPS
MAX_HALF_ROW = 1 << 20  # RPC_HALF_MAX_ROW, values

# rpc_tensor: id, type, buffer, ne[4], nb[4], op, op_params[16], flags, src[10], view_src, view_offs, data,
# name[64], use_count. PLACE is where it lies: type, buffer, ne, nb, data. NODE has what a graph is made of:
# id, type, buffer, ne, nb, op, op_params[0], src, view_src, data.
PLACE = struct.Struct("<8xIQ8I168xQ68x")
NODE = struct.Struct("<QIQ8III64x10QQ8xQ68x")
LOAD_ENTRY = struct.Struct("<QQQI4I96x")  # buffer, data, size, type, ne; then hash and name
LOAD_HASH, LOAD_NAME = slice(44, 76), slice(76, 140)
ASKED_HEAD = struct.Struct("<4I")  # device, operations, tensors, 0
ASKED_OP = struct.Struct("<II64x")  # operation, a bit for each source; then its parameters
ASKED_TENSOR_BYTES = 36  # type, ne, nb
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
PAIR32 = struct.Struct("<II")
ALLOCATE = struct.Struct("<IQ")  # device, size
ALLOCATE_AS = struct.Struct("<I4xQQ")  # device, size, handle
PAIR64 = struct.Struct("<QQ")
REGION = struct.Struct("<QQ")  # offset, size: behind the tensor of GET_TENSOR and MEMSET_TENSOR

ALLOC_BUFFER, GET_ALIGNMENT, GET_MAX_SIZE, BUFFER_GET_BASE, FREE_BUFFER, BUFFER_CLEAR = range(6)
SET_TENSOR, SET_TENSOR_HASH, GET_TENSOR, COPY_TENSOR, GRAPH_COMPUTE, GET_DEVICE_MEMORY = range(6, 12)
INIT_TENSOR, GET_ALLOC_SIZE, HELLO, DEVICE_COUNT, GRAPH_RECOMPUTE, MEMSET_TENSOR = range(12, 18)
SET_TENSOR_GGUF, ALLOC_BUFFER_AS = 64, 65
PEER_CHECK, PUSH_TENSOR, TAKE_TENSOR, PEER_SESSION = range(66, 70)
PEER_HELLO, PEER_DATA = 70, 71  # from one server to the next, on connections of their own
SUPPORTED_OPS = 72
# As those without F16, for a whole tensor of F32 whose data are half rows: of each row its exponent and its
# values, words of 16 bits (docs/native.md).
SET_TENSOR_F16, GET_TENSOR_F16, PUSH_TENSOR_F16, TAKE_TENSOR_F16 = range(73, 77)

# HELLO's conn_caps: only a transport other than TCP uses the first bytes; then magic and feature bits
CAPS_BYTES = 24
CAPS_OWN = 20
EXTENSION_MAGIC = b"\x4d\x44"
FEATURE_LOAD, FEATURE_INFO, FEATURE_ALLOC, FEATURE_PUSH, FEATURE_OPS = 1, 2, 4, 8, 16
FEATURE_F16 = 32
DEVICE_INFO_BYTES = 40  # of each device, in the message behind the answer to HELLO, with FEATURE_INFO
MAX_INFO_DEVICES = 256
# with FEATURE_OPS behind that, for each device as often: operation, what types of weights it can take
WEIGHT_OP_BYTES = 24
MAX_WEIGHT_OPS = 101  # for each device: there are no more operations
# both tables, by a number in place of an answer's length: bytes of a row, most rows
DEVICES, WEIGHT_OPS = -1, -2
TABLES: Mapping[int, tuple[int, int]] = {
    DEVICES: (DEVICE_INFO_BYTES, MAX_INFO_DEVICES),
    WEIGHT_OPS: (WEIGHT_OP_BYTES, MAX_INFO_DEVICES * MAX_WEIGHT_OPS),
}

SECRET_BYTES = 32  # what a client shows first where the server was given one (docs/native.md)
SESSION_BYTES = 16  # what a client calls itself, so that two servers know that it is the same one
CHECK = struct.Struct("<II")  # number of the neighbour, 0; then the session
PUSH = struct.Struct("<QQQII")  # offset, size, token, number, 0: behind the tensor of PUSH_TENSOR
TAKE = struct.Struct("<QQQ")  # offset, size, token: behind that of TAKE_TENSOR
PEER_SERVED = ANSWER.pack(1) + b"\1"  # the answer to PEER_HELLO
PEER_DATA_HEAD_BYTES = 8  # its token
MAX_PEER_DATA_BYTES = 64 << 20  # what a server keeps for tensors that are not asked for yet


# ALLOC_BUFFER_AS: the handle is the client's choice, and the address at which it takes the buffer to begin
HANDLE_SPACE = 1 << 44
HANDLES_OWN = 1 << 18  # of the numbers below this, which are the handles divided by HANDLE_SPACE


@dataclass(frozen=True, slots=True)
class Command:
    """A body of `least` to `most` bytes, `most` 0 for exactly `least`; `held` are judged before any goes on.

    `feature` is the bit of HELLO without which nobody may send it.
    """

    name: str
    least: int
    answer: int
    most: int = 0
    held: int = 0  # 0: all of it
    feature: int = 0


_HUGE = 1 << 62

COMMANDS: Mapping[int, Command] = {
    ALLOC_BUFFER: Command("ALLOC_BUFFER", ALLOCATE.size, 16),
    GET_ALIGNMENT: Command("GET_ALIGNMENT", 4, 8),
    GET_MAX_SIZE: Command("GET_MAX_SIZE", 4, 8),
    BUFFER_GET_BASE: Command("BUFFER_GET_BASE", 8, 8),
    FREE_BUFFER: Command("FREE_BUFFER", 8, NO_ANSWER),
    BUFFER_CLEAR: Command("BUFFER_CLEAR", 9, NO_ANSWER),
    # tensor, cache flag, offset, data, which flows through
    SET_TENSOR: Command(
        "SET_TENSOR", SET_TENSOR_HEAD_BYTES, NO_ANSWER, most=_HUGE, held=SET_TENSOR_HEAD_BYTES
    ),
    # tensor, offset, hash
    SET_TENSOR_HASH: Command("SET_TENSOR_HASH", TENSOR_BYTES + 16, 1),
    GET_TENSOR: Command("GET_TENSOR", TENSOR_BYTES + REGION.size, BY_REQUEST),
    COPY_TENSOR: Command("COPY_TENSOR", 2 * TENSOR_BYTES, 1),
    # device, number of nodes, their ids, number of tensors, tensors
    GRAPH_COMPUTE: Command("GRAPH_COMPUTE", GRAPH_HEAD_BYTES + 4, NO_ANSWER, most=GRAPH_MOST_BYTES),
    GET_DEVICE_MEMORY: Command("GET_DEVICE_MEMORY", 4, 16),
    INIT_TENSOR: Command("INIT_TENSOR", TENSOR_BYTES, NO_ANSWER),
    # device, tensor, its sources
    GET_ALLOC_SIZE: Command("GET_ALLOC_SIZE", 4 + (1 + MAX_SOURCES) * TENSOR_BYTES, 8),
    HELLO: Command("HELLO", CAPS_BYTES, 4 + CAPS_BYTES),
    DEVICE_COUNT: Command("DEVICE_COUNT", 0, 4),
    GRAPH_RECOMPUTE: Command("GRAPH_RECOMPUTE", 4, NO_ANSWER),
    # tensor, region, value
    MEMSET_TENSOR: Command("MEMSET_TENSOR", TENSOR_BYTES + REGION.size + 1, NO_ANSWER),
    # number of entries, 0, entries
    SET_TENSOR_GGUF: Command(
        "SET_TENSOR_GGUF",
        LOAD_HEAD_BYTES,
        BY_REQUEST,
        most=LOAD_HEAD_BYTES + MAX_LOAD_TENSORS * LOAD_ENTRY_BYTES,
        feature=FEATURE_LOAD,
    ),
    # head, operations, and for each of them its result and its sources; the answer has a byte for each
    SUPPORTED_OPS: Command(
        "SUPPORTED_OPS",
        ASKED_HEAD.size,
        BY_REQUEST,
        most=ASKED_HEAD.size + MAX_ASKED_OPS * (ASKED_OP.size + (1 + MAX_SOURCES) * ASKED_TENSOR_BYTES),
        feature=FEATURE_OPS,
    ),
    # the answer is the size, 0 without memory for it
    ALLOC_BUFFER_AS: Command("ALLOC_BUFFER_AS", ALLOCATE_AS.size, 8, feature=FEATURE_ALLOC),
    PEER_CHECK: Command("PEER_CHECK", CHECK.size + SESSION_BYTES, 1, feature=FEATURE_PUSH),
    PUSH_TENSOR: Command("PUSH_TENSOR", TENSOR_BYTES + PUSH.size, NO_ANSWER, feature=FEATURE_PUSH),
    TAKE_TENSOR: Command("TAKE_TENSOR", TENSOR_BYTES + TAKE.size, NO_ANSWER, feature=FEATURE_PUSH),
    SET_TENSOR_F16: Command(
        "SET_TENSOR_F16",
        SET_TENSOR_HEAD_BYTES,
        NO_ANSWER,
        most=_HUGE,
        held=SET_TENSOR_HEAD_BYTES,
        feature=FEATURE_F16,
    ),
    GET_TENSOR_F16: Command("GET_TENSOR_F16", TENSOR_BYTES + REGION.size, BY_REQUEST, feature=FEATURE_F16),
    PUSH_TENSOR_F16: Command(
        "PUSH_TENSOR_F16", TENSOR_BYTES + PUSH.size, NO_ANSWER, feature=FEATURE_F16 | FEATURE_PUSH
    ),
    TAKE_TENSOR_F16: Command(
        "TAKE_TENSOR_F16", TENSOR_BYTES + TAKE.size, NO_ANSWER, feature=FEATURE_F16 | FEATURE_PUSH
    ),
    PEER_SESSION: Command("PEER_SESSION", SESSION_BYTES, NO_ANSWER, feature=FEATURE_PUSH),
}

# What became of an entry of SET_TENSOR_GGUF (ggml-rpc.h)
LOADED, NO_SUCH_HASH, TYPE_OR_SIZE, UNREADABLE, FILE_CHANGED = range(5)

CPY = 34
VIEWS = frozenset({36, 37, 38, 39})  # RESHAPE, VIEW, PERMUTE, TRANSPOSE: nothing is computed
UNARY, GLU = 91, 100
KINDS_OF: Mapping[int, int] = {UNARY: 22, GLU: 7}  # op_params[0] is below this, or the server aborts

OPERATIONS: Mapping[int, int] = {
    # operation: how many of its first sources there must be. Absent are those that call a function by address
    # (MAP_CUSTOM, CUSTOM) and those of training.
    0: 0,  # NONE: a leaf
    1: 1,  # DUP
    2: 2,  # ADD
    3: 3,  # ADD_ID
    4: 2,  # ADD1
    5: 2,  # ACC
    6: 2,  # SUB
    7: 2,  # MUL
    8: 2,  # DIV
    9: 1,  # SQR
    10: 1,  # SQRT
    11: 1,  # LOG
    12: 1,  # SIN
    13: 1,  # COS
    14: 1,  # SUM
    15: 1,  # SUM_ROWS
    16: 1,  # CUMSUM
    17: 1,  # MEAN
    18: 1,  # ARGMAX
    20: 1,  # REPEAT
    22: 2,  # CONCAT
    24: 1,  # NORM
    25: 1,  # RMS_NORM
    27: 1,  # GROUP_NORM
    28: 1,  # L2_NORM
    29: 2,  # MUL_MAT
    30: 3,  # MUL_MAT_ID
    31: 2,  # OUT_PROD
    32: 1,  # SCALE
    33: 2,  # SET
    CPY: 2,
    35: 1,  # CONT
    36: 1,  # RESHAPE
    37: 1,  # VIEW
    38: 1,  # PERMUTE
    39: 1,  # TRANSPOSE
    40: 2,  # GET_ROWS
    42: 3,  # SET_ROWS
    43: 1,  # DIAG
    44: 1,  # DIAG_MASK_INF
    45: 1,  # DIAG_MASK_ZERO
    46: 1,  # SOFT_MAX
    48: 2,  # ROPE
    50: 1,  # CLAMP
    51: 2,  # CONV_TRANSPOSE_1D
    52: 2,  # IM2COL
    54: 2,  # IM2COL_3D
    55: 1,  # COL2IM_1D
    56: 2,  # CONV_2D
    57: 2,  # CONV_3D
    58: 2,  # CONV_2D_DW
    59: 2,  # CONV_TRANSPOSE_2D
    60: 1,  # POOL_1D
    61: 1,  # POOL_2D
    63: 1,  # UPSCALE
    64: 1,  # PAD
    65: 1,  # PAD_REFLECT_1D
    66: 1,  # ROLL
    67: 0,  # ARANGE
    68: 1,  # TIMESTEP_EMBEDDING
    69: 1,  # ARGSORT
    70: 1,  # TOP_K
    71: 1,  # LEAKY_RELU
    72: 1,  # TRI
    73: 1,  # FILL
    74: 3,  # FLASH_ATTN_EXT
    76: 2,  # SSM_CONV
    77: 7,  # SSM_SCAN
    78: 1,  # WIN_PART
    79: 1,  # WIN_UNPART
    80: 1,  # GET_REL_POS
    81: 3,  # ADD_REL_POS
    82: 6,  # RWKV_WKV6
    83: 5,  # GATED_LINEAR_ATTN
    84: 7,  # RWKV_WKV7
    85: 2,  # SOLVE_TRI
    86: 6,  # GATED_DELTA_NET
    87: 3,  # LIGHTNING_INDEXER
    88: 3,  # DSV4_HC_COMB
    89: 2,  # DSV4_HC_PRE
    90: 4,  # DSV4_HC_POST
    UNARY: 1,
    GLU: 1,
}


def features_of(caps: bytes | memoryview, at: int = 0) -> int:
    """The bits of features that the conn_caps at `at` announce; 0 where they announce nothing."""
    tail = bytes(caps[at + CAPS_OWN : at + CAPS_BYTES])
    return int.from_bytes(tail[2:], "little") if tail[:2] == EXTENSION_MAGIC else 0
