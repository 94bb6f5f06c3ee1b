"""The mesh-server protocol: messages, limits and types.

Made by `python -m tests.native.schema --write` from native/mesh/protocol.toml, which says what it means:
change that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct


@dataclass(frozen=True, slots=True)
class RpcMessage:
    """A message of this sender: a body of at most `most` bytes that begins with the fields of `body`."""

    name: str
    sender: str
    body: Struct
    most: int


VERSION = 6
PIECE_BYTES = 4194304  # bytes
GRAPH_TENSORS = 32768  # tensors
STORED_GRAPHS = 8  # graphs
SUM_GRAPHS = 1024  # graphs
SUM_BYTES = 33554432  # bytes
SUMMAND_BYTES = 262144  # bytes
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
# buffer, type, offset, hash, whole, first, piece, count, stride, file_stride
LOAD_PART = Struct("<IIQ32sQQQQQQ")

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
SUM = 15
LOAD_PARTS = 16
WELCOME = 129
ALLOCATED = 130
DATA = 134
SYNCED = 138
LOADED = 139
PROGRESS = 140
MET = 142
PUSHED = 192
SUMMAND = 193
FAILED = 255

MESSAGES: Mapping[int, RpcMessage] = {
    HELLO: RpcMessage("HELLO", "head", Struct("<I"), 260),
    ALLOCATE: RpcMessage("ALLOCATE", "head", Struct("<IIQ"), 16),
    FREE: RpcMessage("FREE", "head", Struct("<I"), 4),
    FILL: RpcMessage("FILL", "head", Struct("<IIQQ"), 24),
    WRITE: RpcMessage("WRITE", "head", Struct("<IIQ"), 4194320),
    READ: RpcMessage("READ", "head", Struct("<IIQII"), 24),
    COPY: RpcMessage("COPY", "head", Struct("<IIQQQ"), 32),
    GRAPH: RpcMessage("GRAPH", "head", Struct("<QIIII"), 8519704),
    COMPUTE: RpcMessage("COMPUTE", "head", Struct("<QII"), 16),
    SYNC: RpcMessage("SYNC", "head", Struct("<"), 0),
    LOAD: RpcMessage("LOAD", "head", Struct("<"), 57344),
    PUSH: RpcMessage("PUSH", "head", Struct("<IIIIQQ"), 32),
    TAKE: RpcMessage("TAKE", "head", Struct("<IIIIQQ"), 32),
    MEET: RpcMessage("MEET", "head", Struct("<"), 0),
    SUM: RpcMessage("SUM", "head", Struct("<IIIIIIQQQ"), 48),
    LOAD_PARTS: RpcMessage("LOAD_PARTS", "head", Struct("<"), 98304),
    WELCOME: RpcMessage("WELCOME", "worker", Struct("<IIII"), 4172),
    ALLOCATED: RpcMessage("ALLOCATED", "worker", Struct("<I"), 4),
    DATA: RpcMessage("DATA", "worker", Struct("<"), 4194304),
    SYNCED: RpcMessage("SYNCED", "worker", Struct("<"), 0),
    LOADED: RpcMessage("LOADED", "worker", Struct("<"), 1024),
    PROGRESS: RpcMessage("PROGRESS", "worker", Struct("<QQIIII"), 32),
    MET: RpcMessage("MET", "worker", Struct("<"), 64),
    PUSHED: RpcMessage("PUSHED", "neighbour", Struct("<Q"), 4194312),
    SUMMAND: RpcMessage("SUMMAND", "neighbour", Struct("<Q"), 262152),
    FAILED: RpcMessage("FAILED", "worker", Struct("<"), 256),
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
