"""The mesh-server protocol: messages, limits, operations and types.

Made by `python -m tests.native.schema --write` from native/mesh/protocol.toml, which says what it means:
change that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct


@dataclass(frozen=True, slots=True)
class Rest:
    """A list behind the fields: as many as the field `count` says, or with "" to the end; `most` at most."""

    name: str
    item_bytes: int
    count: str
    most: int


@dataclass(frozen=True, slots=True)
class RpcMessage:
    """A body of at most `most` bytes: `fields` as `body` lays them out, then `rest`. `answer` 0: none."""

    name: str
    number: int
    sender: str
    answer: int
    body: Struct
    fields: tuple[str, ...]
    rest: tuple[Rest, ...]
    most: int


@dataclass(frozen=True, slots=True)
class Operation:
    """It needs the first `least` sources, takes up to `most`, and may lie exactly on those `over`."""

    name: str
    least: int
    most: int
    over: tuple[int, ...]
    kinds: tuple[str, ...]


VERSION = 5
PIECE_BYTES = 4194304  # bytes
GRAPH_TENSORS = 32768  # tensors
STORED_GRAPHS = 8  # graphs
LOAD_ENTRIES = 1024  # tensors
DEVICES = 16  # devices
NEIGHBOURS = 16  # workers
ALIGNMENT_BYTES = 256  # bytes
ROW_PADDING = 512  # elements
BUFFERS = 1024  # buffers
TEXT_BYTES = 256  # bytes
PROGRESS_SECONDS = 5  # seconds
HUNG_SECONDS = 20  # seconds
HALF_EXPONENT = 112  # powers of two
QUEUE_BYTES = 67108864  # bytes

# size, kind, zero, id
HEADER = Struct("<IHHQ")
# name, description, kind, alignment, most_bytes, free_bytes, total_bytes, row_padding,
# attention_copies, working_room
DEVICE = Struct("<64s128sIIQQQIII")
# buffer, type, offset, ne, nb, operation, flags, parameters, sources, viewed, uses, view_offset, name
TENSOR = Struct("<IIQ4I4QII16i10IIiQ64s")
# buffer, type, offset, size, hash
LOAD_ENTRY = Struct("<IIQQ32s")

HELLO = 1
ALLOCATE = 2
FREE = 3
FILL = 4
WRITE = 5
READ = 6
COPY = 7
GRAPH = 8
COMPUTE = 9
SYNC = 10
LOAD = 11
PUSH = 12
TAKE = 13
MEET = 14
WELCOME = 129
ALLOCATED = 130
DATA = 134
SYNCED = 138
LOADED = 139
PROGRESS = 140
MET = 142
PUSHED = 192
FAILED = 255

MESSAGES: Mapping[int, RpcMessage] = {
    HELLO: RpcMessage(
        "HELLO", 1, "head", WELCOME, Struct("<I"), ("version",), (Rest("ggml", 1, "", 256),), 260
    ),
    ALLOCATE: RpcMessage(
        "ALLOCATE", 2, "head", ALLOCATED, Struct("<IIQ"), ("buffer", "device", "size"), (), 16
    ),
    FREE: RpcMessage("FREE", 3, "head", 0, Struct("<I"), ("buffer",), (), 4),
    FILL: RpcMessage("FILL", 4, "head", 0, Struct("<IIQQ"), ("buffer", "value", "offset", "size"), (), 24),
    WRITE: RpcMessage(
        "WRITE",
        5,
        "head",
        0,
        Struct("<IIQ"),
        ("buffer", "row", "offset"),
        (Rest("data", 1, "", 4194304),),
        4194320,
    ),
    READ: RpcMessage(
        "READ", 6, "head", DATA, Struct("<IIQII"), ("buffer", "size", "offset", "row", "zero"), (), 24
    ),
    COPY: RpcMessage(
        "COPY",
        7,
        "head",
        0,
        Struct("<IIQQQ"),
        ("from_buffer", "to_buffer", "from_offset", "to_offset", "size"),
        (),
        32,
    ),
    GRAPH: RpcMessage(
        "GRAPH",
        8,
        "head",
        0,
        Struct("<QIIII"),
        ("uid", "device", "node_count", "tensor_count", "zero"),
        (
            Rest("nodes", 4, "node_count", 32768),
            Rest("tensors", 256, "tensor_count", 32768),
        ),
        8519704,
    ),
    COMPUTE: RpcMessage("COMPUTE", 9, "head", 0, Struct("<QII"), ("uid", "device", "zero"), (), 16),
    SYNC: RpcMessage("SYNC", 10, "head", SYNCED, Struct("<"), (), (), 0),
    LOAD: RpcMessage("LOAD", 11, "head", LOADED, Struct("<"), (), (Rest("entries", 56, "", 1024),), 57344),
    PUSH: RpcMessage(
        "PUSH",
        12,
        "head",
        0,
        Struct("<IIIIQQ"),
        ("neighbour", "buffer", "size", "row", "offset", "token"),
        (),
        32,
    ),
    TAKE: RpcMessage(
        "TAKE",
        13,
        "head",
        0,
        Struct("<IIIIQQ"),
        ("neighbour", "buffer", "size", "row", "offset", "token"),
        (),
        32,
    ),
    MEET: RpcMessage("MEET", 14, "head", MET, Struct("<"), (), (), 0),
    WELCOME: RpcMessage(
        "WELCOME",
        129,
        "worker",
        0,
        Struct("<IIII"),
        ("version", "device_count", "operation_count", "type_count"),
        (
            Rest("devices", 236, "device_count", 16),
            Rest("operations", 4, "operation_count", 63),
            Rest("types", 4, "type_count", 32),
        ),
        4172,
    ),
    ALLOCATED: RpcMessage("ALLOCATED", 130, "worker", 0, Struct("<I"), ("done",), (), 4),
    DATA: RpcMessage("DATA", 134, "worker", 0, Struct("<"), (), (Rest("data", 1, "", 4194304),), 4194304),
    SYNCED: RpcMessage("SYNCED", 138, "worker", 0, Struct("<"), (), (), 0),
    LOADED: RpcMessage("LOADED", 139, "worker", 0, Struct("<"), (), (Rest("results", 1, "", 1024),), 1024),
    PROGRESS: RpcMessage(
        "PROGRESS",
        140,
        "worker",
        0,
        Struct("<QQIIII"),
        ("done", "request", "node", "nodes", "seconds", "waits"),
        (),
        32,
    ),
    MET: RpcMessage("MET", 142, "worker", 0, Struct("<"), (), (Rest("neighbours", 4, "", 16),), 64),
    PUSHED: RpcMessage(
        "PUSHED", 192, "neighbour", 0, Struct("<Q"), ("token",), (Rest("data", 1, "", 4194304),), 4194312
    ),
    FAILED: RpcMessage("FAILED", 255, "worker", 0, Struct("<"), (), (Rest("why", 1, "", 256),), 256),
}

LOAD_RESULTS = ("loaded", "no-such-hash", "type-or-size-differs", "unreadable", "file-changed")
TYPES = (
    "f32",
    "f16",
    "bf16",
    "i8",
    "i16",
    "i32",
    "i64",
    "q1_0",
    "q2_0",
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q8_0",
    "mxfp4",
    "nvfp4",
    "q2_K",
    "q3_K",
    "q4_K",
    "q5_K",
    "q6_K",
    "iq2_xxs",
    "iq2_xs",
    "iq3_xxs",
    "iq3_s",
    "iq2_s",
    "iq1_s",
    "iq1_m",
    "iq4_nl",
    "iq4_xs",
    "tq1_0",
    "tq2_0",
)
UNARY_KINDS = (
    "ABS",
    "SGN",
    "NEG",
    "STEP",
    "TANH",
    "ELU",
    "RELU",
    "SIGMOID",
    "GELU",
    "GELU_QUICK",
    "SILU",
    "HARDSWISH",
    "HARDSIGMOID",
    "EXP",
    "EXPM1",
    "SOFTPLUS",
    "GELU_ERF",
    "XIELU",
    "FLOOR",
    "CEIL",
    "ROUND",
    "TRUNC",
)
GLU_KINDS = ("REGLU", "GEGLU", "SWIGLU", "SWIGLU_OAI", "GEGLU_ERF", "GEGLU_QUICK", "SWIGLU_CLAMP")
OPERATIONS: tuple[Operation, ...] = (
    Operation("NONE", 0, 10, (), ()),
    Operation("RESHAPE", 0, 10, (), ()),
    Operation("VIEW", 0, 10, (), ()),
    Operation("PERMUTE", 0, 10, (), ()),
    Operation("TRANSPOSE", 0, 10, (), ()),
    Operation("DUP", 1, 1, (), ()),
    Operation("ADD", 2, 2, (0, 1), ()),
    Operation("ADD_ID", 3, 3, (0,), ()),
    Operation("SUB", 2, 2, (0, 1), ()),
    Operation("MUL", 2, 2, (0, 1), ()),
    Operation("DIV", 2, 2, (0, 1), ()),
    Operation("SQR", 1, 1, (0,), ()),
    Operation("SQRT", 1, 1, (0,), ()),
    Operation("LOG", 1, 1, (0,), ()),
    Operation("SIN", 1, 1, (0,), ()),
    Operation("COS", 1, 1, (0,), ()),
    Operation("SUM", 1, 1, (), ()),
    Operation("SUM_ROWS", 1, 1, (), ()),
    Operation("CUMSUM", 1, 1, (), ()),
    Operation("MEAN", 1, 1, (), ()),
    Operation("ARGMAX", 1, 1, (), ()),
    Operation("REPEAT", 1, 2, (), ()),
    Operation("CONCAT", 2, 2, (), ()),
    Operation("NORM", 1, 1, (0,), ()),
    Operation("RMS_NORM", 1, 1, (0,), ()),
    Operation("GROUP_NORM", 1, 1, (0,), ()),
    Operation("L2_NORM", 1, 1, (0,), ()),
    Operation("MUL_MAT", 2, 2, (), ()),
    Operation("MUL_MAT_ID", 3, 3, (), ()),
    Operation("SCALE", 1, 1, (0,), ()),
    Operation("SET", 2, 2, (0,), ()),
    Operation("CPY", 2, 2, (1,), ()),
    Operation("CONT", 1, 1, (), ()),
    Operation("GET_ROWS", 2, 2, (), ()),
    Operation("SET_ROWS", 2, 3, (2,), ()),
    Operation("DIAG", 1, 1, (), ()),
    Operation("DIAG_MASK_INF", 1, 1, (0,), ()),
    Operation("SOFT_MAX", 1, 3, (0,), ()),
    Operation("ROPE", 2, 3, (0,), ()),
    Operation("ROPE_BACK", 2, 3, (0,), ()),
    Operation("CLAMP", 1, 1, (0,), ()),
    Operation("IM2COL", 2, 2, (), ()),
    Operation("POOL_2D", 1, 1, (), ()),
    Operation("PAD", 1, 1, (), ()),
    Operation("ARANGE", 0, 0, (), ()),
    Operation("ARGSORT", 1, 1, (), ()),
    Operation("TOP_K", 1, 1, (), ()),
    Operation("TRI", 1, 1, (), ()),
    Operation("FILL", 1, 1, (0,), ()),
    Operation("FLASH_ATTN_EXT", 3, 5, (), ()),
    Operation("SSM_CONV", 2, 2, (), ()),
    Operation("SSM_SCAN", 7, 7, (), ()),
    Operation("RWKV_WKV6", 6, 6, (), ()),
    Operation("GATED_LINEAR_ATTN", 5, 5, (), ()),
    Operation("RWKV_WKV7", 7, 7, (), ()),
    Operation("SOLVE_TRI", 2, 2, (), ()),
    Operation("GATED_DELTA_NET", 6, 6, (), ()),
    Operation("LIGHTNING_INDEXER", 4, 4, (), ()),
    Operation("DSV4_HC_COMB", 3, 3, (), ()),
    Operation("DSV4_HC_PRE", 2, 2, (), ()),
    Operation("DSV4_HC_POST", 3, 4, (), ()),
    Operation("UNARY", 1, 1, (0,), UNARY_KINDS),
    Operation("GLU", 1, 2, (), GLU_KINDS),
)
