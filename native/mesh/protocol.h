// Made from protocol.toml by `python -m tests.native.schema --write`: change that.
// clang-format off
#pragma once

#include "wire.h"

#include <cstddef>
#include <cstdint>

namespace mesh {

constexpr uint32_t VERSION = 6;
constexpr uint32_t OPERATION_COUNT = 63;
constexpr uint32_t TYPE_COUNT = 32;
constexpr uint32_t PIECE_BYTES = 4194304; // bytes
constexpr uint32_t GRAPH_TENSORS = 32768; // tensors
constexpr uint32_t STORED_GRAPHS = 8; // graphs
constexpr uint32_t SUM_GRAPHS = 1024; // graphs
constexpr uint32_t SUM_BYTES = 33554432; // bytes
constexpr uint32_t SUMMAND_BYTES = 262144; // bytes
constexpr uint32_t LOAD_ENTRIES = 1024; // tensors
constexpr uint32_t DEVICES = 16; // devices
constexpr uint32_t NEIGHBOURS = 16; // workers
constexpr uint32_t ALIGNMENT_BYTES = 256; // bytes
constexpr uint32_t ROW_PADDING = 512; // elements
constexpr uint32_t BUFFERS = 1024; // buffers
constexpr uint32_t TEXT_BYTES = 256; // bytes
constexpr uint32_t PROGRESS_SECONDS = 5; // seconds
constexpr uint32_t HUNG_SECONDS = 20; // seconds
constexpr uint32_t HALF_EXPONENT = 112; // powers of two
constexpr uint32_t QUEUE_BYTES = 67108864; // bytes

enum class message : uint16_t {
    hello = 1,
    allocate = 2,
    free = 3,
    fill = 4,
    write = 5,
    read = 6,
    copy = 7,
    graph = 8,
    compute = 9,
    sync = 10,
    load = 11,
    push = 12,
    take = 13,
    meet = 14,
    sum = 15,
    load_parts = 16,
    welcome = 129,
    allocated = 130,
    data = 134,
    synced = 138,
    loaded = 139,
    progress = 140,
    met = 142,
    pushed = 192,
    summand = 193,
    failed = 255,
};

// Who sends a message; `neighbour`: another worker
enum class sender : uint8_t { head, worker, neighbour };

enum class load_result : uint8_t {
    loaded,
    no_such_hash,
    type_or_size_differs,
    unreadable,
    file_changed,
};
constexpr const char * LOAD_RESULT_NAMES[] = { "loaded", "no-such-hash", "type-or-size-differs", "unreadable", "file-changed" };

// begins every message, of both sides
struct wire_header {
    static constexpr size_t bytes = 16;
    uint32_t size = {}; // bytes behind this header
    uint16_t kind = {}; // which message
    uint16_t zero = {}; // 0
    uint64_t id = {}; // of the request: the head counts from 1, and 0 is refused; an answer has that of its request
    void put(writer & out) const { out.put(size); out.put(kind); out.put(zero); out.put(id); }
    static wire_header take(reader & in) { wire_header body; in.take(body.size); in.take(body.kind); in.take_zero(body.zero); in.take(body.id); return body; }
};

// something that computes
struct wire_device {
    static constexpr size_t bytes = 236;
    uint8_t name[64] = {}; // as ggml calls it, padded with zeros
    uint8_t description[128] = {}; // likewise
    uint32_t kind = {}; // 0 CPU, 1 GPU, 2 integrated GPU, 3 accelerator
    uint32_t alignment = {}; // bytes, of tensors in its buffers: a power of two, up to ALIGNMENT_BYTES
    uint64_t most_bytes = {}; // of one buffer
    uint64_t free_bytes = {}; // of its memory, and of what this head may take
    uint64_t total_bytes = {}; // likewise
    uint32_t row_padding = {}; // elements: quantized tensors whose rows are no multiple of it take so many bytes more as a row would that fills the last one up: a power of two, up to ROW_PADDING; 0: they do not
    uint32_t attention_copies = {}; // 1: behind the result of FLASH_ATTN_EXT there is room for its second and third source as f16, each from the next multiple of 128 bytes on, unless they are f16; 0: there is none
    uint32_t working_room = {}; // 1: behind the results of MUL_MAT_ID, FLASH_ATTN_EXT, CUMSUM, ARGSORT and TOP_K there is room to work, as much as ggml's Metal wants at most (`allocation_size` in native/mesh/sizes.cpp); 0: there is none
    void put(writer & out) const { out.put_all(name); out.put_all(description); out.put(kind); out.put(alignment); out.put(most_bytes); out.put(free_bytes); out.put(total_bytes); out.put(row_padding); out.put(attention_copies); out.put(working_room); }
    static wire_device take(reader & in) { wire_device body; in.take_all(body.name); in.take_all(body.description); in.take(body.kind); in.take(body.alignment); in.take(body.most_bytes); in.take(body.free_bytes); in.take(body.total_bytes); in.take(body.row_padding); in.take(body.attention_copies); in.take(body.working_room); return body; }
};

// a tensor of a graph; it lies in a buffer, or nowhere (then nothing may use its data)
struct wire_tensor {
    static constexpr size_t bytes = 256;
    uint32_t buffer = {}; // 0: nowhere
    uint32_t type = {}; // number of a type below
    uint64_t offset = {}; // bytes, in its buffer
    uint32_t ne[4] = {}; // elements of each dimension
    uint64_t nb[4] = {}; // bytes from one to the next
    uint32_t operation = {}; // number of an operation below
    uint32_t flags = {}; // as ggml: 1 input, 2 output, 16 compute
    int32_t parameters[16] = {}; // as ggml; the first of UNARY and GLU is a number below
    uint32_t sources[10] = {}; // 0: none; n: the n-th tensor of the graph, this one or one before it
    uint32_t viewed = {}; // likewise: whose memory it is a view of
    int32_t uses = {}; // how many nodes of the whole graph have it as a source
    uint64_t view_offset = {}; // bytes
    uint8_t name[64] = {}; // padded with zeros
    void put(writer & out) const { out.put(buffer); out.put(type); out.put(offset); out.put_all(ne); out.put_all(nb); out.put(operation); out.put(flags); out.put_all(parameters); out.put_all(sources); out.put(viewed); out.put(uses); out.put(view_offset); out.put_all(name); }
    static wire_tensor take(reader & in) { wire_tensor body; in.take(body.buffer); in.take(body.type); in.take(body.offset); in.take_all(body.ne); in.take_all(body.nb); in.take(body.operation); in.take(body.flags); in.take_all(body.parameters); in.take_all(body.sources); in.take(body.viewed); in.take(body.uses); in.take(body.view_offset); in.take_all(body.name); return body; }
};

// a whole tensor without gaps, to be filled from a file that has this content
struct wire_load_entry {
    static constexpr size_t bytes = 56;
    uint32_t buffer = {}; // as TENSOR
    uint32_t type = {}; // as TENSOR
    uint64_t offset = {}; // bytes, in its buffer
    uint64_t size = {}; // bytes
    uint8_t hash[32] = {}; // BLAKE3-256 of those bytes
    void put(writer & out) const { out.put(buffer); out.put(type); out.put(offset); out.put(size); out.put_all(hash); }
    static wire_load_entry take(reader & in) { wire_load_entry body; in.take(body.buffer); in.take(body.type); in.take(body.offset); in.take(body.size); in.take_all(body.hash); return body; }
};

// pieces of a tensor of a file, of one length and equally far apart, put into a buffer
struct wire_load_part {
    static constexpr size_t bytes = 96;
    uint32_t buffer = {}; // as TENSOR
    uint32_t type = {}; // as TENSOR
    uint64_t offset = {}; // bytes, in its buffer, of the first piece
    uint8_t hash[32] = {}; // BLAKE3-256 of the whole tensor in the file
    uint64_t whole = {}; // bytes of that
    uint64_t first = {}; // bytes, in the tensor of the file, of the first piece
    uint64_t piece = {}; // bytes of each piece
    uint64_t count = {}; // of pieces
    uint64_t stride = {}; // bytes from one piece to the next in the buffer: no fewer than a piece
    uint64_t file_stride = {}; // likewise in the file
    void put(writer & out) const { out.put(buffer); out.put(type); out.put(offset); out.put_all(hash); out.put(whole); out.put(first); out.put(piece); out.put(count); out.put(stride); out.put(file_stride); }
    static wire_load_part take(reader & in) { wire_load_part body; in.take(body.buffer); in.take(body.type); in.take(body.offset); in.take_all(body.hash); in.take(body.whole); in.take(body.first); in.take(body.piece); in.take(body.count); in.take(body.stride); in.take(body.file_stride); return body; }
};

// first, and once
struct hello_body {
    static constexpr message number = message::hello; static constexpr size_t bytes = 4;
    uint32_t version = {}; // of this protocol
    void put(writer & out) const { out.put(version); }
    static hello_body take(reader & in) { hello_body body; in.take(body.version); return body; }
};

// make a buffer
struct allocate_body {
    static constexpr message number = message::allocate; static constexpr size_t bytes = 16;
    uint32_t buffer = {}; // the head's choice: not 0, not in use
    uint32_t device = {}; // number of a device of WELCOME
    uint64_t size = {}; // bytes
    void put(writer & out) const { out.put(buffer); out.put(device); out.put(size); }
    static allocate_body take(reader & in) { allocate_body body; in.take(body.buffer); in.take(body.device); in.take(body.size); return body; }
};

// end a buffer, and forget all stored graphs
struct free_body {
    static constexpr message number = message::free; static constexpr size_t bytes = 4;
    uint32_t buffer = {};
    void put(writer & out) const { out.put(buffer); }
    static free_body take(reader & in) { free_body body; in.take(body.buffer); return body; }
};

// set bytes of a buffer to one value
struct fill_body {
    static constexpr message number = message::fill; static constexpr size_t bytes = 24;
    uint32_t buffer = {};
    uint32_t value = {}; // 0 to 255
    uint64_t offset = {}; // bytes
    uint64_t size = {}; // bytes
    void put(writer & out) const { out.put(buffer); out.put(value); out.put(offset); out.put(size); }
    static fill_body take(reader & in) { fill_body body; in.take(body.buffer); in.take(body.value); in.take(body.offset); in.take(body.size); return body; }
};

// set bytes of a buffer to these
struct write_body {
    static constexpr message number = message::write; static constexpr size_t bytes = 16;
    uint32_t buffer = {};
    uint32_t row = {}; // 0: bytes as they are; n: values of f32 in rows of n, which cross as [half rows](#half-rows)
    uint64_t offset = {}; // bytes
    void put(writer & out) const { out.put(buffer); out.put(row); out.put(offset); }
    static write_body take(reader & in) { write_body body; in.take(body.buffer); in.take(body.row); in.take(body.offset); return body; }
};

// ask for bytes of a buffer
struct read_body {
    static constexpr message number = message::read; static constexpr size_t bytes = 24;
    uint32_t buffer = {};
    uint32_t size = {}; // bytes in the buffer, up to PIECE_BYTES
    uint64_t offset = {}; // bytes
    uint32_t row = {}; // 0: bytes as they are; n: values of f32 in rows of n, which cross as [half rows](#half-rows)
    uint32_t zero = {}; // 0
    void put(writer & out) const { out.put(buffer); out.put(size); out.put(offset); out.put(row); out.put(zero); }
    static read_body take(reader & in) { read_body body; in.take(body.buffer); in.take(body.size); in.take(body.offset); in.take(body.row); in.take_zero(body.zero); return body; }
};

// copy bytes within the worker, between places that do not overlap
struct copy_body {
    static constexpr message number = message::copy; static constexpr size_t bytes = 32;
    uint32_t from_buffer = {};
    uint32_t to_buffer = {};
    uint64_t from_offset = {}; // bytes
    uint64_t to_offset = {}; // bytes
    uint64_t size = {}; // bytes
    void put(writer & out) const { out.put(from_buffer); out.put(to_buffer); out.put(from_offset); out.put(to_offset); out.put(size); }
    static copy_body take(reader & in) { copy_body body; in.take(body.from_buffer); in.take(body.to_buffer); in.take(body.from_offset); in.take(body.to_offset); in.take(body.size); return body; }
};

// compute a graph, and keep it if it has a uid
struct graph_body {
    static constexpr message number = message::graph; static constexpr size_t bytes = 24;
    uint64_t uid = {}; // the head's choice; 0: not kept
    uint32_t device = {};
    uint32_t node_count = {}; // up to GRAPH_TENSORS
    uint32_t tensor_count = {}; // likewise
    uint32_t zero = {}; // 0
    void put(writer & out) const { out.put(uid); out.put(device); out.put(node_count); out.put(tensor_count); out.put(zero); }
    static graph_body take(reader & in) { graph_body body; in.take(body.uid); in.take(body.device); in.take(body.node_count); in.take(body.tensor_count); in.take_zero(body.zero); return body; }
};

// compute a graph that is kept
struct compute_body {
    static constexpr message number = message::compute; static constexpr size_t bytes = 16;
    uint64_t uid = {};
    uint32_t device = {};
    uint32_t zero = {}; // 0
    void put(writer & out) const { out.put(uid); out.put(device); out.put(zero); }
    static compute_body take(reader & in) { compute_body body; in.take(body.uid); in.take(body.device); in.take_zero(body.zero); return body; }
};

// ask whether everything before has been done
struct sync_body {
    static constexpr message number = message::sync; static constexpr size_t bytes = 0;
    void put(writer & ) const { /* nothing */  }
    static sync_body take(reader & ) { sync_body body;  return body; }
};

// fill tensors from the worker's own files
struct load_body {
    static constexpr message number = message::load; static constexpr size_t bytes = 0;
    void put(writer & ) const { /* nothing */  }
    static load_body take(reader & ) { load_body body;  return body; }
};

// send bytes of a buffer to another worker, which is told to take them
struct push_body {
    static constexpr message number = message::push; static constexpr size_t bytes = 32;
    uint32_t neighbour = {}; // to which; one of MET
    uint32_t buffer = {};
    uint32_t size = {}; // bytes in the buffer, up to PIECE_BYTES
    uint32_t row = {}; // 0: bytes as they are; n: values of f32 in rows of n, which cross as [half rows](#half-rows)
    uint64_t offset = {}; // bytes
    uint64_t token = {}; // the head's choice: the same in PUSH, PUSHED and TAKE
    void put(writer & out) const { out.put(neighbour); out.put(buffer); out.put(size); out.put(row); out.put(offset); out.put(token); }
    static push_body take(reader & in) { push_body body; in.take(body.neighbour); in.take(body.buffer); in.take(body.size); in.take(body.row); in.take(body.offset); in.take(body.token); return body; }
};

// wait for the next bytes that another worker pushes, and set bytes of a buffer to them
struct take_body {
    static constexpr message number = message::take; static constexpr size_t bytes = 32;
    uint32_t neighbour = {}; // from which; one of MET
    uint32_t buffer = {};
    uint32_t size = {}; // as PUSH
    uint32_t row = {}; // as PUSH
    uint64_t offset = {}; // bytes
    uint64_t token = {}; // as PUSH
    void put(writer & out) const { out.put(neighbour); out.put(buffer); out.put(size); out.put(row); out.put(offset); out.put(token); }
    static take_body take(reader & in) { take_body body; in.take(body.neighbour); in.take(body.buffer); in.take(body.size); in.take(body.row); in.take(body.offset); in.take(body.token); return body; }
};

// ask which neighbours the worker has
struct meet_body {
    static constexpr message number = message::meet; static constexpr size_t bytes = 0;
    void put(writer & ) const { /* nothing */  }
    static meet_body take(reader & ) { meet_body body;  return body; }
};

// add up values of f32 that several workers have: each sends its own to all others, and adds them in the order of places, so that all have the same bits
struct sum_body {
    static constexpr message number = message::sum; static constexpr size_t bytes = 48;
    uint32_t members = {}; // a bit for each worker that takes part, by its place: this one, and one or more of MET
    uint32_t place = {}; // of this worker
    uint32_t buffer = {};
    uint32_t row = {}; // values in a row
    uint32_t form = {}; // how they cross: 0 as f32, 1 as [half rows](#half-rows), 2 in blocks of 32 as q8_0
    uint32_t absent = {}; // 1: this worker has computed nothing, and has zeros; else 0
    uint64_t offset = {}; // bytes
    uint64_t size = {}; // bytes in the buffer: whole rows, up to SUM_BYTES
    uint64_t token = {}; // as PUSH: the same for all members
    void put(writer & out) const { out.put(members); out.put(place); out.put(buffer); out.put(row); out.put(form); out.put(absent); out.put(offset); out.put(size); out.put(token); }
    static sum_body take(reader & in) { sum_body body; in.take(body.members); in.take(body.place); in.take(body.buffer); in.take(body.row); in.take(body.form); in.take(body.absent); in.take(body.offset); in.take(body.size); in.take(body.token); return body; }
};

// fill parts of tensors from the worker's own files
struct load_parts_body {
    static constexpr message number = message::load_parts; static constexpr size_t bytes = 0;
    void put(writer & ) const { /* nothing */  }
    static load_parts_body take(reader & ) { load_parts_body body;  return body; }
};

// what there is
struct welcome_body {
    static constexpr message number = message::welcome; static constexpr size_t bytes = 16;
    uint32_t version = {}; // of this protocol
    uint32_t device_count = {};
    uint32_t operation_count = {};
    uint32_t type_count = {};
    void put(writer & out) const { out.put(version); out.put(device_count); out.put(operation_count); out.put(type_count); }
    static welcome_body take(reader & in) { welcome_body body; in.take(body.version); in.take(body.device_count); in.take(body.operation_count); in.take(body.type_count); return body; }
};

// whether there is such a buffer now
struct allocated_body {
    static constexpr message number = message::allocated; static constexpr size_t bytes = 4;
    uint32_t done = {}; // 1, or 0 where there was no memory for it
    void put(writer & out) const { out.put(done); }
    static allocated_body take(reader & in) { allocated_body body; in.take(body.done); return body; }
};

// the bytes
struct data_body {
    static constexpr message number = message::data; static constexpr size_t bytes = 0;
    void put(writer & ) const { /* nothing */  }
    static data_body take(reader & ) { data_body body;  return body; }
};

// it has
struct synced_body {
    static constexpr message number = message::synced; static constexpr size_t bytes = 0;
    void put(writer & ) const { /* nothing */  }
    static synced_body take(reader & ) { synced_body body;  return body; }
};

// what became of each tensor
struct loaded_body {
    static constexpr message number = message::loaded; static constexpr size_t bytes = 0;
    void put(writer & ) const { /* nothing */  }
    static loaded_body take(reader & ) { loaded_body body;  return body; }
};

// that it is there, and what it does; unasked, with the id 0
struct progress_body {
    static constexpr message number = message::progress; static constexpr size_t bytes = 32;
    uint64_t done = {}; // id of the last request that is done; the answers up to there have been said
    uint64_t request = {}; // id of the one that is worked on; 0: none
    uint32_t node = {}; // of its graph as many nodes are done, where the device says so
    uint32_t nodes = {}; // of so many
    uint32_t seconds = {}; // for how long nothing of it has moved on
    uint32_t waits = {}; // 1 + the neighbour that it waits for; 0: for none
    void put(writer & out) const { out.put(done); out.put(request); out.put(node); out.put(nodes); out.put(seconds); out.put(waits); }
    static progress_body take(reader & in) { progress_body body; in.take(body.done); in.take(body.request); in.take(body.node); in.take(body.nodes); in.take(body.seconds); in.take(body.waits); return body; }
};

// the neighbours, once no more will come
struct met_body {
    static constexpr message number = message::met; static constexpr size_t bytes = 0;
    void put(writer & ) const { /* nothing */  }
    static met_body take(reader & ) { met_body body;  return body; }
};

// bytes, in the order in which the head had them pushed
struct pushed_body {
    static constexpr message number = message::pushed; static constexpr size_t bytes = 8;
    uint64_t token = {}; // as PUSH
    void put(writer & out) const { out.put(token); }
    static pushed_body take(reader & in) { pushed_body body; in.take(body.token); return body; }
};

// a piece of its values for a SUM, in the order of the pieces and sums
struct summand_body {
    static constexpr message number = message::summand; static constexpr size_t bytes = 8;
    uint64_t token = {}; // of the SUM
    void put(writer & out) const { out.put(token); }
    static summand_body take(reader & in) { summand_body body; in.take(body.token); return body; }
};

// why the worker ends the connection, in answer to any request
struct failed_body {
    static constexpr message number = message::failed; static constexpr size_t bytes = 0;
    void put(writer & ) const { /* nothing */  }
    static failed_body take(reader & ) { failed_body body;  return body; }
};

// The shortest and the longest body of a message of one sender. false: there is no such message
inline bool body_limits(uint16_t number, sender from, uint32_t & least, uint32_t & most) {
    switch (number) {
        case 1: least = 4; most = 260; return from == sender::head; // HELLO
        case 2: least = 16; most = 16; return from == sender::head; // ALLOCATE
        case 3: least = 4; most = 4; return from == sender::head; // FREE
        case 4: least = 24; most = 24; return from == sender::head; // FILL
        case 5: least = 16; most = 4194320; return from == sender::head; // WRITE
        case 6: least = 24; most = 24; return from == sender::head; // READ
        case 7: least = 32; most = 32; return from == sender::head; // COPY
        case 8: least = 24; most = 8519704; return from == sender::head; // GRAPH
        case 9: least = 16; most = 16; return from == sender::head; // COMPUTE
        case 10: least = 0; most = 0; return from == sender::head; // SYNC
        case 11: least = 0; most = 57344; return from == sender::head; // LOAD
        case 12: least = 32; most = 32; return from == sender::head; // PUSH
        case 13: least = 32; most = 32; return from == sender::head; // TAKE
        case 14: least = 0; most = 0; return from == sender::head; // MEET
        case 15: least = 48; most = 48; return from == sender::head; // SUM
        case 16: least = 0; most = 98304; return from == sender::head; // LOAD_PARTS
        case 129: least = 16; most = 4172; return from == sender::worker; // WELCOME
        case 130: least = 4; most = 4; return from == sender::worker; // ALLOCATED
        case 134: least = 0; most = 4194304; return from == sender::worker; // DATA
        case 138: least = 0; most = 0; return from == sender::worker; // SYNCED
        case 139: least = 0; most = 1024; return from == sender::worker; // LOADED
        case 140: least = 32; most = 32; return from == sender::worker; // PROGRESS
        case 142: least = 0; most = 64; return from == sender::worker; // MET
        case 192: least = 8; most = 4194312; return from == sender::neighbour; // PUSHED
        case 193: least = 8; most = 262152; return from == sender::neighbour; // SUMMAND
        case 255: least = 0; most = 256; return from == sender::worker; // FAILED
        default: return false;
    }
}

constexpr const char * TYPE_NAMES[] = { "f32", "f16", "bf16", "i8", "i16", "i32", "i64", "q1_0", "q2_0", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "mxfp4", "nvfp4", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq2_xxs", "iq2_xs", "iq3_xxs", "iq3_s", "iq2_s", "iq1_s", "iq1_m", "iq4_nl", "iq4_xs", "tq1_0", "tq2_0" };
constexpr const char * UNARY_NAMES[] = { "ABS", "SGN", "NEG", "STEP", "TANH", "ELU", "RELU", "SIGMOID", "GELU", "GELU_QUICK", "SILU", "HARDSWISH", "HARDSIGMOID", "EXP", "EXPM1", "SOFTPLUS", "GELU_ERF", "XIELU", "FLOOR", "CEIL", "ROUND", "TRUNC" };
constexpr const char * GLU_NAMES[] = { "REGLU", "GEGLU", "SWIGLU", "SWIGLU_OAI", "GEGLU_ERF", "GEGLU_QUICK", "SWIGLU_CLAMP" };

struct operation_rule {
    const char * name;
    uint8_t least; // so many first sources it must have
    uint8_t most;
    uint16_t over; // a bit for each source that the result may lie exactly on
    const char * const * kinds; // the first parameter is one of these, or nullptr
    uint32_t kind_count;
};
constexpr operation_rule OPERATIONS[] = {
    { "NONE", 0, 10, 0, nullptr, 0 },
    { "RESHAPE", 0, 10, 0, nullptr, 0 },
    { "VIEW", 0, 10, 0, nullptr, 0 },
    { "PERMUTE", 0, 10, 0, nullptr, 0 },
    { "TRANSPOSE", 0, 10, 0, nullptr, 0 },
    { "DUP", 1, 1, 0, nullptr, 0 },
    { "ADD", 2, 2, 3, nullptr, 0 },
    { "ADD_ID", 3, 3, 1, nullptr, 0 },
    { "SUB", 2, 2, 3, nullptr, 0 },
    { "MUL", 2, 2, 3, nullptr, 0 },
    { "DIV", 2, 2, 3, nullptr, 0 },
    { "SQR", 1, 1, 1, nullptr, 0 },
    { "SQRT", 1, 1, 1, nullptr, 0 },
    { "LOG", 1, 1, 1, nullptr, 0 },
    { "SIN", 1, 1, 1, nullptr, 0 },
    { "COS", 1, 1, 1, nullptr, 0 },
    { "SUM", 1, 1, 0, nullptr, 0 },
    { "SUM_ROWS", 1, 1, 0, nullptr, 0 },
    { "CUMSUM", 1, 1, 0, nullptr, 0 },
    { "MEAN", 1, 1, 0, nullptr, 0 },
    { "ARGMAX", 1, 1, 0, nullptr, 0 },
    { "REPEAT", 1, 2, 0, nullptr, 0 },
    { "CONCAT", 2, 2, 0, nullptr, 0 },
    { "NORM", 1, 1, 1, nullptr, 0 },
    { "RMS_NORM", 1, 1, 1, nullptr, 0 },
    { "GROUP_NORM", 1, 1, 1, nullptr, 0 },
    { "L2_NORM", 1, 1, 1, nullptr, 0 },
    { "MUL_MAT", 2, 2, 0, nullptr, 0 },
    { "MUL_MAT_ID", 3, 3, 0, nullptr, 0 },
    { "SCALE", 1, 1, 1, nullptr, 0 },
    { "SET", 2, 2, 1, nullptr, 0 },
    { "CPY", 2, 2, 2, nullptr, 0 },
    { "CONT", 1, 1, 0, nullptr, 0 },
    { "GET_ROWS", 2, 2, 0, nullptr, 0 },
    { "SET_ROWS", 2, 3, 4, nullptr, 0 },
    { "DIAG", 1, 1, 0, nullptr, 0 },
    { "DIAG_MASK_INF", 1, 1, 1, nullptr, 0 },
    { "SOFT_MAX", 1, 3, 1, nullptr, 0 },
    { "ROPE", 2, 3, 1, nullptr, 0 },
    { "ROPE_BACK", 2, 3, 1, nullptr, 0 },
    { "CLAMP", 1, 1, 1, nullptr, 0 },
    { "IM2COL", 2, 2, 0, nullptr, 0 },
    { "POOL_2D", 1, 1, 0, nullptr, 0 },
    { "PAD", 1, 1, 0, nullptr, 0 },
    { "ARANGE", 0, 0, 0, nullptr, 0 },
    { "ARGSORT", 1, 1, 0, nullptr, 0 },
    { "TOP_K", 1, 1, 0, nullptr, 0 },
    { "TRI", 1, 1, 0, nullptr, 0 },
    { "FILL", 1, 1, 1, nullptr, 0 },
    { "FLASH_ATTN_EXT", 3, 5, 0, nullptr, 0 },
    { "SSM_CONV", 2, 2, 0, nullptr, 0 },
    { "SSM_SCAN", 7, 7, 0, nullptr, 0 },
    { "RWKV_WKV6", 6, 6, 0, nullptr, 0 },
    { "GATED_LINEAR_ATTN", 5, 5, 0, nullptr, 0 },
    { "RWKV_WKV7", 7, 7, 0, nullptr, 0 },
    { "SOLVE_TRI", 2, 2, 0, nullptr, 0 },
    { "GATED_DELTA_NET", 6, 6, 0, nullptr, 0 },
    { "LIGHTNING_INDEXER", 4, 4, 0, nullptr, 0 },
    { "DSV4_HC_COMB", 3, 3, 0, nullptr, 0 },
    { "DSV4_HC_PRE", 2, 2, 0, nullptr, 0 },
    { "DSV4_HC_POST", 3, 4, 0, nullptr, 0 },
    { "UNARY", 1, 1, 1, UNARY_NAMES, 22 },
    { "GLU", 1, 2, 0, GLU_NAMES, 7 },
};

} // namespace mesh
