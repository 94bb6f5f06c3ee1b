"""Every size limit of the wire, in bytes or counts, with where it comes from."""

MAX_FRAME_BYTES = 256 << 10  # payload of one frame; 256 KiB is where a bare TLS pump stops getting faster
MAX_CONTROL_BYTES = 64 << 10  # payload of a control frame (hello, open, resume …)
MAX_UNPROVEN_BYTES = 4 << 10  # what a connection may send before it has proven who it is
MAX_STREAMS = 1024  # open streams of one session; llama.cpp uses some dozens
MAX_TEXT_BYTES = 1024  # any human text from a peer (reason, hint)
MAX_NAME_BYTES = 64  # a node's name, a service's name
PEER_BYTES = 32  # a node's id, which is its public key
MAX_CHAIN_BYTES = 1536  # the certificates by which a node is a member
MAX_TIME = 1 << 40  # unix seconds, far behind any clock
MAX_DEVICES = 16  # of one worker
MAX_OPERATIONS = 64  # of one trial of a device: real models need 15 to 40
MAX_TIMED = 8  # kinds of layers whose time on a device is asked for
MAX_TIMED_BYTES = 2048  # of one: the operations of a layer
MAX_CAPACITY_PATHS = 64  # to other members that a node tells of
MAX_NEIGHBOUR = 65_535  # number of a worker that another one sends to
MAX_CANDIDATES = 32  # addresses of one peer
MAX_RECORD_BYTES = 4 << 10  # a signed record of a node
MAX_BAN_BYTES = 3 << 10  # a signed ban; one by an inviter with its evidence has about 1100
MAX_SEQUENCE = (1 << 62) - 1  # of a node's record, and so of what is said of its life
MAX_NESTING = 8  # depth of a msgpack value
MAX_ITEMS = 4096  # entries of one msgpack list or map
